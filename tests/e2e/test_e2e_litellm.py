"""With LiteLLM's proxy as the upstream, a client controls neither its query nor its headers."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from client_keys import ALICE, bearer, declared
from e2e_gateways import ATTACKS, MASTER_KEY, Gateway, litellm
from openai import AsyncOpenAI
from running_proxy import SERVER_KEY, make_config, running

from proxy.config.secret import Secret

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
]

ASK: dict[str, Any] = {"model": "cheap", "messages": [{"role": "user", "content": "What time is it?"}]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """The gateway, started once."""
    async with litellm(tmp_path_factory.mktemp("litellm")) as gateway:
        yield gateway


@pytest.fixture
def gateway(shared: Gateway) -> Gateway:
    """The gateway, with its records of earlier requests cleared."""
    shared.forget()
    return shared


def config(gateway: Gateway, allow: tuple[str, ...] = (), **more: Any) -> Any:
    """The configuration of an operator whose upstream is the gateway."""
    table = {"base_url": gateway.url, "api_key": Secret("env:LITELLM_KEY", MASTER_KEY)}
    return make_config(table, allow=allow, **more)


def models(gateway: Gateway) -> list[str]:
    """Return the models that the provider was asked for."""
    return [request["model"] for request in gateway.provider.requests]


async def test_the_attacks_work_on_the_gateway_itself(gateway: Gateway) -> None:
    """On the gateway itself, ``?model=`` overrides the body, and a caller's header overrides the key."""
    key = {"Authorization": f"Bearer {MASTER_KEY}"}
    assert (await gateway.ask(ASK, key, "?model=dear"))[0] == 200
    assert models(gateway) == ["dear"]
    status, _ = await gateway.ask(ASK, {**key, "x-litellm-api-key": gateway.attack()["x-litellm-api-key"]})
    assert status in (400, 401)


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passed", "with tools"])
async def test_a_keys_models_hold(gateway: Gateway, allow: tuple[str, ...]) -> None:
    """A client key cannot reach a model that it may not use, however the request names it."""
    keys = {"alice": declared(ALICE, models=["cheap"])}
    chat, deployed = "/v1/chat/completions", "/openai/deployments/{}/chat/completions"
    async with running(config(gateway, allow, keys=keys)) as proxy:
        for path, body, status in (
            (f"{chat}?model=dear", ASK, 400),
            (f"{chat}?api-version=1&model=dear", ASK, 400),
            (f"{chat}?%6dodel=dear", ASK, 400),
            (f"{chat}?api-version=1;model=dear", ASK, 400),
            (chat, {**ASK, "model": "dear"}, 404),
            (chat, {**ASK, "fallbacks": ["dear"]}, 404),
            (deployed.format("dear"), {"messages": ASK["messages"]}, 404),
            (deployed.format("dear"), ASK, 400),
            (f"{deployed.format('cheap')}?model=dear", ASK, 400),
            ("/v1/engines/dear/chat/completions?model=dear", ASK, 403),
        ):
            assert (await proxy.ask(body, bearer(ALICE), path=path)).status == status, path
        assert gateway.heads == []
        for path in (chat, f"{chat}?api-version=1", deployed.format("cheap")):
            assert (await proxy.ask(ASK, bearer(ALICE), path=path)).status == 200
    assert set(models(gateway)) == {"cheap"}
    assert set(gateway.provider.keys) == {f"Bearer {SERVER_KEY}"}


async def test_a_client_gives_it_no_instructions(gateway: Gateway) -> None:
    """No header that instructs the gateway reaches it from a client, under any spelling."""
    async with running(config(gateway)) as proxy:
        answer = await proxy.ask(ASK, gateway.attack())
        assert answer.status == 200, answer.body
    (head,) = gateway.heads
    names = {name.lower() for name, _ in head}
    assert names & {name.lower() for name in ATTACKS} == set()
    assert not any("_" in name for name in names)
    assert gateway.evil.keys == []


async def test_a_stream_with_a_server_tool(gateway: Gateway) -> None:
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
