"""Talking to a swarm from a test: one conversation, turn by turn, recorded or replayed like a scenario's trial."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chatflow_eval import guard
from chatflow_eval.cassette import Origin, path_for
from chatflow_eval.recorder import keeping, renew
from chatflow_eval.scenario import (
    REFERENCE,
    Factory,
    Framework,
    Limits,
    ScriptedAnswer,
    Service,
    SettingsSpec,
    TargetSpec,
    Turn,
)
from chatflow_eval.tape import ForkingTape, LiveTape, RecordingTape, Reel, ReplayTape, failure_of, open_tape, playing
from chatflow_eval.targets import Conversation, Opening, Target, target_of
from chatflow_eval.trace import Trace, TurnTrace
from chatflow_eval.trial import Mode


@dataclass(slots=True)
class Talk:
    """One conversation with a swarm; `say` waits for the turn, `say_async` is for tests that run in a loop."""

    target: Target
    opening: Opening
    turns: list[TurnTrace] = field(default_factory=list)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _conversation: Conversation | None = None
    _runner: asyncio.Runner | None = None

    @property
    def trace(self) -> Trace:
        """The conversation so far."""
        if self._conversation is None:
            raise ValueError("the conversation has not begun: say something first")
        return Trace(topology=self._conversation.topology, turns=tuple(self.turns))

    @property
    def reply(self) -> str:
        """The last turn's reply."""
        return self.turns[-1].reply

    def say(self, text: str, *, script: Sequence[Any] | None = None) -> TurnTrace:
        """One user turn, with the model's answers scripted where `script` is given as in a scenario file.

        Raises:
            AssertionError: the turn ended with an exception, a missing recording included.
            RuntimeError: called inside a running event loop.
        """
        __tracebackhide__ = True
        if _loop_is_running():
            raise RuntimeError("say() cannot wait inside a running event loop: await say_async() there")
        self._runner = self._runner or asyncio.Runner()
        return _whole(self._runner.run(self._turn(text, script)))

    async def say_async(self, text: str, *, script: Sequence[Any] | None = None) -> TurnTrace:
        """`say` for a running event loop."""
        __tracebackhide__ = True
        return _whole(await self._turn(text, script))

    async def _turn(self, text: str, script: Sequence[Any] | None) -> TurnTrace:
        tape = self.opening.tape
        with playing(tape or LiveTape()):
            if self._conversation is None:
                self._stack.enter_context(keeping())
                if isinstance(tape, ReplayTape):
                    self._stack.enter_context(guard.watching())
                self._conversation = await self._stack.enter_async_context(self.target.open(self.opening))
            renew()
            turn = await self._conversation.say(text, script=_script(text, script))
        if tape is not None and tape.error is not None:
            turn = replace(turn, failure=failure_of(tape.error))
        self.turns.append(turn)
        return turn

    async def close_async(self) -> None:
        """Ends the conversation, and keeps its recording where one was made."""
        await self._stack.aclose()
        tape = self.opening.tape
        if isinstance(tape, RecordingTape | ForkingTape) and not any(turn.failure for turn in self.turns):
            tape.save()

    def close(self) -> None:
        """`close_async` for tests without a loop."""
        if self._runner is None:
            asyncio.run(self.close_async())
            return
        self._runner.run(self.close_async())
        self._runner.close()


@dataclass(slots=True)
class Conversations:
    """Opens conversations for one test, each with a recording of its own."""

    root: Path
    file: str
    name: str
    model: str | None = None
    framework: Framework | None = None
    """What agents run on unless a conversation says otherwise; `None`: the reference runtime."""
    mode: Mode = "none"
    _opened: list[Talk] = field(default_factory=list)

    def __call__(
        self,
        target: Any,
        *,
        model: str | Mapping[str, str] | None = None,
        context: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        settings: SettingsSpec | None = None,
        framework: Framework | None = None,
    ) -> Talk:
        """A fresh conversation with an Agent, a Runner, a factory, a reference (`support.py:build`), or an address."""
        chosen = model if model is not None else self.model
        label = chosen if isinstance(chosen, str) else "declared" if chosen is None else "mixed"
        name = self.name if not self._opened else f"{self.name}-{len(self._opened) + 1}"
        framework = framework or self.framework or REFERENCE
        spec = _spec(target, self.root / Path(self.file).parent)
        system = target_of(spec, framework)
        cassette = path_for(self.root, self.file, name, label, 1, framework=framework)
        opening = Opening(
            models={"*": chosen} if isinstance(chosen, str) else chosen or {},
            limits=limits or Limits(),
            settings=settings or SettingsSpec(),
            context=context or {},
            tape=self._tape(cassette, name, label, system),
        )
        talk = Talk(system, opening)
        self._opened.append(talk)
        return talk

    def close(self) -> None:
        """Ends every conversation."""
        for talk in self._opened:
            talk.close()

    def _tape(
        self, cassette: Path, name: str, model: str, target: Target
    ) -> RecordingTape | ReplayTape | ForkingTape | None:
        if self.mode == "live":
            return None
        origin = Origin(file=self.file, scenario=name, model=model, repeat=1, target=target.name)
        rerecord = f"pytest {self.file} --chatflow-record-mode all"
        return open_tape(Reel(path=cassette, origin=origin, rerecord=rerecord, ignore=target.varies), self.mode)


def name_of(
    function: str, *, classes: Sequence[str] = (), parameters: Mapping[str, Any] | None = None, mark: str = ""
) -> str:
    """What a test's recordings are called: alike on every version of pytest, and unlike any other test's of its file.

    Parameters are named in the order of the alphabet; `mark` stands for those that have no text of their own (B133).
    """
    name = ".".join((*classes, function))
    if not parameters:
        return name
    if not all(value is None or isinstance(value, str | int | float) for value in parameters.values()):
        return f"{name}[{mark}]"
    return f"{name}[{','.join(f'{key}={value}' for key, value in sorted(parameters.items()))}]"


def _whole(turn: TurnTrace) -> TurnTrace:
    __tracebackhide__ = True
    if turn.failure is not None:
        raise AssertionError(f"the turn ended with {turn.failure.exception}: {turn.failure.message}")
    return turn


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _spec(target: Any, base: Path) -> TargetSpec:
    if isinstance(target, str) and "://" in target:
        return Service(http=target)
    if isinstance(target, Service):
        return target
    if isinstance(target, str):
        return Factory(reference=target, base=base)
    return target if callable(target) else lambda: target


def _script(text: str, script: Sequence[Any] | None) -> tuple[ScriptedAnswer, ...] | None:
    return None if script is None else Turn(text, script=script).script
