"""Shared by the tests of the tool loop: a proxy with tools before a scripted upstream."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from chat_script import call, content, finish, role, stream
from raw_upstream import RawRequest, RawUpstream, Script, Step
from running_proxy import Answer, Proxy, make_config, running

from proxy.app.app import Overrides
from proxy.toolbox.clock import FixedClock

ASK: dict[str, Any] = {
    "model": "gpt-4o-mini",
    "stream": True,
    "messages": [{"role": "user", "content": "hi"}],
}
TIME = "core__get_current_time"
ECHO = "probe_tools__echo"
CLIENT_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "mine", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
ANSWER = stream(role(id="chatcmpl-2"), content("It ", "is noon.", id="chatcmpl-2"), finish(id="chatcmpl-2"))
CLOCK = FixedClock(datetime.fromisoformat("2026-11-21T12:00:00+00:00"))


@asynccontextmanager
async def looping(*scripts: Script, **config: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy with the core and the probe tools before an upstream that plays one script per turn."""
    overrides = Overrides(clock=CLOCK, **config.pop("overrides", {}))
    async with RawUpstream(*scripts) as upstream:
        served = {"base_url": upstream.url, **config.pop("served", {})}
        settings = make_config(served, modules=("probe_tools",), **config)
        async with running(settings, overrides) as proxy:
            yield proxy, upstream


async def one_loop(
    *scripts: Script, ask: Any = None, headers: Any = (), **config: Any
) -> tuple[Answer, list[RawRequest]]:
    """Send one request; return the answer and the requests that the upstream got."""
    async with looping(*scripts, **config) as (proxy, upstream):
        return await proxy.ask(ask or ASK, headers), upstream.requests


def messages_of(request: RawRequest) -> list[dict[str, Any]]:
    """Return the messages of an upstream request, and check that they are well formed.

    Each assistant message with calls is followed by exactly one result for each of them. The ids of its
    calls are unique and not blank, and the arguments are the text of a JSON object.
    """
    messages: list[dict[str, Any]] = json.loads(request.body)["messages"]
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, "a result that answers nothing"
            assert isinstance(message["content"], str | list)
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, f"calls without a result: {waiting}"
        if message["role"] == "assistant":
            waiting = [c["id"] for c in message.get("tool_calls") or ()]
            assert all(waiting)
            assert len(set(waiting)) == len(waiting)
            for made in message.get("tool_calls") or ():
                assert isinstance(json.loads(made["function"]["arguments"]), dict)
    assert not waiting, f"calls without a result: {waiting}"
    return messages


def follow_up(requests: Sequence[RawRequest]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the assistant message and the results in the request of the second turn."""
    messages = messages_of(requests[1])
    at = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    return messages[at], messages[at + 1 :]


def called(*calls: tuple[str, str, str], reason: str = "tool_calls") -> list[Step]:
    """Return a streamed turn that makes calls: (id, name, arguments)."""
    fragments = [call(i, n, a, at) for at, (i, n, a) in enumerate(calls)]
    return stream(role(), *fragments, finish(reason))
