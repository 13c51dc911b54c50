"""The templates of the pages, the files that they hold as they are, and what a policy knows those by."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from chatflow_eval.writers import words


@cache
def environment() -> Environment:
    """Everything from outside is escaped, and made printable first."""
    return Environment(
        loader=PackageLoader("chatflow_eval"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _printable(value: Any) -> Any:
    return words.printable(value) if type(value) is str else value


@cache
def source(name: str) -> str:
    """A file of ours that a page holds as it is."""
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0]


def hash_source(text: str) -> str:
    """What a content security policy lets a style or script run by: `'sha256-...'`."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
