"""Controls a tab of a real Chromium over the DevTools protocol, as a person would use it."""

import asyncio
import base64
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from e2e_browser import FLAGS, START_S, chromium
from waiting import PATIENCE_S

_PAUSE_S = 0.05
_KEYS = {
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "Tab": (9, ""),
    "ArrowDown": (40, ""),
    "ArrowRight": (39, ""),
}


class Tab:
    """One tab; ``problems`` are exceptions, console errors and violated policies; ``asked`` all requests."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._task: asyncio.Task[None] | None = None
        self.problems: list[str] = []
        self.asked: list[str] = []
        self.dialogs = 0

    async def __aenter__(self) -> "Tab":
        self._task = asyncio.create_task(self._read())
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.send(f"{domain}.enable")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        await self._socket.close()
        await self._task

    async def _read(self) -> None:
        async for message in self._socket:
            data = json.loads(message.data)
            if "id" in data:
                waiting = self._waiting.pop(data["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(data)
            else:
                self._note(data["method"], data["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(str(details.get("exception", {}).get("description", details["text"])))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            if entry["source"] != "network":  # An answer of 4xx is not an error of the page.
                self.problems.append(f"{entry['source']}: {entry['text']}")
        elif method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs += 1

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; raises AssertionError if the browser refuses it."""
        self._last += 1
        number = self._last
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_str(json.dumps({"id": number, "method": method, "params": params}))
        async with asyncio.timeout(START_S):
            answer = await future
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    async def run(self, script: str) -> Any:
        """Return the value of an expression, which may be a promise."""
        answer = await self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, condition: str) -> Any:
        """Wait until an expression holds; the error says what the page shows if it never holds."""
        attempt = f"(() => {{ try {{ return Boolean({condition}) }} catch {{ return null }} }})()"
        last: Any = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    last = await self.run(attempt)
                    if last:
                        return last
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            shown = await self.run("document.body.innerText.slice(0, 1500)")
            raise AssertionError(f"never: {condition}\n{self.problems}\n{shown}") from None

    async def has(self, text: str) -> None:
        """Wait until the page shows a text."""
        await self.until(f"document.body.innerText.includes({json.dumps(text)})")

    async def goto(self, url: str) -> None:
        """Load an address."""
        await self.send("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def click(self, text: str, *, within: str = "body") -> None:
        """Click the first visible button, link, tab or row head whose text or label contains a text."""
        find = (
            f"[...document.querySelectorAll({json.dumps(within + ' :is(a,button,summary,[role=tab])')})]"
            ".find((e) => ((e.getAttribute('aria-label') ?? '') + ' ' + e.innerText)"
            f".includes({json.dumps(text)})"
            " && !e.disabled && e.getClientRects().length)"
        )
        await self.until(f"Boolean({find})")
        await self.run(f"{find}.click()")

    async def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            code, text = _KEYS.get(key, (ord(key.upper()) if len(key) == 1 else 0, key))
            for kind in ("keyDown", "keyUp"):
                await self.send(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    windowsVirtualKeyCode=code,
                    **({"text": text} if text and kind == "keyDown" else {}),
                )

    async def type(self, text: str) -> None:
        """Type a text into the element that has the focus."""
        await self.send("Input.insertText", text=text)

    async def size(self, width: int, height: int, *, scale: float = 1) -> None:
        """Set the size of the window in CSS pixels."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 500,
        )

    async def scheme(self, name: str) -> None:
        """Set the system's preferred color scheme: ``light`` or ``dark``."""
        features = [
            {"name": "prefers-color-scheme", "value": name},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        await self.send("Emulation.setEmulatedMedia", features=features)

    async def shot(self, path: Path) -> None:
        """Write a picture of the visible part of the page."""
        await self.run("document.fonts.ready.then(() => new Promise((r) => setTimeout(r, 350)))")
        answer = await self.send("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Tab]:
    """Open an address in one tab of a new browser, which is killed at the end."""
    command = chromium()
    assert command is not None
    with tempfile.TemporaryDirectory(prefix="toolrelay-tab-", ignore_cleanup_errors=True) as profile:
        flags = [*FLAGS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.getuid() == 0 else [])]
        process = await asyncio.create_subprocess_exec(
            command,
            *flags,
            "about:blank",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", ""), "HOME": profile, "TMPDIR": profile},
            cwd=Path(profile),
            start_new_session=True,
        )
        try:
            async with aiohttp.ClientSession() as session:
                address = await _address(session, Path(profile))
                async with session.ws_connect(address, max_msg_size=0) as socket, Tab(socket) as tab:
                    await tab.goto(url)
                    yield tab
        finally:
            # The command may be a script: if only the script were killed, the browser would stay.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _address(session: aiohttp.ClientSession, profile: Path) -> str:
    """Return the tab's DevTools address as soon as the browser has written its port."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                port = int((profile / "DevToolsActivePort").read_text().splitlines()[0])
                async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                    pages = [one for one in await response.json() if one["type"] == "page"]
                    if pages:
                        return str(pages[0]["webSocketDebuggerUrl"])
            except (OSError, IndexError, ValueError, aiohttp.ClientError):
                pass
            await asyncio.sleep(_PAUSE_S)
