"""A service that answers chat turns over HTTP and says who answered, as a target; docs/targets.md has the contract."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from chatflow_eval import scrub
from chatflow_eval.errors import CassetteError, TargetError
from chatflow_eval.incidents import history_faults
from chatflow_eval.matching import Ignore
from chatflow_eval.player import Asked
from chatflow_eval.recorder import interception
from chatflow_eval.retries import persist
from chatflow_eval.scenario import RequestPart, ScriptedAnswer, Service, ServiceAgents, variable_of
from chatflow_eval.tape import ReplayTape, Tape, engine_asking
from chatflow_eval.targets import Conversation, Opening, failures
from chatflow_eval.targets.answers import (
    Answer,
    Heard,
    MalformedAnswerError,
    ServiceError,
    read,
    refuse_status,
)
from chatflow_eval.targets.certificates import certificates
from chatflow_eval.targets.courses import Course
from chatflow_eval.trace import (
    Edge,
    Failure,
    ModelStep,
    Step,
    Topology,
    TurnTrace,
    WarningStep,
)
from chatflow_runtime.types import Json, encodable_json

if TYPE_CHECKING:
    import httpx

UNKNOWN = "unknown"
"""What an agent or a model is called that nobody has named."""

DEFAULT_MODEL = "default"
"""The model that a request of format `openai` asks for, where no scenario names one."""

_SESSION = "chatflow-eval-"
"""How the ids of sessions begin."""

_SETTINGS = frozenset({"temperature", "top_p", "seed", "max_tokens"})
"""The settings that stand in a request of format `openai`."""


@dataclass(frozen=True, slots=True)
class ServiceTarget:
    """A service that answers chat turns; each conversation is a session of its own there."""

    spec: Service
    name: str = "http"

    @property
    def varies(self) -> tuple[Ignore, ...]:
        """The session's id."""
        return (Ignore(rf"{_SESSION}[0-9a-f]+", self.spec.request.get("session", "session")),)

    def topology(self) -> Topology:
        return topology(self.spec)

    @contextlib.asynccontextmanager
    async def open(self, opening: Opening) -> AsyncIterator[Conversation]:
        request = _request(self.spec, opening)
        scrub.declare(self.spec.variables)
        recording = opening.tape is not None and not isinstance(opening.tape, ReplayTape)
        with interception() if recording else contextlib.nullcontext():
            async with contextlib.AsyncExitStack() as stack:
                line = _Line(self.spec, opening, stack)
                yield ServiceConversation(self.spec, line, request, context=_plain(opening.context))


def topology(declared: ServiceAgents) -> Topology:
    """What is declared of a service's agents."""
    return Topology(
        start=declared.start,
        agents=declared.names,
        tools={agent.name: agent.tools for agent in declared.agents} if declared.tools() is not None else {},
        edges=tuple(
            Edge(source=agent.name, target=handoff.agent, tool=handoff.tool_name, kind=handoff.kind)
            for agent in declared.agents
            for handoff in agent.handoffs
        ),
    )


@dataclass(slots=True)
class ServiceConversation:
    """One session with a service, told as traces."""

    spec: Service
    line: _Line
    request: dict[str, Json]
    """What every request holds, the session's id aside."""
    context: dict[str, Json]
    session: str = field(default_factory=lambda: f"{_SESSION}{uuid.uuid4().hex}")
    messages: list[dict[str, Json]] = field(default_factory=list)
    """Of format `openai`: the conversation so far."""
    turn: int = 0
    active: str | None = None
    """Who has the conversation; `None`: nobody has said."""
    first: str | None = None
    """Who had it when it began."""
    told: ServiceAgents | None = None
    """Whom the service says to have, where the file does not."""

    def __post_init__(self) -> None:
        self.active = self.first = self.spec.start or None

    @property
    def declared(self) -> ServiceAgents:
        """What is known of the service's agents."""
        return self.told or self.spec

    @property
    def topology(self) -> Topology:
        return replace(topology(self.declared), start=self.declared.start or self.first or UNKNOWN)

    async def say(
        self, text: str, *, script: Sequence[ScriptedAnswer] | None = None, within: float | None = None
    ) -> TurnTrace:
        if script is not None:
            raise TargetError(f"{self.spec.http} answers by itself: a turn with a service takes no `script`")
        self.turn += 1
        who = self.active or UNKNOWN
        if (tape := self.line.tape) is not None:
            tape.agent, tape.turn = self.active, self.turn
        body = self._body(text)
        steps: list[Step] = []
        if self.spec.format == "openai":
            steps += history_faults(body, who)
        turn = TurnTrace(user=text, start_agent=who, end_agent=who, context=self._shown_context())
        began = time.perf_counter()
        try:
            async with asyncio.timeout(within):
                heard = await self.line.ask(body, lambda tried: steps.append(WarningStep(agent=who, message=tried)))
            answer = read(heard, self.spec)
            course = Course.of(answer, self._starting(answer), self._agents_told(answer))
        except TargetError:
            raise
        except Exception as error:
            seconds = time.perf_counter() - began
            return replace(turn, steps=tuple(steps), failure=_failure(error, tape), seconds=seconds)
        seconds = time.perf_counter() - began
        self._go_on(answer, text, course)
        steps += course.told(answer, self.topology)
        steps.append(
            ModelStep(
                agent=course.end,
                model=answer.model or str(body.get("model", UNKNOWN)),
                text=answer.reply,
                input_tokens=answer.usage.input_tokens,
                output_tokens=answer.usage.output_tokens,
                seconds=seconds,
            )
        )
        return replace(
            turn,
            start_agent=course.start,
            end_agent=course.end,
            reply=answer.reply,
            steps=tuple(steps),
            context=self._shown_context(),
            seconds=seconds,
        )

    def _shown_context(self) -> dict[str, Json]:
        shown = scrub.scrub_json(self.context)
        assert isinstance(shown, dict)
        return shown

    def _body(self, text: str) -> dict[str, Json]:
        said: dict[RequestPart, Json] = {"session": self.session}
        if self.spec.format == "json":
            said |= {"turn": self.turn, "message": text, "context": self.context}
            body: dict[str, Json] = {}
        else:
            body = {**self.request, "messages": [*self.messages, {"role": "user", "content": text}]}
            if self.context:
                said["context"] = self.context
        for part, value in said.items():
            _put(body, self.spec.request.get(part, part).split("."), value)
        plain = encodable_json(body)
        assert isinstance(plain, dict)
        return plain

    def _starting(self, answer: Answer) -> str | None:
        """Who has the conversation when the turn begins, as far as that is known from elsewhere than the turn."""
        told = answer.topology.start if answer.topology is not None and not self.spec.agents else ""
        return self.active or told or None

    def _agents_told(self, answer: Answer) -> list[str]:
        """Warnings of what the answer says of the service's agents, where it contradicts the file."""
        warnings = list(answer.unread)
        if answer.topology is not None and self.spec.agents and _graph(answer.topology) != _graph(self.spec):
            told = ", ".join(answer.topology.names) or "none"
            warnings.append(f"the service says that its agents are {told}, with other handoffs or names than declared")
        return warnings

    def _go_on(self, answer: Answer, text: str, course: Course) -> None:
        """The state of the conversation after a turn that was answered."""
        if answer.topology is not None and not self.spec.agents:
            self.told = answer.topology
        self.first = self.first or course.start
        self.active = course.end
        self.context = answer.context if answer.context is not None else self.context
        named: dict[str, Json] = {"name": answer.name} if answer.name is not None else {}
        self.messages.append({"role": "user", "content": text})
        self.messages.append({"role": "assistant", **named, "content": answer.reply})


def _graph(agents: ServiceAgents) -> tuple[set[str], set[tuple[str, str]]]:
    return set(agents.names), {(agent.name, handoff.agent) for agent in agents.agents for handoff in agent.handoffs}


def _request(spec: Service, opening: Opening) -> dict[str, Json]:
    """What the scenario says of the model and its settings, as fields of every request.

    Raises:
        TargetError: it says something that a service cannot heed.
    """
    if limits := [name for name, value in opening.limits if value is not None]:
        raise TargetError(f"{spec.http}: a service has limits of its own; leave out {', '.join(limits)}")
    settings = {name: value for name, value in opening.settings if value is not None}
    if refused := [name for name in settings if spec.format == "json" or name not in _SETTINGS]:
        instead = f"sends none but {', '.join(sorted(_SETTINGS))}" if spec.format == "openai" else "sends no settings"
        raise TargetError(f"{spec.http}: format `{spec.format}` {instead}; leave out {', '.join(refused)}")
    models = dict(opening.models)
    if "keyword" in models.values():
        raise TargetError(f"{spec.http}: the keyword router cannot stand in for the agents of a service")
    if models and (spec.format == "json" or models.keys() != {"*"}):
        what = "no model" if spec.format == "json" else "one model for all agents"
        named = ", ".join(models.values())
        raise TargetError(f"{spec.http}: format `{spec.format}` sends {what}; leave out the model {named}")
    return {} if spec.format == "json" else {"model": models.get("*", DEFAULT_MODEL), **settings}


def _plain(context: Any) -> dict[str, Json]:
    try:
        plain: dict[str, Json] = json.loads(json.dumps(dict(context), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TargetError(f"the scenario's `context` cannot be sent to a service: {error}") from None
    return plain


def _put(body: dict[str, Json], keys: Sequence[str], value: Json) -> None:
    *way, last = keys
    for key in way:
        inner = body.setdefault(key, {})
        assert isinstance(inner, dict)
        body = inner
    body[last] = value


@dataclass(slots=True)
class _Line:
    """What one conversation's requests go over: its recording, or its own connections to the service."""

    spec: Service
    opening: Opening
    stack: contextlib.AsyncExitStack
    """Closes the connections."""
    client: httpx.AsyncClient | None = None

    @property
    def tape(self) -> Tape | None:
        return self.opening.tape

    async def ask(self, body: dict[str, Json], tell: Callable[[str], None]) -> Heard:
        """The answer to one request: the recorded one, else the service's, asked again where that may help.

        Raises:
            CassetteError: it was not recorded.
            TargetError: an environment variable that a header is made of is not set.
            ServiceError: the service refused the request.
        """
        uri = address(self.spec.http)
        parts = urlsplit(uri)
        tape = self.tape
        if tape is not None and not tape.lets_out(parts.hostname or "", parts.port):
            found = tape.replay(Asked(body, uri=uri, agent=tape.agent, turn=tape.turn))
            if found is not None:
                headers = {**dict(found.headers), "content-type": found.content_type}
                return Heard(found.status, found.reason, headers, found.answer)
        client = self.client or await self._connected()
        with engine_asking():
            return await persist(lambda: _post(client, uri, body), self.opening.calls, tell=tell)

    async def _connected(self) -> httpx.AsyncClient:
        import httpx

        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        headers |= {name: _from_environment(name, value) for name, value in self.spec.headers.items()}
        # How long a call may take is counted around it.
        client = httpx.AsyncClient(headers=headers, timeout=None, verify=certificates())
        self.client = await self.stack.enter_async_context(client)
        return self.client


async def _post(client: httpx.AsyncClient, uri: str, body: dict[str, Json]) -> Heard:
    import httpx

    try:
        response = await client.post(uri, content=json.dumps(body), follow_redirects=False)
    except httpx.InvalidURL as error:
        raise TargetError(f"{uri} is no address: {error}") from None
    except (httpx.DecodingError, zlib.error) as error:
        raise MalformedAnswerError(f"the answer is not encoded as it says: {error}") from None
    headers = {name.lower(): value for name, value in response.headers.items()}
    heard = Heard(response.status_code, response.reason_phrase, headers, response.content)
    refuse_status(heard)
    return heard


def address(http: str) -> str:
    """The service's address as HTTP clients write it, which is how recordings have it."""
    parts = urlsplit(http)
    host = (parts.hostname or "").lower()
    with contextlib.suppress(UnicodeError):
        host = host if host.isascii() else host.encode("idna").decode()
    host = f"[{host}]" if ":" in host else host
    standard = {"http": 80, "https": 443}[parts.scheme]
    port = "" if parts.port in (None, standard) else f":{parts.port}"
    path = quote(_without_dots(parts.path or "/"), safe="/%:@!$&'()*+,;=~-._")
    return f"{parts.scheme}://{host}{port}{path}"


def _without_dots(path: str) -> str:
    """The path that one with `.` and `..` in it leads to (RFC 3986, 5.2.4)."""
    *way, last = path.split("/")
    kept: list[str] = []
    for part in (*way, *((last, "") if last in (".", "..") else (last,))):
        if part == ".." and len(kept) > 1:
            kept.pop()
        elif part not in (".", ".."):
            kept.append(part)
    return "/".join(kept)


def _from_environment(header: str, template: str) -> str:
    name = variable_of(template)
    value = os.environ.get(name)
    if not value:
        raise TargetError(f"the header {header} is made of ${name}, and no environment variable of that name is set")
    if not re.fullmatch(r"[\x20-\x7e]+", value) or value != value.strip():
        raise TargetError(f"the header {header} is made of ${name}, whose value holds what no header takes")
    return template[: template.index("$")] + value


def _failure(error: Exception, tape: Tape | None) -> Failure:
    """What ended a turn."""
    if failures.missed_on(tape) is not None or isinstance(error, CassetteError):
        return failures.failure_of(error, tape)
    name, message = type(error).__name__, scrub.scrub_text(str(error))
    match error:
        case ServiceError():
            code = error.status_code
            return Failure(kind=error.kind, exception=scrub.scrub_text(error.name), message=message, status_code=code)
        case MalformedAnswerError():
            return Failure(kind="model", exception=name, message=message)
        case TimeoutError():
            return Failure(kind="timeout", exception=name, message="no answer in the time that was given")
    if "TransportError" in (kind.__name__ for kind in type(error).__mro__):
        trust = "; SSL_CERT_FILE names the certificates to trust" if "CERTIFICATE_VERIFY_FAILED" in message else ""
        return Failure(
            kind="network", exception=name, message=f"the service cannot be reached: {message or name}{trust}"
        )
    return failures.failure_of(error, tape)
