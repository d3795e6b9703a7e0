"""Real coding agents search the web with their provider's search, on models whose upstreams have none."""

import json
import re
import shutil
from pathlib import Path

import pytest
from client_programs import SNIPPETS, run
from e2e_process import clean_environment
from provider_models import ANSWER, SEARCH, serving_models
from require import require

pytestmark = [
    pytest.mark.slow,
    pytest.mark.accepts(
        "responses-no-reasoning", why="Codex asks any model so; nothing changes a passed request"
    ),
]

MODELS = ("gpt-4o-mini", "claude-opus-4-7", "qwen3", "gpt-5-2025-08-07")
"""One of each dialect. The last one speaks Responses, as OpenAI does."""
PAGE = "https://en.wikipedia.org/wiki/Havel"


@pytest.mark.parametrize("searches", [1, 2])
@pytest.mark.parametrize("name", MODELS)
async def test_web_search_of_claude_code(name: str, searches: int, tmp_path: Path) -> None:
    """Claude Code's WebSearch says how often it searched, and its model gets the pages that were found."""
    require("claude", shutil.which("claude") is not None, "Claude Code is not installed")
    calls = {"WebSearch": SEARCH, "web_search": SEARCH}
    question = "claude -p 'Which rivers?' --allowedTools WebSearch --output-format stream-json --verbose"
    script = re.sub(r"(?m)^claude\b.*$", lambda _: question, SNIPPETS["Claude Code"])
    async with serving_models(calls, native=(), hosts_search=True) as (proxy, models):
        models[name].often["web_search"] = searches
        script = script.replace("127.0.0.1:8080", f"127.0.0.1:{proxy.port}").replace("gpt-4o-mini", name)
        said = await run(["sh", "-c", script], clean_environment(tmp_path), tmp_path)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert lines[-1]["result"] == ANSWER
    assert PAGE in models[name].results[-1]
    (result,) = [line["tool_use_result"] for line in lines if "tool_use_result" in line]
    assert result["searchCount"] == searches
    found = [one for one in result["results"] if isinstance(one, dict)]
    titles = [[page["title"] for page in one["content"]] for one in found]
    assert titles == [["Spree (river)", "Havel"]] * searches


@pytest.mark.parametrize("name", MODELS)
async def test_web_search_of_codex(name: str, tmp_path: Path) -> None:
    """Codex with web search on shows the search of its model, which gets the pages that were found."""
    require("codex", shutil.which("codex") is not None, "codex is not installed")
    options = "--skip-git-repo-check --sandbox danger-full-access --json -c web_search=live"
    script = re.sub(r"(?m)^codex\b", lambda _: f"codex exec {options} 'Which rivers?'", SNIPPETS["Codex"])
    async with serving_models({"web_search": SEARCH}, native=(), hosts_search=True) as (proxy, models):
        script = script.replace("127.0.0.1:8080", f"127.0.0.1:{proxy.port}").replace("gpt-4o-mini", name)
        said = await run(["sh", "-c", script], clean_environment(tmp_path), tmp_path)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    items = [line["item"] for line in lines if line["type"] == "item.completed"]
    (search,) = [item for item in items if item["type"] == "web_search"]
    assert search["query"] == SEARCH["query"]
    assert items[-1]["text"] == ANSWER
    assert PAGE in models[name].results[-1]
