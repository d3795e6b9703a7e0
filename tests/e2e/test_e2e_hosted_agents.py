"""Real coding agents search the web with their provider's search, on models whose upstreams have none."""

import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from authority import Authority
from client_programs import SNIPPETS, run
from e2e_process import clean_environment
from in_process import serving_app
from provider_models import ANSWER, SEARCH, serving_models
from require import require
from running_proxy import Proxy

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
    """Claude Code's WebSearch says how often it searched, and its model gets the pages that were found, also
    in a second turn with the first one."""
    require("claude", shutil.which("claude") is not None, "Claude Code is not installed")
    calls = {"WebSearch": SEARCH, "web_search": SEARCH}
    options = "--allowedTools WebSearch --output-format stream-json --verbose"
    questions = f"claude -p 'Which rivers?' {options}\nclaude --continue -p 'Once more.' {options}"
    script = re.sub(r"(?m)^claude\b.*$", lambda _: questions, SNIPPETS["Claude Code"])
    async with serving_models(calls, native=(), hosts_search=True) as (proxy, models):
        models[name].often["web_search"] = searches
        script = script.replace("127.0.0.1:8080", f"127.0.0.1:{proxy.port}").replace("gpt-4o-mini", name)
        said = await run(["sh", "-c", script], clean_environment(tmp_path), tmp_path)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [line["result"] for line in lines if line["type"] == "result"] == [ANSWER] * 2
    assert [PAGE in result for result in models[name].results] == [True] * 2
    results = [line["tool_use_result"] for line in lines if "tool_use_result" in line]
    assert [result["searchCount"] for result in results] == [searches] * 2
    for result in results:
        found = [one for one in result["results"] if isinstance(one, dict)]
        titles = [[page["title"] for page in one["content"]] for one in found]
        assert titles == [["Spree (river)", "Havel"]] * searches


@pytest.mark.parametrize("name", MODELS)
async def test_web_search_of_codex(name: str, tmp_path: Path) -> None:
    """Codex with web search on shows the search of its model, which gets the pages that were found, also in a
    second turn with the first one."""
    require("codex", shutil.which("codex") is not None, "codex is not installed")
    options = "--skip-git-repo-check --json -c web_search=live -c sandbox_mode=danger-full-access"
    (command,) = re.findall(r"(?ms)^codex\b.*", SNIPPETS["Codex"])
    asked = ("codex exec 'Which rivers?'", "codex exec resume --last 'Once more.'")
    commands = "\n".join(command.strip().replace("codex", f"{one} {options}", 1) for one in asked)
    script = SNIPPETS["Codex"].replace(command, commands)
    async with serving_models({"web_search": SEARCH}, native=(), hosts_search=True) as (proxy, models):
        script = script.replace("127.0.0.1:8080", f"127.0.0.1:{proxy.port}").replace("gpt-4o-mini", name)
        said = await run(["sh", "-c", script], clean_environment(tmp_path), tmp_path)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    items = [line["item"] for line in lines if line["type"] == "item.completed"]
    searches = [item for item in items if item["type"] == "web_search"]
    assert [search["query"] for search in searches] == [SEARCH["query"]] * 2
    assert [item["text"] for item in items if item["type"] == "agent_message"] == [ANSWER] * 2
    assert [PAGE in result for result in models[name].results] == [True] * 2


TEXT = "The Spree flows through Berlin."


@asynccontextmanager
async def serving_page(authority: Authority) -> AsyncIterator[str]:
    """Serve a page over HTTPS, and yield its address."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=f"<h1>Rivers</h1><p>{TEXT}</p>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/rivers", page)
    async with serving_app(app, ssl=authority.server("127.0.0.1")) as address:
        yield f"https://127.0.0.1:{address.rpartition(':')[2]}/rivers"


async def fetch(proxy: Proxy, name: str, page: str, folder: Path, settings: str) -> tuple[list[str], Any]:
    """Let Claude Code fetch a page, and ask again in the same conversation; return the answers and the
    result of its tool. It reaches nothing but this machine."""
    options = f"--output-format stream-json --verbose --allowedTools WebFetch --settings '{settings}'"
    asked = f"claude -p 'What does {page} say?' {options}\nclaude --continue -p 'Once more.' {options}"
    script = re.sub(r"(?m)^claude\b.*$", lambda _: asked, SNIPPETS["Claude Code"])
    script = script.replace("127.0.0.1:8080", f"127.0.0.1:{proxy.port}").replace("gpt-4o-mini", name)
    closed = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    trusting = {"NODE_EXTRA_CA_CERTS": str(folder / "authority.pem")}
    said = await run(["sh", "-c", script], clean_environment(folder) | closed | trusting, folder)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    first = next(line["tool_use_result"] for line in lines if "tool_use_result" in line)
    return [line["result"] for line in lines if line["type"] == "result"], first


@pytest.mark.parametrize("name", MODELS)
async def test_web_fetch_of_claude_code(name: str, tmp_path: Path) -> None:
    """Claude Code's WebFetch lets its small model read a page; what this says comes back, in each turn."""
    require("claude", shutil.which("claude") is not None, "Claude Code is not installed")
    async with serving_page(Authority(tmp_path)) as page:
        calls = {"WebFetch": {"url": page, "prompt": "Which river?"}}
        async with serving_models(calls) as (proxy, models):
            models[name].quotes = TEXT
            settings = json.dumps({"skipWebFetchPreflight": True})
            answers, result = await fetch(proxy, name, page, tmp_path, settings)
    assert answers == [TEXT] * 2
    assert (result["code"], result["result"]) == (200, TEXT)
    assert models[name].results == [TEXT] * 2
    assert sum("Web page content" in str(asked.payload) for asked in models[name].asked) == 2


async def test_web_fetch_without_its_setting(tmp_path: Path) -> None:
    """Without the setting, Claude Code fetches nothing where it cannot ask Anthropic about the domain."""
    require("claude", shutil.which("claude") is not None, "Claude Code is not installed")
    name = MODELS[0]
    async with serving_page(Authority(tmp_path)) as page:
        calls = {"WebFetch": {"url": page, "prompt": "Which river?"}}
        async with serving_models(calls) as (proxy, models):
            models[name].quotes = TEXT
            answers, result = await fetch(proxy, name, page, tmp_path, "{}")
    assert answers == [ANSWER] * 2
    assert "Unable to verify if domain 127.0.0.1 is safe" in str(result)
