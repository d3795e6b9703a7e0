"""Libraries whose tools are found by a search that a server runs, on models that know nothing of it.

Each leads a conversation of two questions. In the first the model searches, and calls what it found; in the
second the library sends back the items of the first.
"""

import importlib.util
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e_packages import run_node
from pair_kits import SPEAKERS, Call, Speaker, Turn
from raw_upstream import RawRequest, RawUpstream, Step
from require import require
from running_proxy import Proxy, make_config, running

pytestmark = pytest.mark.slow

SEARCH = "core__search_tools"
QUESTIONS = ("What is the rate of USD?", "And the price of X?")


def model_of(upstream: Speaker, turns: list[Turn]) -> Any:
    """A model that takes these turns."""

    def model(request: RawRequest) -> list[Step]:
        body = json.loads(request.body)
        return upstream.script(turns.pop(0), stream=body.get("stream", upstream.name == "ollama"))

    return model


@asynccontextmanager
async def serving(
    upstream: Speaker, found: str = "stocks__look_up"
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """A proxy before a model that searches twice, calls what it ``found``, and answers."""
    turns = [
        Turn("", (Call("call_1", SEARCH, {"query": "exchange"}),)),
        Turn("", (Call("call_2", "get_rate", {"currency": "USD"}),)),
        Turn("0.92"),
        Turn("", (Call("call_3", SEARCH, {"query": "stock"}),)),
        Turn("", (Call("call_4", found, {"symbol": "X"}),)),
        Turn("12"),
    ]
    async with RawUpstream(model_of(upstream, turns)) as raw:
        table = {"base_url": raw.url, "wires": (upstream.name,), "native": ()}
        async with running(make_config(table, allow=())) as proxy:
            yield proxy, raw


@pytest.mark.accepts("responses-no-reasoning", why="openai-agents asks any model so")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("upstream", list(SPEAKERS))
async def test_openai_agents(upstream: str, streamed: bool) -> None:
    """openai-agents runs a function and one of a namespace that its ``ToolSearchTool`` found."""
    require("openai-agents", importlib.util.find_spec("agents") is not None, "openai-agents is not installed")
    from agents import (
        Agent,
        OpenAIResponsesModel,
        RunConfig,
        Runner,
        ToolSearchTool,
        function_tool,
        tool_namespace,
    )
    from openai import AsyncOpenAI

    called: list[str] = []

    @function_tool(defer_loading=True)
    def get_rate(currency: str) -> str:
        """Look up an exchange rate."""
        called.append(currency)
        return "1 USD = 0.92 EUR"

    @function_tool(defer_loading=True)
    def look_up(symbol: str) -> str:
        """Look up a stock price."""
        called.append(symbol)
        return "X costs 12"

    speaker = SPEAKERS[upstream]
    stocks = tool_namespace(name="stocks", description="Stock markets.", tools=[look_up])
    config = RunConfig(tracing_disabled=True)
    async with (
        serving(speaker) as (proxy, raw),
        AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="k", max_retries=0) as client,
    ):
        agent = Agent(
            name="Helper",
            model=OpenAIResponsesModel("m", client),
            tools=[get_rate, *stocks, ToolSearchTool()],
        )
        items: list[Any] = []
        answers: list[str] = []
        for question in QUESTIONS:
            items.append({"role": "user", "content": question})
            result: Any
            if streamed:
                result = Runner.run_streamed(agent, items, run_config=config)
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(agent, items, run_config=config)
            answers.append(result.final_output)
            items = result.to_input_list()
        requests = [speaker.got(json.loads(request.body)) for request in raw.requests]
    assert answers == ["0.92", "12"]
    assert called == ["USD", "X"]
    names = [list(request.tools) for request in requests]
    assert names == [
        [SEARCH],
        [SEARCH, "get_rate"],
        [SEARCH, "get_rate"],
        [SEARCH, "get_rate"],
        [SEARCH, "get_rate", "stocks__look_up"],
        [SEARCH, "get_rate", "stocks__look_up"],
    ]
    assert {"1 USD = 0.92 EUR", "X costs 12"} < set(requests[-1].results.values())


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("provider", ["openai", "words", "patterns"])
async def test_the_ai_sdk(scripts: Path, provider: str, streamed: bool) -> None:
    """The tool search of OpenAI's and Anthropic's providers of Vercel's AI SDK, on a model of Chat."""
    chat = SPEAKERS["chat"]
    async with serving(chat, "look_up") as (proxy, raw):
        asked = {"provider": provider, "streamed": streamed, "questions": QUESTIONS}
        root = f"http://127.0.0.1:{proxy.port}"
        found = await run_node(scripts / "search_ai_sdk.mjs", {"root": root, **asked})
        last = chat.got(json.loads(raw.requests[-1].body))
    assert found == {"answers": ["0.92", "12"], "called": ["USD", "X"]}
    assert list(last.tools) == [SEARCH, "get_rate", "look_up"]
    assert {"1 USD = 0.92 EUR", "X costs 12"} < set(last.results.values())
