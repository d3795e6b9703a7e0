"""Clients that declare their provider's search of the web, on models whose upstreams have none.

Each leads a conversation of two questions with one model of every dialect. In each question the model
searches; in the second one the client sends back the items or blocks of the first.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from provider_models import ANSWER, SEARCH, ProviderModel, serving_models
from running_proxy import Proxy

MODELS = ("gpt-4o-mini", "claude-opus-4-7", "qwen3", "gpt-5-2025-08-07")
"""One of each dialect. The last one speaks Responses, as OpenAI does."""
QUESTIONS = ("Which rivers flow through Berlin?", "Once more.")
PAGES = ["https://en.wikipedia.org/wiki/Spree_(river)", "https://en.wikipedia.org/wiki/Havel"]
CALLS = {"web_search": SEARCH}
TITLES = ["Spree (river)", "Havel"]


def openai_at(proxy: Proxy) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="unused", max_retries=0)


def anthropic_at(proxy: Proxy) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=f"http://127.0.0.1:{proxy.port}", api_key="unused", max_retries=0)


def check_results(model: ProviderModel) -> None:
    """Check that the last request brought the results of both searches, the first as it was recorded."""
    first, second = model.results
    assert first == second
    assert all(page in first for page in PAGES)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_responses(name: str, streamed: bool) -> None:
    """A search is a web_search_call with its sources, events in order, and usage; it returns to the model."""
    items: list[Any] = []
    async with (
        serving_models(CALLS, native=(), hosts_search=True) as (proxy, models),
        openai_at(proxy) as client,
    ):
        for question in QUESTIONS:
            items.append({"role": "user", "content": question})
            options: dict[str, Any] = {
                "model": name,
                "input": items,
                "tools": [{"type": "web_search"}],
                "include": ["web_search_call.action.sources"],
            }
            if streamed:
                async with client.responses.stream(**options) as stream:
                    kinds = [event.type async for event in stream]
                    response = await stream.get_final_response()
                check_events(kinds)
            else:
                response = await client.responses.create(**options)
            search, message = [item for item in response.output if item.type != "reasoning"]
            assert search.type == "web_search_call"
            assert search.status == "completed"
            action = search.action
            assert action.type == "search"
            assert action.query == SEARCH["query"]
            assert [source.url for source in action.sources or ()] == PAGES
            assert message.type == "message"
            assert response.output_text == ANSWER
            assert response.tool_usage is not None
            assert response.tool_usage.web_search.num_requests == 1
            assert response.tools[0].type == "web_search"
            items += [item.model_dump(exclude_none=True) for item in response.output]
    check_results(models[name])


def check_events(kinds: Sequence[str]) -> None:
    """Check that the events of a search come in OpenAI's order, and the message behind them."""
    begin = kinds.index("response.web_search_call.in_progress") - 1
    assert kinds[begin : begin + 5] == [
        "response.output_item.added",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.output_item.done",
    ]
    assert kinds.index("response.output_text.delta") > begin + 5


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_messages(name: str, streamed: bool) -> None:
    """A search is a server_tool_use and its result, with its usage; it returns to the model."""
    messages: list[Any] = []
    async with (
        serving_models(CALLS, native=(), hosts_search=True) as (proxy, models),
        anthropic_at(proxy) as client,
    ):
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            options: dict[str, Any] = {
                "model": name,
                "max_tokens": 1000,
                "messages": messages,
                "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}],
            }
            if streamed:
                async with client.messages.stream(**options) as stream:
                    message = await stream.get_final_message()
            else:
                message = await client.messages.create(**options)
            use, result, text = [block for block in message.content if block.type != "thinking"]
            assert use.type == "server_tool_use"
            assert use.input == SEARCH
            assert result.type == "web_search_tool_result"
            assert result.tool_use_id == use.id
            assert isinstance(result.content, list)
            assert [page.url for page in result.content] == PAGES
            assert [page.title for page in result.content] == TITLES
            assert text.type == "text"
            assert text.text == ANSWER
            assert message.stop_reason == "end_turn"
            assert message.usage.server_tool_use is not None
            assert message.usage.server_tool_use.web_search_requests == 1
            messages.append({"role": "assistant", "content": [b.model_dump() for b in message.content]})
    check_results(models[name])
