"""From agents' names to the names of their transfer tools."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence

PREFIX = "transfer_to_"
MAX_LENGTH = 60
"""Longest synthesized tool name, prefix and suffix included (first seed document)."""

_ROOM = MAX_LENGTH - len(PREFIX)
_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_OTHERS = re.compile(r"[^a-z0-9]+")


def is_tool_name(text: object) -> bool:
    """Whether every provider accepts `text` as a tool's name: the strictest of their rules."""
    return isinstance(text, str) and _TOOL_NAME.fullmatch(text) is not None


def clean_tool_name(text: str) -> str:
    """The nearest name that every provider accepts; a name that is one already stays as it is."""
    if is_tool_name(text):
        return text
    clean = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:64]
    if not clean.strip("_-"):
        return "unknown_tool"
    return clean if is_tool_name(clean) else f"_{clean}"[:64]


def tool_name(name: str) -> str:
    """The transfer tool's name for one agent, collisions aside."""
    return PREFIX + _own_form(name)


def tool_names(names: Sequence[str]) -> tuple[str, ...]:
    """The transfer tools' names for the peers of one agent, in order of declaration, all different.

    The first of several names with one form keeps it, the others get `_2`, `_3`, past any form that is another's own.
    """
    forms = [_own_form(name) for name in names]
    taken: set[str] = set()
    own = set(forms)
    unique = []
    for form in forms:
        chosen, number = form, 1
        while chosen in taken or (number > 1 and chosen in own):
            number += 1
            chosen = _capped(form, f"_{number}")
        taken.add(chosen)
        unique.append(PREFIX + chosen)
    return tuple(unique)


def stable_tool_name(name: str) -> str:
    """The name that version 0.3.4's rule gives, for comparison (first seed document)."""
    return PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", name.strip().lower())


def _own_form(name: str) -> str:
    folded = unicodedata.normalize("NFKD", name.strip())
    plain = _OTHERS.sub("_", folded.encode("ascii", "ignore").decode().lower()).strip("_")
    if not plain:
        return f"u{_digest(name, 12)}"
    # Łódź leaves odz, and odz may be an agent of its own: a lost letter shows in the name, a folded accent need not.
    if any(not character.isascii() and unicodedata.category(character)[0] in "LN" for character in folded):
        return _capped(plain, f"_u{_digest(name, 6)}")
    return _capped(plain, "")


def _capped(form: str, suffix: str) -> str:
    return form[: _ROOM - len(suffix)].rstrip("_") + suffix


def _digest(name: str, length: int) -> str:
    # Names may hold lone surrogates, which plain UTF-8 refuses.
    normal = unicodedata.normalize("NFC", name).encode("utf-8", "surrogatepass")
    return hashlib.sha256(normal).hexdigest()[:length]
