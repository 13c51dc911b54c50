"""What ends a turn: an exception of a framework, a client or a model, sorted by whose trouble it is."""

from __future__ import annotations

import asyncio
from typing import Literal

from chatflow_eval.errors import CassetteError, CassetteMismatch
from chatflow_eval.scrub import scrub_text
from chatflow_eval.tape import Tape
from chatflow_eval.trace import Failure
from chatflow_runtime.exceptions import EmptyResponseError, ScriptError

_TIMEOUTS = ("TimeoutError", "Timeout", "APITimeoutError", "ReadTimeout", "ConnectTimeout")
_BROKEN = ("APIConnectionError", "ConnectError", "ConnectionError", "ClientConnectorError", "ServiceUnavailableError")


def missed_on(tape: Tape | None) -> CassetteError | None:
    """The first thing that could not be replayed, if any."""
    return tape.error if tape is not None else None


def ends_the_run(error: BaseException) -> bool:
    """Whether it is Ctrl-C, or somebody's giving up on this task; all else ends the turn, whatever it is made of."""
    task = asyncio.current_task()
    is_cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
    return is_cancelled or isinstance(error, KeyboardInterrupt)


def failure_of(error: BaseException, tape: Tape | None) -> Failure:
    """What ended a turn; a recording's miss counts as such however a client wrapped it."""
    missed = missed_on(tape)
    if missed is not None or isinstance(error, CassetteError):
        cause = missed or error
        edit = cause.edit if isinstance(cause, CassetteMismatch) else None
        return Failure(kind="cassette", exception=type(cause).__name__, message=str(cause), edit=edit)
    name, status = type(error).__name__, getattr(error, "status_code", None)
    kind: Literal["agent", "model", "network", "timeout", "harness"] = "agent"
    if name in _TIMEOUTS:
        kind = "timeout"
    elif name in _BROKEN:
        kind = "network"
    elif isinstance(error, ScriptError):
        kind = "harness"
    elif isinstance(status, int) or isinstance(error, EmptyResponseError):
        kind = "model"
    code = status if isinstance(status, int) else None
    message = str(error) or ("no answer in the time that was given" if kind == "timeout" else "")
    return Failure(kind=kind, exception=name, message=scrub_text(message), status_code=code)
