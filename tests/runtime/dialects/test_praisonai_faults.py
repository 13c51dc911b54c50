"""The faults seen in the published second system, none of which is here: one test each, named by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from chatflow_runtime.dialects.praisonai import (
    Agent,
    Handoff,
    HandoffConfig,
    HandoffCycleError,
    HandoffInputData,
    HandoffNotAllowedError,
    HandoffResult,
    HandoffTimeoutError,
    HandoffValidationError,
    TypedHandoff,
    handoff,
    handoff_filters,
    parallel_handoffs,
)
from chatflow_runtime.engine import Answer, Call, ModelRequest, Scripted, ScriptedEngine, Settings, Transfer, using
from chatflow_runtime.events import HandoffAccepted, HandoffRefused, HandoffReturned, ToolCalled
from chatflow_runtime.exceptions import DefinitionError, EmptyResponseError
from chatflow_runtime.naming import is_tool_name
from chatflow_runtime.runner import Runner
from chatflow_runtime.tools import tool
from chatflow_runtime.types import Json, LimitReached, ToolResult, UserMessage

Converse = Callable[..., Any]


class Task(BaseModel):
    priority: int
    description: str


class Slow:
    """A model that answers each agent when it may, and counts how many it answers at once."""

    def __init__(self, *, ends: bool = True) -> None:
        self.requests: list[ModelRequest] = []
        self.most = self._inside = 0
        self._ends = ends

    async def answer(self, request: ModelRequest) -> Answer:
        self.requests.append(request)
        self._inside += 1
        self.most = max(self.most, self._inside)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            if not self._ends:
                await asyncio.Event().wait()
        finally:
            self._inside -= 1
        return Answer(f"{request.agent} answered")


def team(*, config: HandoffConfig | None = None) -> tuple[Agent, Agent]:
    """A, and B that it hands off to."""
    b = Agent("B", "Know all about boats.")
    return Agent("A", "Route.", handoffs=[Handoff(b, config=config)]), b


ran: list[str] = []


@tool
def danger() -> str:
    """Do something that cannot be undone."""
    ran.append("danger")
    return "done"


@tool
def shared() -> str:
    """Do something that both may."""
    ran.append("shared")
    return "done"


@pytest.mark.parametrize(
    ("options", "source_tools", "runs"),
    [
        ({}, [shared], ["shared"]),
        ({"blocked_tools": ["danger"]}, [shared, danger], ["shared"]),
        ({"tool_policy_mode": "passthrough", "blocked_tools": ["danger"]}, [], ["shared"]),
        ({"tool_policy_mode": "passthrough"}, [], ["danger", "shared"]),
    ],
)
@pytest.mark.parametrize("by_program", [False, True])
def test_pr_01_the_tool_boundary_holds_when_a_tool_is_executed(
    converse: Converse, options: dict[str, Any], source_tools: list[Any], runs: list[str], by_program: bool
) -> None:
    """B101: the model calls what it was not offered."""
    b = Agent("B", tools=[danger, shared])
    a = Agent("A", tools=source_tools, handoffs=[handoff(b, **options)])
    ran.clear()
    answers: list[Scripted] = [[Call("danger"), Call("shared")], "B answered."]
    if by_program:
        with using(ScriptedEngine(answers)):
            assert a.handoff_to(b, "hi").success
        assert ran == runs
        return
    said = converse(a, Transfer("B"), *answers, "A answered.")
    assert ran == runs
    withheld = tuple(sorted({"danger", "shared"} - set(runs)))
    assert [event.withheld for event in said.told(HandoffAccepted)] == [withheld]
    assert [each.name for each in said.asked("B")[0].tools] == runs
    assert [event.known for event in said.told(ToolCalled)] == ["danger" in runs, True]
    if withheld:
        refused = said.asked("B")[1].history[-2]
        assert (refused.is_error, refused.content.split(".")[0]) == (
            True,
            "Error: tool 'danger' is withheld in this call",
        )


@pytest.mark.parametrize("failure", [RuntimeError("HTTP 500"), Answer(), EmptyResponseError("nothing")])
def test_pr_02_a_target_that_fails_is_never_a_success(converse: Converse, failure: Any) -> None:
    a, b = team()
    said = converse(a, Transfer("B"), failure, "B cannot be reached.")
    (result,) = said.results
    assert result.is_error
    assert result.content.startswith("Error: the handoff to 'B' failed: ")
    assert said.told(HandoffReturned)[0].error
    with using(ScriptedEngine([failure])):
        outcome = a.handoff_to(b, "hi")
    assert (outcome.success, outcome.response, outcome.outcome.status) == (False, "", "failure")


def test_pr_03_callbacks_of_every_arity_are_called_and_async_ones_awaited(converse: Converse) -> None:
    calls: list[tuple[object, ...]] = []

    async def later(from_agent: Agent, to_agent: Agent, context: HandoffInputData) -> None:
        await asyncio.sleep(0)
        calls.append((from_agent.name, to_agent.name, context.context))

    b = Agent("B")
    callbacks: list[Any] = [
        lambda: calls.append(()),
        lambda source: calls.append((source.name,)),
        lambda source, data: calls.append((source.name, data)),
        lambda source, target, context: calls.append((source.name, target.name, context.context)),
        lambda *values: calls.append(tuple(type(value).__name__ for value in values)),
        later,
    ]
    for callback in callbacks:
        converse(Agent("A", handoffs=[handoff(b, on_handoff=callback)]), Transfer("B", "boats"), "B.", "A.")
    data = {"reason": "boats"}
    assert calls == [
        (),
        ("A",),
        ("A", data),
        ("A", "B", data),
        ("Agent", "Agent", "HandoffInputData"),
        ("A", "B", data),
    ]


def test_pr_03_a_callback_that_raises_stops_its_handoff(converse: Converse) -> None:
    def fail(source: Agent) -> None:
        raise ValueError("closed")

    b = Agent("B")
    said = converse(Agent("A", handoffs=[handoff(b, on_handoff=fail)]), Transfer("B"), "Not now.")
    (refusal,) = said.told(HandoffRefused)
    assert (refusal.why, refusal.kind) == ("callback_failed", "call")
    assert said.results[0].content == "The handoff to 'B' was stopped: on_handoff failed: ValueError: closed"
    assert said.response.handoffs == ()


def test_pr_04_a_models_typed_handoff_has_a_schema_is_validated_and_carries_its_data(converse: Converse) -> None:
    data: list[object] = []
    b = Agent("B")
    a = Agent("A", handoffs=[TypedHandoff(b, Task, on_handoff=lambda source, task: data.append(task))])
    given: dict[str, Json] = {"priority": 1, "description": "The database is down."}
    said = converse(a, Call("transfer_to_b", given), "B.", "A.", text="Help!")
    (offered,) = said.requests[0].tools
    assert offered.parameters["required"] == ["priority", "description"]
    assert data == [Task(priority=1, description="The database is down.")]
    question, payload = said.asked("B")[0].history
    assert question == UserMessage("Help!")
    assert '"description": "The database is down."' in payload.text


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "null",
        "[]",
        '"x"',
        "12",
        "{}",
        '{"priority": ',
        '{"priority": "high", "description": "x"}',
        '{"priority": 1}',
    ],
)
def test_pr_04_a_payload_that_does_not_fit_is_an_error_result(converse: Converse, arguments: str) -> None:
    """B034: no callback, no hop."""
    b = Agent("B")
    a = Agent("A", handoffs=[TypedHandoff(b, Task, on_handoff=lambda: pytest.fail("called"))])
    said = converse(a, Call("transfer_to_b", arguments), "Sorry.")
    (refusal,) = said.told(HandoffRefused)
    assert (refusal.why, refusal.target) == ("invalid_arguments", "B")
    assert said.results[0].is_error
    assert said.response.handoffs == ()


@pytest.mark.parametrize("make", [Handoff, lambda b: TypedHandoff(b, Task)])
async def test_pr_05_no_source_sees_another_ones_context(make: Callable[[Agent], Handoff]) -> None:
    b, engine = Agent("B"), Slow()
    sources = [Agent(name, handoffs=[make(b)]) for name in ("S1", "S2", "S3")]
    for source in sources:
        source.chat_history = [{"role": "user", "content": f"secret of {source.name}"}]
    with using(engine):
        task = {"priority": 1, "description": "x"}
        results = await asyncio.gather(*(each.handoff_to_async(b, f"from {each.name}", task) for each in sources))
    assert [result.success for result in results] == [True] * 3
    assert b.chat_history == []
    for source, request in zip(sources, engine.requests, strict=True):
        assert [f"secret of {each.name}" in str(request.history) for each in sources] == [
            each is source for each in sources
        ]


@pytest.mark.parametrize("way", ["model", "program", "async program"])
def test_pr_06_timeouts_hold_on_every_path(converse: Converse, way: str) -> None:
    """B146."""
    b = Agent("B", engine=Slow(ends=False))
    a = Agent("A", handoffs=[handoff(b, timeout_seconds=0.01)])
    if way == "model":
        said = converse(a, Transfer("B"), "B is slow.")
        assert "took longer than 0.01 s" in said.results[0].content
        assert said.results[0].is_error
        return
    result = a.handoff_to(b, "hi") if way == "program" else asyncio.run(a.handoff_to_async(b, "hi"))
    assert (result.outcome.status, result.outcome.is_retryable()) == ("timeout", True)
    with pytest.raises(HandoffTimeoutError) as error:
        result.raise_for_error()
    assert (error.value.is_retryable, error.value.timeout_seconds) == (True, 0.01)


async def test_pr_06_a_timeout_is_the_handoffs_own() -> None:
    """A target whose model timed out has failed, in no time of the handoff's."""
    b = Agent("B", engine=ScriptedEngine([TimeoutError("the provider's")]))
    result = await Agent("A", handoffs=[b]).handoff_to_async(b, "hi")
    assert (result.outcome.status, result.outcome.is_retryable()) == ("failure", False)


@pytest.mark.parametrize("way", ["declared", "config"])
async def test_pr_07_max_concurrent_holds_for_programs(way: str) -> None:
    engine, config = Slow(), HandoffConfig(max_concurrent=1)
    a, b = team(config=config if way == "declared" else None)
    given = None if way == "declared" else config
    with using(engine):
        results = await asyncio.gather(*(a.handoff_to_async(b, "hi", config=given) for _ in range(4)))
    assert (engine.most, [result.success for result in results]) == (1, [True] * 4)


async def test_pr_07_max_concurrent_holds_for_models() -> None:
    engine = Slow()
    a, _ = team(config=HandoffConfig(max_concurrent=2))
    runner = Runner(a, models={"B": engine, "A": Handing()})
    await asyncio.gather(*(runner.run_async(str(number), "hi") for number in range(6)))
    assert engine.most == 2


class Handing:
    """A model that hands off to B and then says what came back."""

    async def answer(self, request: ModelRequest) -> Answer:
        engine = ScriptedEngine([Transfer("B") if isinstance(request.history[-1], UserMessage) else "Done."])
        return await engine.answer(request)


def test_pr_08_handoffs_assigned_later_take_effect(converse: Converse) -> None:
    a, b = team()
    c = Agent("C")
    a.handoffs = [handoff(c, max_concurrent=1)]
    assert a.handoffs == (c,)
    said = converse(a, Transfer("C"), "C.", "A.")
    assert [each.name for each in said.requests[0].tools] == ["transfer_to_c"]
    a.handoffs = []
    assert converse(a, "Hello.").requests[0].tools == ()
    with pytest.raises(DefinitionError):
        a.handoffs = [b, "C"]  # type: ignore[list-item]
    assert a.handoffs == ()


async def test_pr_09_parallel_handoffs_take_any_config() -> None:
    a, b = team()
    engine = Slow()
    with using(engine):
        results = await parallel_handoffs(a, [(b, "one"), (b, "two")], config=HandoffConfig())
    assert [result.success for result in results] == [True, True]


def test_pr_10_an_agent_never_calls_itself(converse: Converse) -> None:
    a = Agent("A")
    with pytest.raises(DefinitionError, match="cannot hand off to itself"):
        a.handoffs = [a]
    error = a.handoff_to(a, "hi").exception
    assert isinstance(error, HandoffCycleError)
    assert error.cycle_path == ["A", "A"]


def test_pr_10_a_cycle_is_refused_with_its_whole_path(converse: Converse) -> None:
    a, b = team()
    c = Agent("C", handoffs=[a, b])
    b.handoffs = [c]
    said = converse(a, Transfer("B"), Transfer("C"), [Transfer("A"), Transfer("B")], "C.", "B.", "A.")
    assert [(each.why, each.target, each.message) for each in said.told(HandoffRefused)] == [
        ("cycle", "A", "Handoff cycle: A -> B -> C -> A."),
        ("cycle", "B", "Handoff cycle: A -> B -> C -> B."),
    ]
    assert said.response.content == "A."


def test_pr_10_another_agent_of_the_same_name_is_no_cycle() -> None:
    a, other = Agent("A"), Agent("A", "Another one.")
    with using(ScriptedEngine(["Yes?"])):
        assert a.handoff_to(other, "hi").response == "Yes?"


def test_pr_11_a_target_remembers_its_own_conversation_and_no_handoff() -> None:
    a, b = team()
    with using(ScriptedEngine(["I am B."])):
        b.chat("Who are you?")
    own = list(b.chat_history)
    engine = ScriptedEngine([Transfer("B"), "B1", "A1", Transfer("B"), "B2", "A2", "Still B."])
    with using(engine):
        a.chat("turn one")
        assert b.chat_history == own
        a.chat("turn two")
        assert b.chat_history == own
        b.chat("And now?")
    asked = [request.history for request in engine.requests if request.agent == "B"]
    texts = [[message.text for message in history if not isinstance(message, ToolResult)] for history in asked]
    assert texts == [["turn one"], ["A1", "turn two"], ["Who are you?", "I am B.", "And now?"]]


@pytest.mark.parametrize("name", ["Billing-Agent", "日本語", "a.b/c", "  x  ", "x" * 100, "2nd line"])
def test_pr_12_every_name_gives_a_tool_that_providers_take(converse: Converse, name: str) -> None:
    said = converse(Agent("A", handoffs=[Agent(name)]), Transfer(name), "B.", "A.")
    assert all(is_tool_name(each.name) for each in said.requests[0].tools)
    assert [each.target for each in said.told(HandoffAccepted)] == [name]


@pytest.mark.parametrize("name", ["2nd line", "escalate to manager", "", "x" * 65])
def test_pr_12_a_name_that_some_provider_refuses_is_refused_at_once(name: str) -> None:
    """B006."""
    with pytest.raises(DefinitionError, match="the tool name"):
        handoff(Agent("B"), tool_name_override=name)


def test_pr_13_names_that_meet_lead_each_to_its_own_agent(converse: Converse) -> None:
    first, second = Agent("Billing Agent"), Agent("Billing-Agent")
    said = converse(Agent("A", handoffs=[first, second]), Transfer("Billing-Agent"), "B.", "A.")
    assert [each.name for each in said.requests[0].tools] == [
        "transfer_to_billing_agent",
        "transfer_to_billing_agent_2",
    ]
    assert [each.target for each in said.told(HandoffAccepted)] == ["Billing-Agent"]


def test_pr_13_a_tool_named_like_a_handoff_is_refused() -> None:
    """B009."""

    def transfer_to_b() -> None: ...

    with pytest.raises(DefinitionError, match="two tools named 'transfer_to_b'"):
        Agent("A", tools=[transfer_to_b], handoffs=[Agent("B")])


@pytest.mark.parametrize("arguments", ["", "null", "[1]", '"s"', "12", "{bad", '{"extra": 1}'])
def test_pr_14_whatever_the_arguments_an_untyped_handoff_happens(converse: Converse, arguments: str) -> None:
    """B050."""
    a, _ = team()
    said = converse(a, Call("transfer_to_b", arguments), "B.", "A.")
    assert [each.target_agent_name for each in said.response.handoffs] == ["B"]


def test_pr_15_keeping_no_message_keeps_none(converse: Converse) -> None:
    b = Agent("B")
    options: list[dict[str, Any]] = [
        {"input_filter": handoff_filters.keep_last_n_messages(0)},
        {"config": HandoffConfig(context_policy="last_n", max_context_messages=0)},
    ]
    for option in options:
        a = Agent("A", handoffs=[handoff(b, **option)])
        said = converse(a, Transfer("B"), "B.", "A.", text="token-17")
        again = said.runner.replace(engine=(engine := ScriptedEngine([Transfer("B"), "B.", "A."])))
        again.run("s", "token-18")
        assert engine.requests[1].history == (UserMessage("token-18"),)


def test_pr_16_without_a_context_and_a_task_the_target_still_has_something_to_do(converse: Converse) -> None:
    b = Agent("B")
    a = Agent("A", handoffs=[handoff(b, context_policy="none")])
    said = converse(a, Transfer("B"), "B did.", "A.", text="Paint the boat.")
    assert said.asked("B")[0].history == (UserMessage("Paint the boat."),)
    assert said.results[0].content == "B did."
    said = converse(a, Call("transfer_to_b", {"task": "Sand it first."}), "B did.", "A.", text="Paint the boat.")
    assert said.asked("B")[0].history == (UserMessage("Sand it first."),)


def test_pr_17_an_outcome_goes_by_the_kind_of_its_error_not_by_its_words() -> None:
    result = HandoffResult(False, error="idle-timeout policy violation")
    assert (result.outcome.status, result.outcome.is_retryable()) == ("failure", False)
    a, b = team()
    with using(ScriptedEngine([RuntimeError("the request timed out")])):
        result = a.handoff_to(b, "hi")
    assert (result.outcome.status, result.outcome.is_retryable()) == ("failure", False)


def test_pr_18_a_limit_that_one_turn_hit_is_not_anothers(converse: Converse) -> None:
    b = Agent("B", tools=[shared])
    a = Agent("A", handoffs=[handoff(b, tool_policy_mode="passthrough")])
    runner = Runner(a, max_tool_iterations=2)
    script: list[Scripted] = [Transfer("B"), Call("shared"), Call("shared"), Transfer("B"), "B.", "A."]
    with using(ScriptedEngine(script)):
        first, second = runner.run("one", "hi"), runner.run("two", "hi")
    assert first.limit_hits == (LimitReached("max_tool_iterations", 2, "B"),)
    assert (second.limit_hits, second.content) == ((), "A.")


def test_pr_19_settings_of_the_model_hold_for_targets_too(converse: Converse) -> None:
    a, _ = team()
    settings = Settings(api_base="http://127.0.0.1:1/v1")
    said = converse(a, Transfer("B"), "B.", "A.", settings=settings)
    assert [request.settings for request in said.requests] == [settings] * 3


def test_pr_20_the_users_message_is_sent_once(converse: Converse) -> None:
    """B043."""
    c = Agent("C")
    b = Agent("B", handoffs=[c])
    said = converse(Agent("A", handoffs=[b]), Transfer("B"), Transfer("C"), "C.", "B.", "A.", text="token-17")
    assert [str(request.projection()).count("token-17") for request in said.requests] == [1] * 5


def test_pr_21_a_timeout_leaves_nothing_behind() -> None:
    b = Agent("B", engine=Slow(ends=False))
    a = Agent("A", handoffs=[handoff(b, timeout_seconds=0.01)])
    assert not a.handoff_to(b, "forget me").success
    assert (a.chat_history, b.chat_history) == ([], [])


def test_pr_22_nothing_is_asked_on_the_terminal(converse: Converse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    a, _ = team()
    script = [line for _ in range(20) for line in (Transfer("B"), "The same.")]
    said = converse(a, *script, "A.", max_handoffs_per_turn=20, max_tool_iterations=20)
    assert len(said.response.handoffs) == 20


@pytest.mark.parametrize("target", ["Billing", None, 7])
def test_pr_23_what_is_no_agent_is_refused(target: Any) -> None:
    for make in (lambda: Agent("A", handoffs=[target]), lambda: handoff(target), lambda: Handoff(target)):
        with pytest.raises(DefinitionError, match="expected an Agent"):
            make()


@pytest.mark.parametrize("name", ["", "  ", None])
def test_pr_23_an_agent_has_a_name(name: Any) -> None:
    with pytest.raises(DefinitionError, match="expected some text"):
        Agent(name=name)


@pytest.mark.parametrize("way", ["model", "program", "parallel"])
def test_pr_24_allowed_agents_hold_on_every_path(converse: Converse, way: str) -> None:
    """B035: source and target the right way round, then who is allowed."""
    config = HandoffConfig(allowed_agents=["Tech"], on_handoff=lambda: pytest.fail("called"))
    a, b = team(config=config)
    text = "Agent 'A' may not hand off to 'B'. Allowed: 'Tech'."
    if way == "model":
        said = converse(a, Transfer("B"), "Sorry.")
        assert [(each.why, each.message) for each in said.told(HandoffRefused)] == [("not_allowed", text)]
        return
    other = Agent("Other")
    result = (
        other.handoff_to(b, "hi", config=config)
        if way == "program"
        else asyncio.run(parallel_handoffs(other, [(b, "hi")], config=config))[0]
    )
    assert isinstance(result.exception, HandoffNotAllowedError)
    assert result.error == text.replace("'A'", "'Other'")


def test_pr_24_an_empty_list_allows_nobody() -> None:
    a, b = team(config=HandoffConfig(allowed_agents=[]))
    assert a.handoff_to(b, "hi").error == "Agent 'A' may not hand off to 'B'. Allowed: nobody."


def test_the_programs_payload_is_validated_too() -> None:
    """PR-4: a text is no way round the schema."""
    b = Agent("B")
    a = Agent("A", handoffs=[TypedHandoff(b, Task)])
    for config in (None, HandoffConfig()):
        error = a.handoff_to(b, "Just do it.", config=config).exception
        assert isinstance(error, HandoffValidationError)
        assert error.context["validation_errors"] == ["The payload lacks 'priority', expected integer."]
    engine = ScriptedEngine(["Done."])
    with using(engine):
        assert a.handoff_to(b, "Do it.", Task(priority=1, description="x")).success
    assert engine.requests[0].history == (
        UserMessage('Do it.\n\nPayload:\n{\n  "priority": 1,\n  "description": "x"\n}'),
    )
