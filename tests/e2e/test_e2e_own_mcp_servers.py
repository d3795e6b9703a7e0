"""Coding agents with MCP servers of their own, added and asked as docs/how-to/clients.md prints it."""

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
from provider_models import ANSWER, serving_models
from require import require

pytestmark = pytest.mark.slow

CONVERT: Mapping[str, Any] = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
TOOL = "mcp__time__convert_time"
QUESTIONS = {
    "Claude Code": ("claude", f"claude -p 'Hi' --allowedTools {TOOL} Bash"),
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


@pytest.mark.accepts(
    "responses-no-reasoning", why="Codex asks any model so; nothing changes a passed request"
)
@pytest.mark.parametrize("client", QUESTIONS)
@pytest.mark.parametrize("name", MODELS)
async def test_a_server_that_was_added_as_printed(client: str, name: str, tmp_path: Path) -> None:
    """The agent runs a tool of its own server and one of its own beside a server tool; the model has all
    results."""
    program, question = QUESTIONS[client]
    require(program, shutil.which(program) is not None, f"{program} is not installed")
    (adding,) = re.findall(rf"(?m)^{program} mcp add .*$", PAGE)
    script = re.sub(rf"(?m)^{program}\b", lambda _: question, SNIPPETS[client])
    uvx = tmp_path / "bin" / "uvx"
    uvx.parent.mkdir()
    uvx.write_text(f'#!/bin/sh\n[ "$*" = mcp-server-time ] && exec {python_server("time")}\n')
    uvx.chmod(0o700)
    env = {**clean_environment(tmp_path), **WAITS}
    env["PATH"] = f"{uvx.parent}:{env['PATH']}"
    calls = {ECHO: {"text": "echoed"}, TOOL: CONVERT, **OWN[client]}
    async with serving_models(calls, native=()) as (proxy, models):
        script = script.replace("127.0.0.1:8080", f"127.0.0.1:{proxy.port}").replace("gpt-4o-mini", name)
        said = await run(["sh", "-c", f"{adding}\n{script}"], env, tmp_path)
    assert ANSWER in said
    ours, time, *own = models[name].results
    assert "echoed" in ours
    assert "21:00" in time
    assert len(own) == len(OWN[client])
    assert "from the shell" in own[0]
