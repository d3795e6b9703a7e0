"""Coding agents with MCP servers of their own, added and asked as docs/how-to/clients.md prints it."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from client_programs import PAGE, SNIPPETS, run
from e2e_process import clean_environment
from looping import ECHO
from mcp_real import python_server
from pair_kits import SPEAKERS, Call, Turn
from provider_models import ANSWER, serving_models
from recorded_answers import Asked, Given, Scripted
from require import require
from running_proxy import Proxy, make_config, running

from proxy.app.app import Overrides

pytestmark = pytest.mark.slow

CONVERT: Mapping[str, Any] = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
TOOL = "mcp__time__convert_time"
FINDS = "ToolSearch"
"""Claude Code's own tool that loads others."""
QUESTIONS = {
    "Claude Code": ("claude", f"claude -p 'Hi' --allowedTools {TOOL} {FINDS} Bash"),
    "Codex": (
        "codex",
        "codex exec --skip-git-repo-check --sandbox danger-full-access -c web_search=disabled "
        "-c mcp_servers.time.required=true -c mcp_servers.time.startup_timeout_sec=300 'Hi'",
    ),
}
OWN: Mapping[str, Mapping[str, Any]] = {
    "Claude Code": {
        "Bash": {"command": "echo 'from the' shell", "description": "Says where it is."},
    },
    "Codex": {"exec_command": {"cmd": "echo 'from the' shell"}},
}
"""The calls of an agent's own tools."""
WAITS = {"MCP_CONNECTION_NONBLOCKING": "false", "MCP_CONNECT_TIMEOUT_MS": "300000", "MCP_TIMEOUT": "300000"}
"""Lets Claude Code wait for its server: with ``-p`` it asks at once, which no person can."""
MODELS = ("gpt-4o-mini", "claude-opus-4-7", "qwen3", "gpt-5-2025-08-07")
"""One of each dialect. The last one speaks Responses, as OpenAI does."""


def printed(client: str, proxy: Proxy, folder: Path) -> tuple[str, dict[str, str]]:
    """Return the commands that add the server and ask a question, as the page has them, and their
    environment, whose ``uvx`` starts the installed server."""
    program, question = QUESTIONS[client]
    require(program, shutil.which(program) is not None, f"{program} is not installed")
    (adding,) = re.findall(rf"(?m)^{program} mcp add .*$", PAGE)
    script = re.sub(rf"(?m)^{program}\b", lambda _: question, SNIPPETS[client])
    uvx = folder / "bin" / "uvx"
    uvx.parent.mkdir()
    uvx.write_text(f'#!/bin/sh\n[ "$*" = mcp-server-time ] && exec {python_server("time")}\n')
    uvx.chmod(0o700)
    env = {**clean_environment(folder), **WAITS}
    env["PATH"] = f"{uvx.parent}:{env['PATH']}"
    return f"{adding}\n{script}".replace("127.0.0.1:8080", f"127.0.0.1:{proxy.port}"), env


@pytest.mark.accepts(
    "responses-no-reasoning", why="Codex asks any model so; nothing changes a passed request"
)
@pytest.mark.parametrize("client", QUESTIONS)
@pytest.mark.parametrize("name", MODELS)
async def test_a_server_that_was_added_as_printed(client: str, name: str, tmp_path: Path) -> None:
    """The agent runs a tool of its own server and one of its own beside a server tool; the model has all
    results."""
    calls = {ECHO: {"text": "echoed"}, TOOL: CONVERT, **OWN[client]}
    async with serving_models(calls, native=()) as (proxy, models):
        script, env = printed(client, proxy, tmp_path)
        said = await run(["sh", "-c", script.replace("gpt-4o-mini", name)], env, tmp_path)
    assert ANSWER in said
    ours, time, *own = models[name].results
    assert "echoed" in ours
    assert "21:00" in time
    assert len(own) == len(OWN[client])
    assert "from the shell" in own[0]


class Searching(Scripted):
    """A model of Chat that searches with Claude Code's own tool, calls what it found, and answers."""

    def __init__(self) -> None:
        super().__init__(self._say)
        self.chat = SPEAKERS["chat"]

    def _say(self, asked: Asked) -> Given:
        got = self.chat.got(asked.payload)
        wanted = [Call("call_1", FINDS, {"query": f"select:{TOOL}"}), Call("call_2", TOOL, CONVERT)]
        left = [call for call in wanted if call.name in got.tools and call.id not in got.results]
        turn = Turn("", (left[0],)) if left else Turn(ANSWER)
        if asked.payload.get("stream"):
            return Given(content_type=self.chat.content_type, pieces=self.chat.events(turn))
        return Given(json.dumps(self.chat.reply(turn)).encode())

    async def aclose(self) -> None:
        """The proxy closes it when it ends."""


async def test_claude_code_searches_its_own_tools(tmp_path: Path) -> None:
    """Claude Code loads a tool of its server after a search of its own, whose result is a reference."""
    model = Searching()
    config = make_config({"base_url": "http://127.0.0.1:9/v1", "wires": ("chat",)}, allow=())
    async with running(config, Overrides(wrap_upstream=lambda _: model)) as proxy:
        script, env = printed("Claude Code", proxy, tmp_path)
        env["ENABLE_TOOL_SEARCH"] = "true"
        assert ANSWER in await run(["sh", "-c", script], env, tmp_path)
    asked = [model.chat.got(one.payload) for one in model.asked]
    assert TOOL not in asked[0].tools
    assert asked[-1].results["call_1"] == f"The tool {TOOL} can be called now."
    assert "21:00" in asked[-1].results["call_2"]
