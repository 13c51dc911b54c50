"""How long a page takes in a headless Chromium, from the wish to open it until its trials are filtered and drawn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run")
_USABLE = """(async () => {
  const frame = () => new Promise(requestAnimationFrame);
  while (!document.body.dataset.ready) await frame();
  location.hash = "#trials&status=failed";
  while (!document.querySelector(".row")) await frame();
  await frame();
  return [performance.now(), document.getElementById("count").textContent];
})()"""


def found() -> str | None:
    """The browser's path, where there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


async def seconds_to_usable(page: Path, browser: str) -> float:
    """Opens the page in a fresh browser and filters its trials, the browser's own start aside."""
    async with (
        _started(browser) as address,
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=0) as socket,
    ):
        talk = _Talk(socket)
        target = (await talk.ask("Target.createTarget", url="about:blank"))["targetId"]
        talk.session = (await talk.ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        await talk.ask("Page.enable")
        if failure := (await talk.ask("Page.navigate", url=page.as_uri())).get("errorText"):
            raise SystemExit(f"{page}: {failure}")
        await talk.wait_for("Page.loadEventFired")
        drawn = await talk.ask("Runtime.evaluate", expression=_USABLE, awaitPromise=True, returnByValue=True)
        milliseconds, count = drawn["result"]["value"]
        if count.startswith("0 of"):
            raise SystemExit(f"{page}: the filter found {count}")
        return float(milliseconds) / 1e3


@contextlib.asynccontextmanager
async def _started(browser: str) -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            browser,
            *_FLAGS,
            f"--user-data-dir={profile}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            async for line in process.stderr:
                if address := re.search(rb"ws://\S+", line):
                    yield address[0].decode()
                    break
            else:
                raise SystemExit(f"{browser} did not start")
        finally:
            process.terminate()
            await process.wait()


class _Talk:
    """Questions and answers of the Chrome DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.session: str | None = None
        self._socket = socket
        self._asked = 0
        self._happened: list[str] = []

    async def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        self._asked += 1
        told = {"id": self._asked, "method": method, "params": parameters}
        await self._socket.send_json(told | ({"sessionId": self.session} if self.session else {}))
        while True:
            answer = await self._next()
            if answer.get("id") == self._asked:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    async def wait_for(self, event: str) -> None:
        while event not in self._happened:
            await self._next()

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._socket.receive_json(timeout=120)
        self._happened.append(str(message.get("method")))
        return message


if __name__ == "__main__":
    print(json.dumps({"usable": asyncio.run(seconds_to_usable(Path(sys.argv[1]).resolve(), sys.argv[2]))}))
