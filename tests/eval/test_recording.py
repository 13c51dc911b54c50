"""Recording and replaying whole trials: modes, retries, tools, the network, and both ways to replay a chat."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from chatflow_eval import loader
from chatflow_eval.cassette import Cassette, Exchange, existing, read, write
from chatflow_eval.outcome import Outcome, collect, key_of
from chatflow_eval.retries import CallLimits
from chatflow_eval.scenario import Scenario, Turn
from chatflow_eval.tape import ReplayTape
from chatflow_eval.testing import Reply, ScriptedServer
from chatflow_eval.trace import Hop, ModelStep, ToolStep, TurnTrace, WarningStep
from chatflow_eval.trial import Mode, Trial, plan
from chatflow_runtime import Agent, tool
from chatflow_runtime.engine import Engine
from chatflow_runtime.types import Handoff

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def _no_keys_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def answer(body: dict[str, Any]) -> Reply:
    """Triage hands over, Billing answers what was said last."""
    system, *_, last = body["messages"]
    if "Welcome" in system["content"]:
        return Reply(calls=(("transfer_to_billing", {"reason": "money"}),))
    return Reply(text=f"About {last['content']}")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(answer) as running:
        yield running


class Swarm:
    """Builds the agents under test; their instructions can be edited between runs."""

    def __init__(self, *tools: Callable[..., object], engine: Engine | None = None) -> None:
        self.triage, self.billing = "Welcome the user.", "Handle refunds."
        self.tools, self.engine = tools, engine

    def __call__(self) -> Agent:
        billing = Agent("Billing", self.billing, tools=list(self.tools), engine=self.engine)
        triage = Agent("Triage", self.triage, handoffs=[billing], engine=self.engine)
        billing.add_handoff(triage)
        return triage


def scenario(target: Callable[[], Any], url: str, *users: str, **more: Any) -> Scenario:
    turns = [Turn(user, expect={"ends_at": "Billing"}) for user in users or ("refund", "thanks")]
    settings = {"api_base": url, "temperature": 0}
    given: dict[str, Any] = {"id": "x", "turns": turns, "models": ("openai/m",), "settings": settings}
    return Scenario(target=target, **given | more)


def run(root: Path, *scenarios: Scenario, mode: Mode = "none", calls: CallLimits | None = None, **options: Any) -> Any:
    outcomes = collect(plan(scenarios, root=root, mode=mode, calls=calls, **options))
    return outcomes[0] if len(outcomes) == 1 else sorted(outcomes, key=lambda outcome: outcome.repeat)


def cassette_of(root: Path) -> Path:
    (path,) = root.rglob("cassettes/**/*.json")
    return path


def steps(outcome: Outcome) -> list[TurnTrace]:
    assert outcome.trace is not None, outcome.why
    return list(outcome.trace.turns)


def told(outcome: Outcome) -> list[Any]:
    """What happened, without how long it took."""
    return [
        (turn.user, turn.reply, turn.agents, turn.failure, [_timeless(step) for step in turn.steps])
        for turn in steps(outcome)
    ]


def _timeless(step: Any) -> Any:
    return {name: getattr(step, name) for name in step.__dataclass_fields__ if name != "seconds"}


# Modes.


def test_once_records_where_nothing_was_and_replays_from_then_on(server: ScriptedServer, tmp_path: Path) -> None:
    asked = scenario(Swarm(), server.url)
    first, second = (run(tmp_path, asked, mode="once") for _ in range(2))
    assert [(each.status, each.replayed) for each in (first, second)] == [("passed", False), ("passed", True)]
    assert told(first) == told(second)
    assert len(server.requests) == 3


def test_once_does_not_go_live_for_what_an_edit_made_stale(server: ScriptedServer, tmp_path: Path) -> None:
    swarm = Swarm()
    run(tmp_path, scenario(swarm, server.url), mode="once")
    swarm.triage = "Welcome the customer."
    outcome = run(tmp_path, scenario(swarm, server.url), mode="once")
    assert outcome.failure.exception == "CassetteMismatch"
    assert len(server.requests) == 3


def test_new_episodes_replays_up_to_the_edit_and_goes_live_from_there(server: ScriptedServer, tmp_path: Path) -> None:
    """What the edit does not show in stays replayed: Triage's first answer costs nothing."""
    swarm = Swarm()
    run(tmp_path, scenario(swarm, server.url), mode="all")
    before = read(cassette_of(tmp_path))
    swarm.tools = (refund,)
    outcome = run(tmp_path, scenario(swarm, server.url), mode="new_episodes")
    assert outcome.status == "passed"
    assert len(server.requests) == 3 + 2
    assert outcome.replayed is False
    assert outcome.parted is not None
    assert (outcome.parted.turn, outcome.parted.agent, outcome.parted.hop) == (1, "Billing", 1)
    assert outcome.parted.route == ("Triage", "Billing")
    assert str(outcome.parted) == f"turn 1, at Triage -> Billing (hop 1): {outcome.parted.why}"
    assert outcome.parted.why == "agent Billing: tools: not recorded, now 'refund'"
    after = read(cassette_of(tmp_path))
    assert after.exchanges[0] == before.exchanges[0]
    assert len(after.exchanges) == 3
    again = run(tmp_path, scenario(swarm, server.url))
    assert told(again) == told(outcome)
    assert (again.replayed, again.parted) == (True, None)


@tool
def refund(amount: int) -> str:
    """Refunds."""
    return f"refunded {amount}"


def test_new_episodes_that_ask_nothing_new_need_neither_model_nor_key(server: ScriptedServer, tmp_path: Path) -> None:
    asked = scenario(Swarm(), server.url)
    run(tmp_path, asked, mode="all")
    before = cassette_of(tmp_path).read_bytes()
    outcome = run(tmp_path, asked, mode="new_episodes")
    assert (outcome.status, outcome.replayed, outcome.parted) == ("passed", True, None)
    assert len(server.requests) == 3
    assert cassette_of(tmp_path).read_bytes() == before


def test_new_episodes_keep_the_old_recording_when_the_run_errs(tmp_path: Path) -> None:
    swarm = Swarm()
    with ScriptedServer(answer) as server:
        run(tmp_path, scenario(swarm, server.url), mode="all")
        url = server.url
    before = cassette_of(tmp_path).read_bytes()
    swarm.billing = "Handle refunds and charges."
    outcome = run(tmp_path, scenario(swarm, url), mode="new_episodes", calls=CallLimits(retries=0))
    assert outcome.status == "errored"
    assert outcome.failure.kind == "network" or outcome.failure.status_code
    assert cassette_of(tmp_path).read_bytes() == before


def test_a_damaged_recording_is_an_error_in_every_mode_that_reads_it(server: ScriptedServer, tmp_path: Path) -> None:
    asked = scenario(Swarm(), server.url)
    run(tmp_path, asked, mode="all")
    path = cassette_of(tmp_path)
    path.write_text(path.read_text(encoding="utf-8")[:-100], encoding="utf-8")
    cut = path.read_bytes()
    for mode in ("none", "once", "new_episodes"):
        outcome = run(tmp_path, asked, mode=mode)
        assert (outcome.failure.kind, outcome.failure.exception) == ("cassette", "CassetteDamaged"), mode
    assert path.read_bytes() == cut
    assert run(tmp_path, asked, mode="all").status == "passed"


def test_what_an_expected_exception_ended_is_recorded_too(tmp_path: Path) -> None:
    limited = Turn("hi", expect={"error": "RateLimitError"})
    with ScriptedServer(lambda _: Reply(status=429, body="{}", headers={"Retry-After": "0"})) as server:
        asked = scenario(Swarm(), server.url, turns=[limited])
        assert run(tmp_path, asked, mode="all").status == "passed"
        assert len(server.requests) == 3
    assert [exchange.status for exchange in read(cassette_of(tmp_path)).exchanges] == [429]
    assert run(tmp_path, asked).status == "passed"


# Misses are never dressed up.


class Client:
    """A model's client of the user's own, which makes of every failure an answer."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def answer(self, request: Any) -> Any:
        from chatflow_runtime.engine import Answer

        try:
            async with httpx.AsyncClient() as client:
                found = await client.post(f"{self.url}/chat/completions", json=request.projection())
            return Answer(text=found.json()["choices"][0]["message"]["content"])
        except Exception:
            return Answer(text="I am sorry.")


def test_a_client_that_swallows_a_miss_does_not_hide_it(server: ScriptedServer, tmp_path: Path) -> None:
    swarm = Swarm(engine=Client(server.url))
    swarm.triage = "Greet the user."
    turn = Turn("hi", expect={"stay": True})
    run(tmp_path, scenario(swarm, server.url, turns=[turn], models=()), mode="all")
    swarm.triage = "Greet the customer."
    outcome = run(tmp_path, scenario(swarm, server.url, turns=[turn], models=()))
    assert outcome.status == "errored"
    assert (outcome.failure.kind, outcome.failure.exception) == ("cassette", "CassetteMismatch")
    assert "recorded 'Greet the user.', now 'Greet the customer.'" in outcome.why


def test_what_may_differ_is_ignored_and_said(server: ScriptedServer, tmp_path: Path) -> None:
    swarm = Swarm()
    rules = [r"\d{4}-\d\d-\d\d", {"in": "messages[0].content", "matches": "never there"}]
    swarm.billing = "Handle refunds. Today is 2026-11-30."
    assert run(tmp_path, scenario(swarm, server.url, ignore=rules), mode="all").ignored == ()
    swarm.billing = "Handle refunds. Today is 2027-01-01."
    outcome = run(tmp_path, scenario(swarm, server.url, ignore=rules))
    assert (outcome.status, outcome.ignored) == ("passed", (r"\d{4}-\d\d-\d\d",))
    assert run(tmp_path, scenario(swarm, server.url)).failure.kind == "cassette"


# Repeats.


def test_each_repeat_replays_its_own_recording(tmp_path: Path) -> None:
    replies = [Reply(text=f"answer {number}") for number in range(3)]
    turn = Turn("hi", expect={"stay": True})
    with ScriptedServer(replies) as server:
        asked = scenario(Swarm(), server.url, turns=[turn])
        recorded = run(tmp_path, asked, mode="all", repeats=3)
    for _ in range(2):
        replayed = run(tmp_path, asked, repeats=3)
        assert [steps(one)[0].reply for one in replayed] == [steps(one)[0].reply for one in recorded]
    (*_, extra) = run(tmp_path, asked, repeats=4)
    assert extra.failure.exception == "CassetteMissing"
    assert "--repeats 4" in extra.why


# Retries and timeouts.


def failing(*replies: Reply) -> Callable[[dict[str, Any]], Reply]:
    waiting = list(replies)
    return lambda body: waiting.pop(0) if waiting else answer(body)


NOW = {"Retry-After": "0"}


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=429, body="{}", headers=NOW),
        Reply(status=500, body="no", headers=NOW),
        Reply(status=529, body="{}", headers=NOW),
        Reply(body="", headers=NOW),
    ],
)
def test_what_may_pass_is_retried_told_and_no_step_of_the_routing(tmp_path: Path, reply: Reply) -> None:
    asked_twice = [reply, reply]
    with ScriptedServer(failing(*asked_twice)) as server:
        asked = scenario(Swarm(), server.url)
        outcome = run(tmp_path, asked, mode="all", calls=CallLimits(retries=2))
        assert len(server.requests) == 5
    assert outcome.status == "passed", outcome.why
    warnings = [step for step in steps(outcome)[0].steps if isinstance(step, WarningStep)]
    assert [(step.agent, step.message.partition(":")[0]) for step in warnings] == [
        ("Triage", "attempt 1 of 3"),
        ("Triage", "attempt 2 of 3"),
    ]
    assert len([step for turn in steps(outcome) for step in turn.steps if isinstance(step, ModelStep)]) == 3
    replayed = run(tmp_path, asked)
    assert replayed.status == "passed"
    assert not [step for turn in steps(replayed) for step in turn.steps if isinstance(step, WarningStep)]


def test_no_retries_are_one_call(tmp_path: Path) -> None:
    """B138."""
    with ScriptedServer(lambda _: Reply(status=429, body="{}", headers={"Retry-After": "86400"})) as server:
        outcome = run(tmp_path, scenario(Swarm(), server.url), mode="live", calls=CallLimits(retries=0))
        assert len(server.requests) == 1
    assert (outcome.status, outcome.failure.status_code) == ("errored", 429)


def test_other_trials_are_not_affected_and_an_error_is_no_wrong_route(tmp_path: Path) -> None:
    def sometimes(body: dict[str, Any]) -> Reply:
        return Reply(status=400, body="{}") if "bad" in str(body) else answer(body)

    with ScriptedServer(sometimes) as server:
        good = scenario(Swarm(), server.url, id="good")
        bad = scenario(Swarm(), server.url, "something bad", id="bad")
        outcomes = {one.scenario: one.status for one in collect(plan([good, bad], root=tmp_path, mode="all"))}
    assert outcomes == {"good": "passed", "bad": "errored"}
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["good"]


def test_a_call_that_takes_too_long_is_a_timeout(tmp_path: Path) -> None:
    """B146."""
    from chatflow_runtime import litellm_engine

    litellm_engine.load()
    with ScriptedServer(answer, latency=5) as server:
        outcome = run(tmp_path, scenario(Swarm(), server.url), mode="live", calls=CallLimits(retries=0, timeout=0.2))
    assert (outcome.status, outcome.failure.kind, outcome.failed_turn) == ("errored", "timeout", 1)


# What tools return.


class Shop:
    """Tools with a back end that is there while recording and gone afterwards."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def tools(self) -> tuple[Callable[..., object], ...]:
        def stock(item: str) -> dict[str, object]:
            """How many there are."""
            self.calls.append(item)
            if item == "none":
                raise LookupError("sold out")
            return {"item": item, "left": len(self.calls)}

        def upgrade(context: dict[str, object]) -> str:
            """Makes the customer a better one."""
            self.calls.append("upgrade")
            context["tier"] = "gold"
            context.pop("trial", None)
            return "done"

        def give_back() -> Handoff:
            """Back to the desk."""
            self.calls.append("give_back")
            return Handoff("Triage", "done here", {"by": "tool"})

        return (stock, upgrade, give_back)


SHOPPING: list[Any] = [
    {"transfer": "Billing"},
    {"call": {"stock": {"item": "pen"}}},
    {"call": {"stock": {"item": "pen"}}},
    {"call": {"stock": {"item": "none"}}},
    {"call": {"stock": {"what": "pen"}}},
    {"call": "upgrade"},
    {"call": "give_back"},
    {"say": "Bye."},
]


def shopping(shop: Shop, script: Sequence[Any] = SHOPPING, **more: Any) -> Scenario:
    turn = Turn("hi", script=script, expect={"calls": "stock"})
    context = {"trial": True}
    return Scenario(id="x", turns=[turn], target=Swarm(*shop.tools()), context=context, record_tools=True, **more)


def test_what_tools_did_is_replayed_without_them(tmp_path: Path) -> None:
    """Results, exceptions, wishes to hand off, and what became of the session's context."""
    shop = Shop()
    recorded = run(tmp_path, shopping(shop), mode="all", models=())
    assert recorded.status == "passed", recorded.why
    assert shop.calls == ["pen", "pen", "none", "upgrade", "give_back"]
    replayed = run(tmp_path, shopping(shop))
    assert replayed.status == "passed", replayed.why
    assert len(shop.calls) == 5, "nothing was called"
    assert told(replayed) == told(recorded)
    (turn,) = steps(replayed)
    assert turn.context == {"tier": "gold", "by": "tool"}
    results = [step.result for step in turn.steps if isinstance(step, ToolStep) and step.tool == "stock"]
    assert results[:2] == [{"item": "pen", "left": 1}, {"item": "pen", "left": 2}]
    assert "LookupError: sold out" in str(results[2])
    assert [hop.target for hop in turn.accepted] == ["Billing", "Triage"]


def test_a_tool_that_was_not_recorded_is_an_error_and_not_called(tmp_path: Path) -> None:
    shop = Shop()
    run(tmp_path, shopping(shop), mode="all")
    called = len(shop.calls)
    other: list[Any] = [*SHOPPING[:1], {"call": {"stock": {"item": "ink"}}}, {"say": "Bye."}]
    outcome = run(tmp_path, shopping(shop, other))
    assert outcome.status == "errored"
    assert outcome.failure.kind == "cassette"
    assert "tool stock: stale: arguments.item: recorded 'pen', now 'ink'" in outcome.why
    assert len(shop.calls) == called


def test_a_recording_without_what_tools_return_is_no_recording_of_them(server: ScriptedServer, tmp_path: Path) -> None:
    shop = Shop()
    run(tmp_path, scenario(Swarm(*shop.tools()), server.url), mode="all")
    turn = Turn("hi", script=SHOPPING, expect={"calls": "stock"})
    asked = scenario(Swarm(*shop.tools()), server.url, turns=[turn], record_tools=True)
    outcome = run(tmp_path, asked)
    assert "recorded without what tools return (`record_tools`)" in outcome.why
    assert shop.calls == []


def test_tools_are_called_by_default(tmp_path: Path) -> None:
    shop = Shop()
    asked = shopping(shop).model_copy(update={"record_tools": False})
    run(tmp_path, asked, mode="all")
    run(tmp_path, asked)
    assert len(shop.calls) == 10


def test_what_a_recorded_tool_asks_of_others_is_not_recorded(server: ScriptedServer, tmp_path: Path) -> None:
    def look_up() -> str:
        """Asks a service."""
        message = {"role": "user", "content": "x"}
        body = {"model": "m", "messages": [{"role": "system", "content": "-"}, message]}
        return str(httpx.post(f"{server.url}/chat/completions", json=body).json()["model"])

    def asked(**more: Any) -> Scenario:
        script: list[Any] = [{"transfer": "Billing"}, {"call": "look_up"}, {"say": "ok"}]
        turn = Turn("hi", script=script, expect={"calls": {"tool": "look_up"}})
        return Scenario(id="x", turns=[turn], target=Swarm(look_up), **more)

    assert run(tmp_path, asked(record_tools=True), mode="all").status == "passed"
    assert read(cassette_of(tmp_path)).exchanges == ()
    assert run(tmp_path, asked(record_tools=True)).status == "passed"
    assert len(server.requests) == 1
    assert run(tmp_path, asked(), mode="all").status == "passed"
    assert len(read(cassette_of(tmp_path)).exchanges) == 1
    assert run(tmp_path, asked()).status == "passed"
    assert len(server.requests) == 2


# The network.


def test_a_tool_that_connects_in_replay_fails_the_trial_and_is_told_where(
    server: ScriptedServer, tmp_path: Path
) -> None:
    """B089: also where the tool makes do without an answer."""

    def phone_home() -> str:
        """Calls."""
        import socket

        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=5):
                return "connected"
        except Exception:
            return "no connection"

    def asked(**more: Any) -> Scenario:
        turn = Turn("hi", script=[{"transfer": "Billing"}, {"call": "phone_home"}, {"say": "ok"}], expect="none")
        return Scenario(id="x", turns=[turn], target=Swarm(phone_home), **more)

    outcome = run(tmp_path, asked())
    assert outcome.status == "errored"
    assert (outcome.failure.kind, outcome.failure.exception) == ("cassette", "NetworkRefused")
    assert "turn 1" in outcome.why
    assert "test_recording.py:" in outcome.why
    assert "in phone_home connects to 127.0.0.1" in outcome.why
    (turn,) = steps(run(tmp_path, asked(allow_hosts=["localhost"])))
    assert [step.result for step in turn.steps if isinstance(step, ToolStep)] == ["connected"]
    (turn,) = steps(run(tmp_path, asked(), mode="live"))
    assert [step.result for step in turn.steps if isinstance(step, ToolStep)] == ["connected"]


def test_a_factory_that_connects_in_replay_is_refused(server: ScriptedServer, tmp_path: Path) -> None:
    def build() -> Agent:
        httpx.get(server.url)
        return Agent("A")

    def quietly() -> Agent:
        with suppress(Exception):
            httpx.get(server.url)
        return Agent("A")

    turn = Turn("hi", script=[{"say": "ok"}], expect="none")
    for target in (build, quietly):
        outcome = run(tmp_path, Scenario(id="x", turns=[turn], target=target))
        assert outcome.status == "errored"
        assert "connects to 127.0.0.1" in outcome.why


# Both ways to replay a chat say the same.


def replayed_both_ways(trials: Sequence[Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    fast = {one.key: one for one in collect(trials)}
    with monkeypatch.context() as patch:
        patch.setattr(ReplayTape, "only_chat", False)
        slow = {one.key: one for one in collect(trials)}
    assert fast.keys() == slow.keys()
    for key, one in fast.items():
        other = slow[key]
        assert (one.status, one.why) == (other.status, other.why), key
        assert one.replayed
        assert told(one) == told(other), key


SHIPPED = [
    trial for trial in plan(loader.load([ROOT / "scenarios"], ROOT), root=ROOT) if existing(trial.cassette).exists()
]


@pytest.mark.skipif(not SHIPPED, reason="no recordings are shipped")
def test_the_shipped_recordings_say_the_same_with_and_without_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({key_of(trial) for trial in SHIPPED}) == len(SHIPPED)
    replayed_both_ways(SHIPPED, monkeypatch)


def completion(message: Any, **more: Any) -> str:
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]} | more)


def called(arguments: Any, **more: Any) -> Any:
    function = {"name": "transfer_to_billing", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function} | more],
    }


ODD = {
    "text": completion({"role": "assistant", "content": "hi"}),
    "usage": completion({"content": "hi"}, usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}),
    "call": completion(called('{"reason": "x"}')),
    "no arguments": completion(called("")),
    "null arguments": completion(called(None)),
    "arguments as an object": completion(called({"reason": "x"})),
    "broken arguments": completion(called('{"reason": ')),
    "unknown tool": completion(called("{}", function={"name": "nobody", "arguments": "{}"})),
    "text and call": completion({**called("{}"), "content": "One moment."}),
    "blank text and call": completion({**called("{}"), "content": "  "}),
    "a call twice with one id": completion(
        {"role": "assistant", "content": None, "tool_calls": called("{}")["tool_calls"] * 2}
    ),
    "non-ASCII": completion({"role": "assistant", "content": "grüß dich 🚀"}),
    "no calls in the list": completion({"role": "assistant", "content": "hi", "tool_calls": []}),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_answers_are_the_same_with_and_without_a_client(
    tmp_path: Path, odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B048, B050, B051, B055."""
    replies = [Reply(body=odd), Reply(text="Done."), Reply(text="Done.")]
    turn = Turn("hi", expect="none")
    with ScriptedServer(replies) as server:
        asked = scenario(Swarm(), server.url, turns=[turn])
        assert run(tmp_path, asked, mode="all").status in ("passed", "failed")
    replayed_both_ways(plan([asked], root=tmp_path), monkeypatch)


def test_a_recording_with_a_failed_attempt_in_it_replays_without_a_client_or_a_pause(tmp_path: Path) -> None:
    """As vcrpy alone would have recorded it."""
    swarm = Swarm()
    with ScriptedServer(answer) as server:
        asked = scenario(swarm, server.url)
        run(tmp_path, asked, mode="all")
    path = cassette_of(tmp_path)
    first, *others = read(path).exchanges
    failed = Exchange(method="POST", uri=first.uri, body=first.body, status=429, answer="{}")
    write(Cassette(path, (failed, first, *others)))
    outcome = run(tmp_path, asked)
    assert outcome.status == "passed"
    assert [step for step in steps(outcome)[0].steps if isinstance(step, Hop)]
