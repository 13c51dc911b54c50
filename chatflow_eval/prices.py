"""What a model's tokens cost, in US dollars: litellm's own price list, read without importing litellm."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_LIST = "model_prices_and_context_window_backup.json"


class Price(NamedTuple):
    """US dollars for one token read and for one token written."""

    read: float
    written: float


def price(model: str) -> Price | None:
    """The price of a model by its name as litellm has it, with its provider in front or not; `None`: not listed."""
    listed = _listed()
    for name in (model, model.partition("/")[2], f"gemini/{model}" if model.startswith("gemini-") else ""):
        row = listed.get(name)
        if isinstance(row, dict) and "input_cost_per_token" in row and "output_cost_per_token" in row:
            return Price(float(row["input_cost_per_token"]), float(row["output_cost_per_token"]))
    return None


@cache
def _listed() -> dict[str, Any]:
    found = importlib.util.find_spec("litellm")
    places = found.submodule_search_locations if found is not None else None
    file = Path(next(iter(places or ("",))), _LIST)
    listed = json.loads(file.read_bytes()) if file.is_file() else {}
    return listed if isinstance(listed, dict) else {}
