"""Libraries search the web with their provider's search, on models whose upstreams have none."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agents_sdk import converse
from e2e_packages import run_node
from library_scripts import ask_python
from provider_models import ANSWER, SEARCH, serving_models, without_numbers
from require import require

pytestmark = pytest.mark.slow

MODELS = ("gpt-4o-mini", "claude-opus-4-7", "qwen3", "gpt-5-2025-08-07")
"""One of each dialect. The last one speaks Responses, as OpenAI does."""
QUESTIONS = ("Which rivers flow through Berlin?", "Once more.")
PAGES = ["https://en.wikipedia.org/wiki/Spree_(river)", "https://en.wikipedia.org/wiki/Havel"]
CALLS = {"web_search": SEARCH}


def check_results(results: Sequence[str]) -> None:
    """Check that a model got the pages of both searches."""
    first, second = map(without_numbers, results)
    assert first == second
    assert all(page in first for page in PAGES)


@pytest.mark.accepts("responses-no-reasoning", why="openai-agents asks any model so")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_openai_agents(name: str, streamed: bool) -> None:
    """The WebSearchTool of openai-agents has its items in both turns, which reach the model."""
    require("openai-agents", importlib.util.find_spec("agents") is not None, "openai-agents is not installed")
    from agents import Agent, OpenAIResponsesModel, WebSearchTool
    from openai import AsyncOpenAI

    async with serving_models(CALLS, native=(), hosts_search=True) as (proxy, models):
        client = AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="k", max_retries=0)
        agent = Agent("tester", model=OpenAIResponsesModel(name, client), tools=[WebSearchTool()])
        async with client:
            answers, items = await converse(agent, QUESTIONS, streamed=streamed)
    assert answers == [ANSWER] * len(QUESTIONS)
    assert sum(item.get("type") == "web_search_call" for item in items) == 2
    check_results(models[name].results)


PAGE = "https://notes.example/rivers"
TEXT = "The Spree flows through Berlin."


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_anthropic_for_python_fetches_pages(name: str, streamed: bool) -> None:
    """A page that the question names comes as the SDK's blocks, and goes back with the second question."""
    require("anthropic", importlib.util.find_spec("anthropic") is not None, "anthropic is not installed")
    from anthropic import AsyncAnthropic
    from anthropic.types import DocumentBlock, ServerToolUseBlock, WebFetchBlock, WebFetchToolResultBlock

    calls, pages = {"web_fetch": {"url": PAGE}}, {PAGE: TEXT}
    said: list[Any] = []
    found: list[Any] = []
    async with serving_models(calls, native=(), hosts_search=True, pages=pages) as (proxy, models):
        url = f"http://127.0.0.1:{proxy.port}"
        async with AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
            for question in (f"What does {PAGE} say?", "Once more."):
                said.append({"role": "user", "content": question})
                tool: Any = {"type": "web_fetch_20250910", "name": "web_fetch"}
                asked: Any = {"model": name, "max_tokens": 1000, "messages": said, "tools": [tool]}
                if streamed:
                    async with client.messages.stream(**asked) as stream:
                        message = await stream.get_final_message()
                else:
                    message = await client.messages.create(**asked)
                said.append({"role": "assistant", "content": message.content})
                found += message.content
                assert message.usage.server_tool_use is not None
                assert message.usage.server_tool_use.web_fetch_requests == 1
                assert message.content[-1].type == "text"
                assert message.content[-1].text == ANSWER
        results = list(models[name].results)
    uses = [block for block in found if isinstance(block, ServerToolUseBlock)]
    fetched = [block.content for block in found if isinstance(block, WebFetchToolResultBlock)]
    assert [(use.name, use.input) for use in uses] == [("web_fetch", {"url": PAGE})] * 2
    assert [(page.url, page.content.source.data) for page in fetched if isinstance(page, WebFetchBlock)] == [
        (PAGE, TEXT)
    ] * 2
    assert all(isinstance(page.content, DocumentBlock) for page in fetched if isinstance(page, WebFetchBlock))
    assert len(results) == 2
    assert all(TEXT in result for result in results)


async def test_the_node_sdks(scripts: Path) -> None:
    """OpenAI's and Anthropic's packages for Node: replies, streams and their helpers, with a second turn."""
    async with serving_models(CALLS, native=(), hosts_search=True) as (proxy, models):
        asked = {"root": f"http://127.0.0.1:{proxy.port}", "models": MODELS, "questions": QUESTIONS}
        found = await run_node(scripts / "web_search_sdks.mjs", asked)
    assert len(found) == 5 * len(MODELS)
    for seen in found.values():
        assert seen == {"answers": [ANSWER] * 2, "searches": 2, "pages": PAGES * 2}
    for name in MODELS:
        check_results(models[name].results)


async def test_langchain(tmp_path: Path) -> None:
    """LangChain's models of OpenAI and Anthropic, bound to their provider's search, with a second turn."""
    async with serving_models(CALLS, native=(), hosts_search=True) as (proxy, models):
        asked = {"root": f"http://127.0.0.1:{proxy.port}", "models": MODELS, "questions": QUESTIONS}
        found = await ask_python("search_langchain.py", asked, tmp_path)
    for seen in found.values():
        assert seen == {"answers": [ANSWER] * 2, "days": ["search"] * 2}
    assert len(found) == 4 * len(MODELS)
    for name in MODELS:
        check_results(models[name].results)


async def test_the_ai_sdk(scripts: Path) -> None:
    """The web search of both providers of Vercel's AI SDK: calls, sources and a second turn, which refers to
    stored items."""
    async with serving_models(CALLS, native=(), hosts_search=True) as (proxy, models):
        for model in models.values():
            model.answer = f"The [Havel]({PAGES[1]})."
        asked = {"root": f"http://127.0.0.1:{proxy.port}", "models": MODELS, "questions": QUESTIONS}
        found = await run_node(scripts / "web_search_ai_sdk.mjs", asked)
    assert len(found) == 2 * 2 * len(MODELS)
    for seen in found.values():
        assert seen["answers"] == [f"The [Havel]({PAGES[1]})."] * 2
        assert seen["searches"] == 2
        assert set(seen["sources"]) >= {PAGES[1]}
    for name in MODELS:
        check_results(models[name].results)
