"""Names of others as the panels show them: cut, listed, and linked as long as they are no novels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from chatflow_eval.writers import words

MAX_NAME, MAX_TEXT = 120, 600
"""Characters of a name, and of a text, that are shown."""
MAX_LINKED = 1_000
"""Characters of a name that still gets a link."""

Edge: TypeAlias = tuple[str, str]


def shorten(name: str) -> str:
    """The name, or its beginning."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def cut(text: str) -> str:
    """The text, or its beginning and how long it is."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}… [cut: {MAX_TEXT:,} of {len(text):,} characters]"


def may_link(*names: str) -> bool:
    """True when a link that holds the names is not too long."""
    return all(len(name) <= MAX_LINKED for name in names)


def share(part: int, whole: int) -> str:
    """In percent; `n/a` of nothing."""
    return words.percent(part / whole if whole else None)


def list_some(names: Sequence[str], room: int) -> str:
    """The first names, and how many there are beside them."""
    shown = ", ".join(map(shorten, names[:room]))
    return f"{shown} and {len(names) - room:,} more" if len(names) > room else shown


def name_swarm(target: str, files: Sequence[str]) -> str:
    """The files' names without what they have in common."""
    stems = [file.rsplit("/", 1)[-1].removesuffix(".yaml").removesuffix(".scenario") for file in files]
    name = list_some(stems, 3)
    return name if target == "chatflow" else f"{target}: {name}"
