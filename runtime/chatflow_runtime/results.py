"""What tools return and exceptions say, as models read it: JSON data and stable words."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, is_dataclass
from enum import Enum
from types import NoneType
from typing import cast

from chatflow_runtime.exceptions import ChatflowError
from chatflow_runtime.types import Json, encodable_json


def as_json(result: object) -> Json:
    """A tool's result as the model reads it, sharing nothing with what the tool keeps."""
    if type(result) in (NoneType, bool, int):
        return cast(Json, result)
    text = json.dumps(result, allow_nan=False, default=_as_data)
    data: Json = json.loads(text)
    return encodable_json(data) if "\\u" in text else data


def _as_data(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"it returned a {type(value).__name__}, expected JSON data")


_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


def stable_text(error: BaseException) -> str:
    """An exception in words that are the same on every run."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {_ADDRESS.sub('0x...', text)}" if text else type(error).__name__


def failure_text(error: BaseException) -> str:
    """What a target failed with; what the runtime raises on its own account speaks for itself."""
    return str(error) if isinstance(error, ChatflowError) and str(error) else stable_text(error)
