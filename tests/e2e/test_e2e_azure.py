"""The ``openai`` package's client for Azure works with only its endpoint changed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from client_keys import ALICE, declared, key_config
from openai import AsyncAzureOpenAI, AzureOpenAI
from running_proxy import Proxy, running
from strict_chat import StrictChat, serving_chat
from strict_provider import Provider, serving_provider

ASK: Any = [{"role": "user", "content": "What time is it?"}]
VERSION = "2025-04-01-preview"


@pytest_asyncio.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A proxy with a server tool and a key that may use one model of each upstream."""
    keys = {"alice": declared(ALICE, models=["gpt-4o", "o9"])}
    async with serving_chat(StrictChat(emits={})) as chat, serving_provider(Provider()) as responses:
        tables = [
            {"name": "chat", "base_url": chat, "wires": ["chat"]},
            {"name": "responses", "base_url": responses, "wires": ["responses"]},
        ]
        async with running(key_config(*tables, keys=keys)) as proxy:
            yield proxy


def client_of(proxy: Proxy, **more: Any) -> AsyncAzureOpenAI:
    """The client as a user makes it."""
    endpoint = f"http://127.0.0.1:{proxy.port}"
    more = {"azure_endpoint": endpoint, "api_key": ALICE, "api_version": VERSION, "max_retries": 0, **more}
    return AsyncAzureOpenAI(**more)


@pytest.mark.parametrize("deployment", [None, "gpt-4o"])
async def test_chat_with_a_server_tool(proxy: Proxy, deployment: str | None) -> None:
    """The client gets an answer with the tool's result, streamed or not, with or without a deployment."""
    async with client_of(proxy, azure_deployment=deployment) as client:
        said = await client.chat.completions.create(model="gpt-4o", messages=ASK)
        assert str(said.choices[0].message.content).startswith("It is {")
        text = ""
        async for chunk in await client.chat.completions.create(model="gpt-4o", messages=ASK, stream=True):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
    assert text.startswith("It is {")


async def test_responses_and_the_synchronous_client(proxy: Proxy) -> None:
    """The synchronous client gets a response by the model's name in the body."""

    def work() -> str:
        endpoint = f"http://127.0.0.1:{proxy.port}"
        with AzureOpenAI(
            azure_endpoint=endpoint, api_key=ALICE, api_version=VERSION, max_retries=0
        ) as client:
            return client.responses.create(model="o9", input="What time is it?").output_text

    assert "core__get_current_time=" in await asyncio.to_thread(work)


async def test_a_model_that_the_key_may_not_use(proxy: Proxy) -> None:
    """A model that the key may not use is a 404; different models in path and body are a 400."""
    async with client_of(proxy) as client:
        with pytest.raises(openai.NotFoundError, match="does not exist or is not served"):
            await client.chat.completions.create(model="gpt-5", messages=ASK)
    async with client_of(proxy, azure_deployment="gpt-4o") as client:
        with pytest.raises(openai.BadRequestError, match="Use the same name in both"):
            await client.chat.completions.create(model="gpt-5", messages=ASK)
