"""With Portkey's gateway as the upstream, a client cannot instruct it, and server tools work."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from e2e_gateways import ATTACKS, Gateway, portkey
from openai import AsyncOpenAI
from running_proxy import SERVER_KEY, make_config, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
]

ASK: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "What time is it?"}]}
KEY = f"Bearer {SERVER_KEY}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """The gateway, started once."""
    async with portkey(tmp_path_factory.mktemp("portkey")) as gateway:
        yield gateway


@pytest.fixture
def gateway(shared: Gateway) -> Gateway:
    """The gateway, with its records of earlier requests cleared."""
    shared.forget()
    return shared


def config(gateway: Gateway, allow: tuple[str, ...]) -> Any:
    """The configuration of an operator whose upstream is the gateway."""
    told = {"x-portkey-provider": "openai", "x-portkey-custom-host": gateway.provider_url}
    return make_config({"base_url": gateway.url, "headers": told}, allow=allow)


async def test_the_attack_works_on_the_gateway_itself(gateway: Gateway) -> None:
    """On the gateway itself, one header of a caller sends the operator's key to another host."""
    name = "x-portkey-custom-host"
    headers = {"Authorization": KEY, "x-portkey-provider": "openai", name: gateway.attack()[name]}
    status, said = await gateway.ask(ASK, headers)
    assert status == 200, said
    assert gateway.evil.keys == [KEY]
    assert gateway.provider.keys == []


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passed", "with tools"])
async def test_a_client_gives_it_no_instructions(gateway: Gateway, allow: tuple[str, ...]) -> None:
    """No header that instructs the gateway reaches it from a client, so the key goes to the right host."""
    async with running(config(gateway, allow)) as proxy:
        answer = await proxy.ask(ASK, gateway.attack())
        assert answer.status == 200, answer.body
    assert gateway.evil.keys == []
    assert gateway.provider.keys == [KEY] * (2 if allow else 1)
    sent = {(name.lower(), value) for head in gateway.heads for name, value in head}
    assert sent & {(name.lower(), value) for name, value in gateway.attack().items()} == set()
    own = {"x-portkey-provider", "x-portkey-custom-host"}
    assert {name for name, _ in sent} & {name.lower() for name in ATTACKS} <= own
    assert not any("_" in name for name, _ in sent)


async def test_a_stream_with_a_server_tool(gateway: Gateway, tmp_path: Path) -> None:
    """The official client reads the answer that the model gives with the tool's result."""
    async with (
        running(config(gateway, ("core__*",))) as proxy,
        AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="unused", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(**ASK, stream=True)
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        (run,) = await proxy.runs()
    assert "iso" in json.loads(text.removeprefix("It is "))
    assert (run.turns, run.tool_calls) == (2, 1)
    assert gateway.provider.requests[-1]["messages"][-1]["role"] == "tool"
