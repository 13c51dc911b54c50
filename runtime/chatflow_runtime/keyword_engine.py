"""A router that needs no model: BM25 over the transfer tools and the user's words. The baseline."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from chatflow_runtime.engine import Answer, ModelRequest, ToolSchema
from chatflow_runtime.handoffs import introduce
from chatflow_runtime.naming import PREFIX
from chatflow_runtime.types import AssistantMessage, Message, ToolCall, ToolResult, UserMessage

_K1 = 1.2
_B = 0.75

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ENDINGS = ("ing", "ed", "s")
_STOP_TEXT = """
a about above after again against all also am an and any are as at be because been before being below between both
but by can cannot could did do does doing don down during each few for from further had has have having he her here
hers him his how i if in into is it its itself just me more most my myself no nor not now of off on once only or
other our ours out over own s same she should so some such t than that the their theirs them then there these they
this those through to too under until up very was we were what when where which while who whom why will with would
you your yours yourself d ll m re ve hello hi help like need please thank thanks want
"""
_STOP_WORDS = frozenset(_STOP_TEXT.split())


class KeywordEngine:
    """Hands off to the peer whose name and description fit the user's last message best, and else stays.

    It stays when nothing fits, when the current agent fits as well and when a transfer was refused, and never goes to
    an agent who had the conversation since the user spoke. What came back from a call is its text. BM25 with the idf
    of Lucene; English stop words and endings.
    """

    async def answer(self, request: ModelRequest) -> Answer:
        """One transfer, or a short text that claims nothing."""
        turn = _since_user(request.history)
        tool = _best(request, turn)
        if tool is None:
            return Answer(_came_back(request, turn) or f"[keyword router] {request.agent} keeps this conversation.")
        made = sum(len(message.tool_calls) for message in request.history if isinstance(message, AssistantMessage))
        reason = json.dumps({"reason": "best keyword match"})
        return Answer(None, (ToolCall(f"call_{made + 1}", tool.name, reason),))


def _best(request: ModelRequest, turn: Sequence[Message]) -> ToolSchema | None:
    peers = [tool for tool in request.tools if tool.target is not None]
    words = frozenset(_words(_user_text(turn)))
    was_refused = any(isinstance(message, ToolResult) and message.is_error for message in turn)
    if not peers or not words or was_refused:
        return None
    own = _own_words(request.agent, request.instructions, tuple(tool.target or "" for tool in peers))
    offered = [_peer_words(tool.target or "", tool.name, tool.description) for tool in peers]
    scores = _scores(words, [own, *offered])
    visited = {request.agent, *(message.agent for message in turn if isinstance(message, AssistantMessage))}
    called = {call.name for message in turn for call in message.tool_calls}
    fits = [
        (score, tool)
        for score, tool in zip(scores[1:], peers, strict=True)
        if tool.target not in visited and tool.name not in called
    ]
    score, tool = max(fits, key=lambda fit: fit[0], default=(0.0, None))
    return tool if score > scores[0] else None


def _came_back(request: ModelRequest, turn: Sequence[Message]) -> str | None:
    """What the last agent that was called in this turn said."""
    last = turn[-1] if turn else None
    if not isinstance(last, ToolResult) or last.is_error or not isinstance(last.content, str):
        return None
    return last.content if any(tool.name == last.name and tool.target is not None for tool in request.tools) else None


def _scores(words: Iterable[str], documents: Sequence[Mapping[str, int]]) -> list[float]:
    lengths = [sum(document.values()) for document in documents]
    average = sum(lengths) / len(lengths) or 1.0
    totals = [0.0] * len(documents)
    for word in sorted(words):  # sums of floats depend on their order, and sets have none
        holders = sum(word in document for document in documents)
        rarity = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
        for index, document in enumerate(documents):
            if count := document.get(word, 0):
                norm = _K1 * (1 - _B + _B * lengths[index] / average)
                totals[index] += rarity * count * (_K1 + 1) / (count + norm)
    return totals


@lru_cache(maxsize=1024)
def _peer_words(target: str, tool: str, description: str) -> Mapping[str, int]:
    # What every description starts with says nothing about the agent, nor does a tool name made of the agent's.
    specialty = description.removeprefix(introduce(target)).removeprefix(" Target agent specialty:")
    given_name = "" if tool.startswith(PREFIX) else tool
    return Counter(_words(f"{target} {given_name} {specialty}"))


@lru_cache(maxsize=1024)
def _own_words(name: str, instructions: str, peers: tuple[str, ...]) -> Mapping[str, int]:
    # A sentence that names a peer tells what the peer is for, not what this agent does itself.
    sentences = re.split(r"(?<=[.!?;\n])\s+", instructions)
    about = [text for text in sentences if not any(peer.casefold() in text.casefold() for peer in peers)]
    return Counter(_words(" ".join([name, *about])))


def _words(text: str) -> Iterator[str]:
    for word in _WORD.findall(_HUMP.sub(" ", text)):
        lower = word.casefold()
        if lower not in _STOP_WORDS:
            yield _stem(lower)


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _since_user(history: Sequence[Message]) -> Sequence[Message]:
    for index in range(len(history) - 1, -1, -1):
        if isinstance(history[index], UserMessage):
            return history[index:]
    return history


def _user_text(turn: Sequence[Message]) -> str:
    return turn[0].text if turn and isinstance(turn[0], UserMessage) else ""
