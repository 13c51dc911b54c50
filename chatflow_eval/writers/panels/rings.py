"""A loop of agents as a small picture: who hands off to whom, round and round."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from chatflow_eval.writers import words

MAX_RING = 12
"""Agents of a cycle that is drawn."""

_Anchor: TypeAlias = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One agent on the ring of a loop, with its label."""

    x: float
    y: float
    label_x: float
    label_y: float
    anchor: _Anchor
    text: str
    full: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A loop as a small picture, in the coordinates of its view box; clockwise."""

    view: str
    width: int
    height: int
    nodes: tuple[Node, ...]
    arcs: tuple[str, ...]
    """Paths from each agent to the next."""
    heads: tuple[str, ...]
    """The arrows' heads: points of triangles."""
    times: str
    title: str


_GAP, _HEAD, _AWAY = 11.0, 7.0, 13.0
"""Pixels that an arc keeps from an agent, length of an arrow's head, and a label's distance from the ring."""


def draw(cycle: Sequence[str], times: int) -> Ring | None:
    """The agents of a cycle evenly on a circle, with an arrow from each to the next; of too many, nothing."""
    count = len(cycle)
    if not 2 <= count <= MAX_RING:
        return None
    radius = {2: 26.0, 3: 30.0}.get(count, 22.0 + 5.5 * count)
    first = math.pi if count == 2 else -math.pi / 2
    angles = [first + 2 * math.pi * place / count for place in range(count)]
    texts = [words.one_line(name if len(name) <= 18 else f"{name[:17]}…") for name in cycle]
    labels = [_label(angle, radius) for angle in angles]
    left = max(_wide(text) + abs(x) for text, (x, _, anchor) in zip(texts, labels, strict=True) if anchor != "start")
    right = max(_wide(text) + abs(x) for text, (x, _, anchor) in zip(texts, labels, strict=True) if anchor != "end")
    sides = max(left, right, radius + 8)
    height = radius + (10 if count == 2 else 26)
    nodes = tuple(
        Node(
            x=_round(radius * math.cos(angle)),
            y=_round(radius * math.sin(angle)),
            label_x=_round(x),
            label_y=_round(y),
            anchor=anchor,
            text=text,
            full=words.one_line(name),
        )
        for angle, (x, y, anchor), text, name in zip(angles, labels, texts, cycle, strict=True)
    )
    arcs, heads = [], []
    for angle in angles:
        start, end = angle + _GAP / radius, angle + 2 * math.pi / count - _GAP / radius
        tip, base = end + 2 / radius, end + (2 - _HEAD) / radius
        arcs.append(
            f"M{_at(radius, start)}A{_round(radius)} {_round(radius)} 0 {int(base - start > math.pi)} 1 "
            f"{_at(radius, base)}"
        )
        heads.append(f"{_at(radius, tip)} {_at(radius + _HEAD / 2, base)} {_at(radius - _HEAD / 2, base)}")
    return Ring(
        view=f"{_round(-sides)} {_round(-height)} {_round(2 * sides)} {_round(2 * height)}",
        width=round(2 * sides),
        height=round(2 * height),
        nodes=nodes,
        arcs=tuple(arcs),
        heads=tuple(heads),
        times=f"\u00d7{times}",
        title=words.one_line(f"{' to '.join((*cycle, cycle[0]))}, {times} times"),
    )


def _label(angle: float, radius: float) -> tuple[float, float, _Anchor]:
    x, y = (radius + _AWAY) * math.cos(angle), (radius + _AWAY) * math.sin(angle)
    if abs(math.cos(angle)) < 0.3:
        return x, y + (4 if y > 0 else 1), "middle"
    return x, y + 4, "start" if x > 0 else "end"


def _wide(text: str) -> float:
    """About how wide a label is, in pixels."""
    return 7.2 * sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text) + 2


def _round(value: float) -> float:
    return round(value, 1) + 0.0


def _at(radius: float, angle: float) -> str:
    return f"{_round(radius * math.cos(angle))},{_round(radius * math.sin(angle))}"
