"""Real coding agents use tools whose types only their dialect knows, on models that know functions alone."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from client_programs import SNIPPETS, run
from e2e_process import clean_environment
from looping import ECHO
from mcp_real import python_server
from provider_models import ANSWER, serving_models
from require import require

pytestmark = [
    pytest.mark.slow,
    pytest.mark.accepts(
        "responses-no-reasoning", why="Codex asks any model so; nothing changes a passed request"
    ),
]

MODELS = ("gpt-4o-mini", "claude-opus-4-7", "qwen3", "gpt-5-2025-08-07")
"""One of each dialect. The last one speaks Responses, as OpenAI does."""


async def results_of(
    name: str, calls: Mapping[str, Mapping[str, Any]], folder: Path, model: str
) -> Sequence[str]:
    """Return what the model ``name`` got for its calls from Codex, which believes to ask ``model``."""
    require("codex", shutil.which("codex") is not None, "codex is not installed")
    servers = " ".join(
        f"-c 'mcp_servers.{server}.command=\"{python_server(server)}\"' "
        f"-c mcp_servers.{server}.required=true -c mcp_servers.{server}.startup_timeout_sec=300"
        for server in ("time", "git")
    )
    question = (
        f"codex exec --skip-git-repo-check --sandbox danger-full-access -c web_search=disabled {servers} 'Hi'"
    )
    script = re.sub(r"(?m)^codex\b", lambda _: question, SNIPPETS["Codex"])
    async with serving_models(calls, {model: name}, native=()) as (proxy, models):
        script = script.replace("127.0.0.1:8080", f"127.0.0.1:{proxy.port}").replace("gpt-4o-mini", model)
        said = await run(["sh", "-c", script], clean_environment(folder), folder)
    assert ANSWER in said
    return models[name].results


@pytest.mark.parametrize("name", MODELS)
async def test_codex_calls_the_tools_of_its_mcp_servers(name: str, tmp_path: Path) -> None:
    """Codex's own tool, those of two MCP servers and a server tool in one turn; the next has all results."""
    calls = {
        ECHO: {"text": "echoed"},
        "exec_command": {"cmd": "echo from the shell"},
        "mcp__time__convert_time": {
            "source_timezone": "UTC",
            "time": "12:00",
            "target_timezone": "Asia/Tokyo",
        },
        "mcp__git__git_status": {"repo_path": str(tmp_path)},
    }
    ours, shell, time, git = await results_of(name, calls, tmp_path, name)
    assert "echoed" in ours
    assert "from the shell" in shell
    assert "21:00" in time
    assert git


async def test_codex_with_tools_in_an_item(tmp_path: Path) -> None:
    """Codex puts the tools into an additional_tools item: a custom tool of a namespace runs, too."""
    calls = {ECHO: {"text": "echoed"}, "functions__exec": {"input": "text('from ' + 'the program')"}}
    ours, program = await results_of("gpt-4o-mini", calls, tmp_path, "gpt-6-astra")
    assert "echoed" in ours
    assert "from the program" in program
