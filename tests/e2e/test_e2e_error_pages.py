"""The official clients raise errors of the proxy, which have the address of the page about them."""

import urllib.request
from typing import Any

import anthropic
import ollama
import openai
import pytest
from closed_port import closed_port
from running_proxy import make_config, running

from proxy.json.in_thread import in_thread

HI: Any = [{"role": "user", "content": "hi"}]
TOOLS: dict[str, Any] = {"modules": ("probe_tools",)}


def read(address: str) -> str:
    """Return the content of an address."""
    with urllib.request.urlopen(address) as answer:
        return str(answer.read(), "utf-8")


@pytest.mark.parametrize("tools", [False, True], ids=["passthrough", "run"])
async def test_openais_client(tools: bool) -> None:
    """The exception has the page's address in its body and header, and names a wrong field."""
    with closed_port() as port:
        config = make_config({"base_url": f"http://127.0.0.1:{port}/v1"}, **(TOOLS if tools else {}))
        async with running(config) as proxy:
            base_url = f"http://127.0.0.1:{proxy.port}/v1"
            async with openai.AsyncOpenAI(base_url=base_url, api_key="k", max_retries=0) as client:
                with pytest.raises(openai.InternalServerError) as failed:
                    await client.chat.completions.create(model="m", messages=HI)
                assert failed.value.code == "upstream_unreachable"
                assert isinstance(failed.value.body, dict)
                address = failed.value.body["doc_url"]
                assert failed.value.response.headers["link"] == f'<{address}>; rel="help"'
                assert "could not connect" in await in_thread(lambda: read(address))
                loud = {"x-toolrelay-trace": "loud"}
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.chat.completions.create(model="m", messages=HI, extra_headers=loud)
                assert refused.value.param == "x-toolrelay-trace"


@pytest.mark.parametrize("tools", [False, True], ids=["passthrough", "run"])
async def test_anthropics_client(tools: bool) -> None:
    """The exception shows the page's address, which is in the error object."""
    with closed_port() as port:
        upstream = {"base_url": f"http://127.0.0.1:{port}", "wires": ["anthropic"]}
        async with running(make_config(upstream, **(TOOLS if tools else {}))) as proxy:
            base_url = f"http://127.0.0.1:{proxy.port}"
            async with anthropic.AsyncAnthropic(base_url=base_url, api_key="k", max_retries=0) as client:
                with pytest.raises(anthropic.InternalServerError) as failed:
                    await client.messages.create(model="m", max_tokens=9, messages=HI)
                assert failed.value.request_id
                assert isinstance(failed.value.body, dict)
                address = failed.value.body["error"]["doc_url"]
                assert address in str(failed.value)
                assert "could not connect" in await in_thread(lambda: read(address))


@pytest.mark.parametrize("tools", [False, True], ids=["passthrough", "run"])
async def test_ollamas_client(tools: bool) -> None:
    """The error is one text, as Ollama's client expects; the page's address is only in the header."""
    with closed_port() as port:
        upstream = {"base_url": f"http://127.0.0.1:{port}", "wires": ["ollama"]}
        async with running(make_config(upstream, **(TOOLS if tools else {}))) as proxy:
            client = ollama.AsyncClient(host=f"http://127.0.0.1:{proxy.port}")
            try:
                with pytest.raises(ollama.ResponseError) as failed:
                    await client.chat("m", HI)
            finally:
                await client.close()  # type: ignore[no-untyped-call]
            assert failed.value.status_code == 502
            assert "could not be reached" in failed.value.error
            answer = await proxy.ask({"model": "m", "messages": HI}, path="/api/chat")
            assert set(answer.json) == {"error"}
            assert answer.header("link") == (
                f'<http://127.0.0.1:{proxy.port}/docs/errors/upstream_unreachable>; rel="help"'
            )
