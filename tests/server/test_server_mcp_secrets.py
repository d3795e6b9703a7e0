"""An MCP server gets the arguments of the model's calls, and nothing else of a client."""

import json

from chat_script import reply
from client_keys import ALICE, bearer, key_config
from mcp_http import real_server
from mcp_rig import hosted
from raw_upstream import RawRequest, RawUpstream, Step
from running_proxy import running

from proxy.app.app import Overrides
from proxy.tools.mcp.pins import GivenPins
from proxy.tools.mcp.servers import Server

LOOPBACK = ("127.0.0.0/8",)
WORDS = ("alice", "s3cret-cookie", "s3cret-header", "the-user", "10.1.2.3")
HEADERS = {
    **bearer(ALICE),
    "x-api-key": ALICE,
    "Cookie": "session=s3cret-cookie",
    "X-Mine": "s3cret-header",
    "X-Forwarded-For": "10.1.2.3",
    "OpenAI-Organization": "s3cret-header",
}


def model(request: RawRequest) -> list[Step]:
    """A model that adds two numbers, and repeats the result."""
    body = json.loads(request.body)
    results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    return reply(results[0]) if results else reply(None, ("call_1", "mcp__real__add", '{"a":1,"b":2}'))


async def test_a_clients_key_reaches_no_mcp_server() -> None:
    """The MCP server gets neither the client's key, headers, cookies or user name nor the provider's key."""
    async with real_server() as (url, seen):
        server = Server("real", url=url, headers={"x-team": "blue"})
        async with hosted(server, networks=LOOPBACK) as host, RawUpstream(model) as upstream:
            table = {"url": url, "headers": {"x-team": "blue"}}
            config = key_config(
                upstream.url,
                allow=("mcp__real__*",),
                mcp={"servers": {"real": table}, "networks": LOOPBACK},
            )
            pins = GivenPins(await host.pins(server))
            overrides = Overrides(mcp_socket=host.process.path, pins=pins)
            async with running(config, overrides) as proxy:
                ask = {
                    "model": "m",
                    "user": "the-user",
                    "messages": [{"role": "user", "content": "add"}],
                }
                answer = await proxy.ask(ask, HEADERS)
                assert answer.status == 200, answer.body
                assert "3" in answer.json["choices"][0]["message"]["content"]
    told = [(name, value) for headers in seen for name, value in headers.items()]
    assert ("x-team", "blue") in told
    assert not [pair for pair in told if pair[0] in ("authorization", "cookie", "x-api-key", "x-mine")]
    assert not [pair for pair in told for word in (*WORDS, ALICE, "sk-server") if word in "".join(pair)]
