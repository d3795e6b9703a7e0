"""Clients that declare their provider's image generation, on models whose upstreams have none.

Each leads a conversation of two turns; in the second one it sends the item with the image back.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from agents_sdk import converse
from e2e_packages import run_node
from image_model import IMAGE, PARTIAL, USAGE, ImageModel
from openai import AsyncOpenAI
from provider_models import ANSWER, serving_models
from require import require
from running_proxy import Proxy

MODELS = ("gpt-4o-mini", "claude-opus-4-7", "qwen3", "gpt-5-2025-08-07")
"""One of each dialect. The last one speaks Responses, as OpenAI does."""
QUESTIONS = ("Draw a boat.", "Make it blue.")
CALLS = {"image_generation": {"prompt": "A paper boat"}}
TOOL: dict[str, Any] = {"type": "image_generation", "partial_images": 2, "quality": "low"}


def openai_at(proxy: Proxy) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="unused", max_retries=0)


def check_sent(sent: Any) -> None:
    """Check that the model got the image that came back, once, and words about it."""
    written = json.dumps(sent)
    assert written.count(IMAGE) == 1
    assert "the user sees the image" in written


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_openai(name: str, streamed: bool) -> None:
    """The official SDK reads the item, its events and the usage, and sends the item back."""
    items: list[Any] = []
    async with (
        serving_models(CALLS, native=(), images=ImageModel()) as (proxy, models),
        openai_at(proxy) as client,
    ):
        for question in QUESTIONS:
            items.append({"role": "user", "content": question})
            options: dict[str, Any] = {"model": name, "input": items, "tools": [TOOL]}
            if streamed:
                async with client.responses.stream(**options) as stream:
                    events = [event async for event in stream]
                    response = await stream.get_final_response()
                partial = [
                    event for event in events if event.type == "response.image_generation_call.partial_image"
                ]
                assert [event.partial_image_b64 for event in partial] == list(PARTIAL[:2])
                assert [event.partial_image_index for event in partial] == [0, 1]
            else:
                response = await client.responses.create(**options)
            image, message = [item for item in response.output if item.type != "reasoning"]
            assert image.type == "image_generation_call"
            assert (image.status, image.result, image.quality) == ("completed", IMAGE, "low")
            assert message.type == "message"
            assert response.output_text == ANSWER
            assert response.tool_usage is not None
            assert response.tool_usage.image_gen.total_tokens == USAGE["total_tokens"]
            items += [item.model_dump(exclude_none=True) for item in response.output]
    check_sent(models[name].asked[2].payload)


@pytest.mark.slow
@pytest.mark.accepts("responses-no-reasoning", why="openai-agents asks any model so")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_openai_agents(name: str, streamed: bool) -> None:
    """The ImageGenerationTool of openai-agents has its items in both turns."""
    require("openai-agents", importlib.util.find_spec("agents") is not None, "openai-agents is not installed")
    from agents import Agent, ImageGenerationTool, OpenAIResponsesModel

    tool = ImageGenerationTool(tool_config={"type": "image_generation", "quality": "low"})
    async with (
        serving_models(CALLS, native=(), images=ImageModel()) as (proxy, models),
        openai_at(proxy) as client,
    ):
        agent = Agent("tester", model=OpenAIResponsesModel(name, client), tools=[tool])
        answers, items = await converse(agent, QUESTIONS, streamed=streamed)
    assert answers == [ANSWER] * len(QUESTIONS)
    images = [item for item in items if item.get("type") == "image_generation_call"]
    assert [item["result"] for item in images] == [IMAGE, IMAGE]
    check_sent(models[name].asked[2].payload)


@pytest.mark.slow
async def test_the_ai_sdk(scripts: Path) -> None:
    """Vercel's AI SDK: the image is the result of the provider's tool, in replies and streams."""
    names = MODELS
    async with serving_models(CALLS, native=(), images=ImageModel()) as (proxy, models):
        asked = {"root": f"http://127.0.0.1:{proxy.port}", "models": names, "questions": QUESTIONS}
        found = await run_node(scripts / "images_ai_sdk.mjs", asked)
        sent = {name: models[name].asked[2].payload for name in names}
    assert len(found) == 2 * len(names)
    for seen in found.values():
        assert seen["answers"] == [ANSWER] * 2
        assert seen["images"] == [IMAGE] * 2
    for payload in sent.values():
        assert "the user sees the image" in json.dumps(payload)
