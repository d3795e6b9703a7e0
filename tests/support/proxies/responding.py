"""Shared by the tests of the tool loop with Responses: a client, a proxy and a scripted upstream."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from looping import TIME, looping
from raw_upstream import RawUpstream, Step
from responses_check import Reading, check_response_stream
from running_proxy import Answer, Proxy

PATH = "/v1/responses"
HIDDEN = (TIME, '"call_s"', "fc_call_s", "toolrelay")


class Client:
    """A client of the Responses API on a socket."""

    def __init__(self, proxy: Proxy, upstream: RawUpstream) -> None:
        self.proxy = proxy
        self.upstream = upstream

    async def ask(self, body: Any, headers: Any = (), *, path: str = PATH) -> Answer:
        """Send one request and return the answer."""
        return await self.proxy.ask(body, headers, path=path)

    async def said(self, body: Any, headers: Any = (), hidden: tuple[str, ...] = HIDDEN) -> Reading:
        """Send a request whose answer the proxy composes; read the answer and check the rules."""
        answer = await self.ask(body, headers)
        assert answer.status == 200, answer.body
        assert answer.clean
        if body.get("stream"):
            return check_response_stream(answer.body, hidden=hidden)
        for text in hidden:
            assert text not in answer.body.decode()
        read = Reading(response=answer.json)
        read.text = "".join(p["text"] for item in read.of_type("message") for p in item["content"])
        return read

    async def get(self, path: str, method: str = "GET") -> Answer:
        """Send a request without a body."""
        return await self.proxy.ask(None, method=method, path=f"{PATH}/{path}")

    def asked(self, number: int) -> dict[str, Any]:
        """Return the body of the n-th upstream request, counted from 1."""
        return dict(json.loads(self.upstream.requests[number - 1].body))


@asynccontextmanager
async def client_of(*scripts: Sequence[Step], **config: Any) -> AsyncIterator[Client]:
    """Run a proxy before an upstream that plays one script per request, and yield a client."""
    async with looping(*scripts, **config) as (proxy, upstream):
        yield Client(proxy, upstream)


def well_formed(items: Sequence[dict[str, Any]]) -> None:
    """Check OpenAI's rules for an input: each call has one output after it, and an item follows reasoning."""
    waiting: list[str] = []
    seen: set[str] = set()
    for position, item in enumerate(items):
        kind = item.get("type")
        if kind == "function_call":
            assert item["call_id"] not in seen, "a call id twice"
            seen.add(item["call_id"])
            waiting.append(item["call_id"])
            assert isinstance(json.loads(item["arguments"]), dict)
        elif kind == "function_call_output":
            assert item["call_id"] in waiting, "an output that answers nothing"
            waiting.remove(item["call_id"])
        elif kind == "reasoning":
            following = items[position + 1]
            assert following.get("type") in ("function_call", "message", "custom_tool_call")
    assert not waiting, f"calls without an output: {waiting}"
