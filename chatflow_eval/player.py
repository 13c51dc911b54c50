"""What a replaying client is answered from a cassette: the exchange it asks for, or why there is none."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chatflow_eval.cassette import Cassette, Exchange, ToolExchange, shown
from chatflow_eval.errors import CassetteMismatch
from chatflow_eval.matching import Matcher, first_difference
from chatflow_runtime.types import Json

RETRIED = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses after which clients ask again."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a replaying client asks for: an HTTP request, or a chat request before any client saw it (`uri` empty)."""

    body: Json
    method: str = "POST"
    uri: str = ""
    agent: str | None = None
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class AskedTool:
    """A call of a domain tool that is to be answered from the recording."""

    agent: str
    turn: int | None
    tool: str
    arguments: Json


@dataclass(slots=True)
class _Waiting:
    """The recordings of one request that were not replayed yet, in the order recorded."""

    recorded: int = 0
    indices: deque[int] = field(default_factory=deque)

    def add(self, index: int) -> None:
        self.recorded += 1
        self.indices.append(index)


@dataclass(slots=True)
class Player:
    """Replays one cassette for one trial: each exchange once, identical requests in the order recorded.

    Finding an exchange costs the same however many there are. Threads of one trial may share a player.
    """

    cassette: Cassette
    rerecord: str
    """The command that records this trial again, for messages."""
    matcher: Matcher = field(default_factory=Matcher)
    exchanges: tuple[Exchange, ...] = ()
    """The cassette's, without attempts that were repeated with success."""
    played: list[Exchange] = field(default_factory=list)
    """In the order replayed."""
    played_tools: list[ToolExchange] = field(default_factory=list)
    _done: set[int] = field(default_factory=set)
    _http: dict[str, _Waiting] = field(default_factory=dict)
    _chat: dict[str, dict[str, _Waiting]] = field(default_factory=dict)
    """By body without model, and by model. Filled when first asked for, as nearly no trial asks both ways."""
    _tools: dict[str, _Waiting] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.exchanges = without_retried(self.cassette.exchanges)

    @property
    def only_chat(self) -> bool:
        """True when every exchange can be replayed from a chat request alone."""
        return all(exchange.is_chat for exchange in self.exchanges)

    @property
    def unplayed(self) -> int:
        """How many recorded exchanges nobody has asked for."""
        return len(self.exchanges) - len(self.played)

    def play(self, asked: Asked) -> Exchange:
        """The next exchange recorded for this HTTP request.

        Raises:
            CassetteMismatch: nothing (more) was recorded for it.
        """
        with self._lock:
            if not self._http:
                for index, exchange in enumerate(self.exchanges):
                    key = self.matcher.http_key(exchange.method, exchange.uri, exchange.body)
                    self._http.setdefault(key, _Waiting()).add(index)
            return self._next(self._http.get(self.matcher.http_key(asked.method, asked.uri, asked.body)), asked)

    def play_chat(self, asked: Asked) -> Exchange:
        """The next exchange recorded for this canonical chat request, whatever URL it went to.

        Raises:
            CassetteMismatch: nothing (more) was recorded for it.
        """
        with self._lock:
            if not self._chat:
                for index, exchange in enumerate(self.exchanges):
                    if exchange.is_chat:
                        models = self._chat.setdefault(self.matcher.body_key(_without_model(exchange.body)), {})
                        models.setdefault(_model(exchange.body), _Waiting()).add(index)
            models = self._chat.get(self.matcher.body_key(_without_model(asked.body)), {})
            names = (name for name in _names_sent(_model(asked.body)) if name in models)
            return self._next(next((models[name] for name in names), None), asked)

    def play_tool(self, asked: AskedTool) -> ToolExchange:
        """What the tool answered to the next recorded call of the same agent with these arguments.

        Raises:
            CassetteMismatch: nothing (more) was recorded for it.
        """
        recorded = self.cassette.tools
        where = f"{shown(self.cassette.path)}; record again with: {self.rerecord}"
        by = f"agent {asked.agent}, turn {asked.turn or 'unknown'}: tool {asked.tool}"
        if recorded is None:
            raise CassetteMismatch(f"{by}: recorded without what tools return (`record_tools`); in {where}")
        with self._lock:
            if not self._tools:
                for index, tool in enumerate(recorded):
                    self._tools.setdefault(self._tool_key(tool), _Waiting()).add(index)
            waiting = self._tools.get(self._tool_key(asked))
            if waiting is not None and waiting.indices:
                found = recorded[waiting.indices.popleft()]
                self.played_tools.append(found)
                return found
        if waiting is not None:
            problem = f"recorded {waiting.recorded}, asked {waiting.recorded + 1}"
            raise CassetteMismatch(f"{by}: {problem}; in {where}")
        same = next((tool for tool in recorded if (tool.agent, tool.tool) == (asked.agent, asked.tool)), None)
        if same is None:
            difference = "not recorded"
        else:
            given = self.matcher.comparable(asked.arguments)
            difference = first_difference(self.matcher.comparable(same.arguments), given, "arguments") or "not recorded"
        edit = f"agent {asked.agent}: tool {asked.tool}: {difference}"
        raise CassetteMismatch(f"{by}: stale: {difference}; in {where}", edit=edit)

    def _tool_key(self, tool: ToolExchange | AskedTool) -> str:
        return f"{tool.agent} {tool.tool} {self.matcher.body_key(tool.arguments)}"

    def _next(self, waiting: _Waiting | None, asked: Asked) -> Exchange:
        while waiting is not None and waiting.indices:
            index = waiting.indices.popleft()
            if index not in self._done:
                self._done.add(index)
                self.played.append(self.exchanges[index])
                return self.exchanges[index]
        raise self._explained(asked, recorded=waiting.recorded if waiting is not None else 0)

    def _explained(self, asked: Asked, *, recorded: int) -> CassetteMismatch:
        agent, turn = asked.agent or "unknown", asked.turn or "unknown"
        edit = None
        nearest = self._nearest(asked)
        if recorded:
            problem = f"recorded {recorded}, asked {recorded + 1}"
        elif nearest is None:
            problem = f"all {len(self.exchanges)} recorded exchanges were replayed already"
        else:
            difference = self._difference(nearest, asked)
            edit = f"agent {agent}: {difference}"
            problem = f"stale: {difference}"
        where = f"{shown(self.cassette.path)}; record again with: {self.rerecord}"
        return CassetteMismatch(f"agent {agent}, turn {turn}: {problem}; in {where}", edit=edit)

    def _nearest(self, asked: Asked) -> Exchange | None:
        """The exchange that was most likely meant: of the same agent in the same turn, to the same address, or next."""
        waiting = [exchange for index, exchange in enumerate(self.exchanges) if index not in self._done]
        return max(waiting, key=lambda exchange: self._likeness(exchange, asked), default=None)

    def _likeness(self, exchange: Exchange, asked: Asked) -> tuple[bool, bool]:
        here = not asked.uri or self._place(exchange.method, exchange.uri) == self._place(asked.method, asked.uri)
        return here, (exchange.agent, exchange.turn) == (asked.agent, asked.turn)

    def _difference(self, nearest: Exchange, asked: Asked) -> str:
        if asked.uri:
            old, new = self._place(nearest.method, nearest.uri), self._place(asked.method, asked.uri)
            if old != new:
                return f"recorded {old}, now {new}"
        recorded_body, asked_body = nearest.body, asked.body
        if _model(recorded_body) in _names_sent(_model(asked_body)):
            recorded_body, asked_body = _without_model(recorded_body), _without_model(asked_body)
        difference = first_difference(self.matcher.comparable(recorded_body), self.matcher.comparable(asked_body))
        return difference or "the same request in another order than recorded"

    def _place(self, method: str, uri: str) -> str:
        return f"{method.upper()} {self.matcher.address(uri)}"


def without_retried(exchanges: Sequence[Exchange]) -> tuple[Exchange, ...]:
    """The exchanges without failed attempts that were then repeated: retries are no steps of a conversation.

    An answer to a tool that was an error, and was asked for again when the model had heard of it, stays.
    """
    return tuple(
        exchange
        for index, exchange in enumerate(exchanges)
        if not (_has_failed(exchange) and _is_repeated(exchange, exchanges[index + 1 :]))
    )


def _has_failed(exchange: Exchange) -> bool:
    if exchange.status in RETRIED:
        return True
    answer = exchange.answer
    # Gateways say 200 before they know, and then send nothing, half of it, or an error.
    if not isinstance(answer, str) or (answer.endswith("}") and '"error"' not in answer) or not is_model_call(exchange):
        return False
    try:
        parsed = json.loads(answer)
    except ValueError:
        return "json" in exchange.content_type or not answer.strip()
    return isinstance(parsed, dict) and bool(parsed.get("error")) and "choices" not in parsed


def _is_repeated(exchange: Exchange, later: Iterable[Exchange]) -> bool:
    for other in later:
        if (other.method, other.uri, other.body) == (exchange.method, exchange.uri, exchange.body):
            return True
        if is_model_call(other) and not is_model_call(exchange):
            return False
    return False


def is_model_call(exchange: Exchange) -> bool:
    """Whether a model was asked, by what providers call the fields of such requests."""
    body = exchange.body
    return isinstance(body, dict) and bool(body.keys() & {"messages", "contents", "input", "prompt"})


def _model(body: Json) -> str:
    return str(body.get("model")) if isinstance(body, dict) else ""


def _names_sent(model: str) -> tuple[str, ...]:
    """What a model may be called when it is asked: litellm strips the provider, `openai/x` goes out as `x`."""
    parts = model.split("/")
    return tuple("/".join(parts[start:]) for start in range(len(parts)))


def _without_model(body: Json) -> Json:
    return {key: value for key, value in body.items() if key != "model"} if isinstance(body, dict) else body
