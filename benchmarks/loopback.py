"""An OpenAI-compatible server in a process of its own, so that what it costs is not counted with what it serves."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

# A name that litellm has a price for, as the models that people use have: it searches long for one that it has not.
MODEL = "openai/gpt-4o-mini"

# litellm insists on a key before it sends anything.
ENVIRONMENT: Mapping[str, str] = {"OPENAI_API_KEY": "none"}


@contextlib.contextmanager
def serving(latency: float = 0.0) -> Iterator[str]:
    """Serves the scenarios of `workloads` while the block runs, each answer after `latency` seconds; gives its URL."""
    command = [sys.executable, "-P", __file__, str(latency)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        assert process.stdin is not None
        process.stdin.close()  # tells it to stop


def head(url: str) -> str:
    """The lines of a scenario file that send its agents there."""
    return f"models: {MODEL}\nsettings: {{api_base: {url}}}\n"


def _serve(latency: float) -> None:
    from chatflow_eval.testing import Reply, ScriptedServer

    def answer(body: dict[str, Any]) -> Reply:
        """A transfer to billing for the first message, words for what follows."""
        names = [tool["function"]["name"] for tool in body.get("tools", ())]
        billing = next((name for name in names if "billing" in name.lower()), None)
        if billing is not None:
            return Reply(calls=((billing, {"reason": "It is about an invoice."}),))
        return Reply(text="I have looked at the invoice; the charge was a mistake, and you get it back.")

    with ScriptedServer(answer, latency=latency) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
