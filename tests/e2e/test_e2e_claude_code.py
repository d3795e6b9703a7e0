"""The real Claude Code on the proxy, with a lost stream; test_e2e_clients.py has it on all models.

The tests need ``claude``; ``TOOLRELAY_TEST_CLAUDE`` names one that is not in ``PATH``.
"""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from e2e_process import clean_environment
from pair_kits import SPEAKERS, Call, Turn
from probe_tools import WATCH
from recorded_answers import Asked, Given, Scripted
from require import require
from running_proxy import Proxy, make_config, running
from waiting import LATE_S

from proxy.app.app import Overrides

pytestmark = pytest.mark.slow

CLAUDE = os.environ.get("TOOLRELAY_TEST_CLAUDE") or shutil.which("claude") or ""
BUY = "probe_tools__buy"


class Model(Scripted):
    """A model that makes ``call`` in its first turn, and answers when it has the result.

    Its first stream after the result breaks off.
    """

    def __init__(self, wire: str, call: Call) -> None:
        super().__init__(self._say)
        self.speaker = SPEAKERS[wire]
        self._call = call
        self.loses = True

    def _say(self, asked: Asked) -> Given:
        got = self.speaker.got(asked.payload)
        streams = bool(asked.payload.get("stream"))
        turn = Turn("It is noon.")
        if got.results:
            if self.loses and streams:
                self.loses = False
                begun = self.speaker.events(turn)[:1]
                return Given(content_type=self.speaker.content_type, pieces=begun, breaks=True)
        elif self._call.name in got.tools:
            turn = Turn("", (self._call,))
        if streams:
            return Given(content_type=self.speaker.content_type, pieces=self.speaker.events(turn))
        return Given(json.dumps(self.speaker.reply(turn)).encode())

    async def aclose(self) -> None:
        """The proxy closes it when it ends."""


@asynccontextmanager
async def serving(model: Model, wire: str) -> AsyncIterator[Proxy]:
    """Run a proxy with the probe tools in front of a model with one dialect."""
    config = make_config({"base_url": "http://127.0.0.1:9/v1", "wires": (wire,)}, modules=("probe_tools",))
    async with running(config, Overrides(wrap_upstream=lambda _: model)) as proxy:
        yield proxy


async def ask_claude(proxy: Proxy, folder: Path) -> str:
    """Ask Claude Code one question and return what it prints; it can reach only the proxy."""
    require("claude", bool(CLAUDE), "claude is not installed")
    env = {
        **clean_environment(folder / "home"),
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{proxy.port}",
        "ANTHROPIC_API_KEY": "tr_any",
        "ANTHROPIC_MODEL": "m",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "m",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
    }
    work = folder / "work"
    work.mkdir()
    process = await asyncio.create_subprocess_exec(
        *(CLAUDE, "-p", "What time is it?"),
        env=env,
        cwd=work,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), LATE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode()
    return out.decode()


@pytest.mark.parametrize("wire", SPEAKERS)
async def test_a_lost_stream_causes_effects_once(wire: str, tmp_path: Path) -> None:
    """Rule R5: if Claude Code repeats a request after a lost stream, the side effect is not repeated."""
    model = Model(wire, Call("toolu_1", BUY, {"what": "milk"}))
    WATCH.reset()
    async with serving(model, wire) as proxy:
        said = await ask_claude(proxy, tmp_path)
    assert said.strip() == "It is noon."
    assert not model.loses
    assert WATCH.finished == ["buy"]
