"""A provider of Chat Completions that refuses what real providers refuse, even members that it sends.

If it is asked for the time, its model calls the proxy's clock tool and then repeats the result. This module
does not use the package under test.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from in_process import serving_app
from provider_rules import RULES, Broken, Fault, Refusal, refusal
from provider_rules.judge import found_now

WORDS = ("groq", "mistral", "fastapi", "vllm-mistral", "openai", "google")
"""The providers that do not take members of messages which they do not know."""


@dataclass
class StrictChat:
    """``emits`` are extra members of its messages, and ``call_emits`` of the calls in them.

    It refuses what the provider of that name refuses, except the members in ``takes``. ``always`` refuses
    every request that ends with a result of a tool, whatever members it has.
    """

    provider: str = "groq"
    emits: dict[str, Any] = field(default_factory=lambda: {"reasoning": "The clock knows."})
    call_emits: dict[str, Any] = field(default_factory=dict)
    takes: set[str] = field(default_factory=set)
    always: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def refusal(self, body: dict[str, Any]) -> Refusal | None:
        """Return the error for a request."""
        found = [
            one for one in found_now(self.provider, body) if not self.takes.intersection(one.fault.place[-1:])
        ]
        if not found and self.always and body["messages"][-1]["role"] == "tool":
            at = len(body["messages"]) - 2
            place = ("messages", at, next(iter(self.emits)))
            found = [Broken(RULES["chat-members"], Fault(place=place))]
        self.refused += [".".join(map(str, one.fault.place[2:])) for one in found[:1]]
        return refusal(self.provider, found)

    def message(self, messages: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
        """Return the model's answer and its finish reason."""
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": f"It is {messages[-1]['content']}", **self.emits}, "stop"
        function = {"name": "core__get_current_time", "arguments": '{"timezone":"UTC"}'}
        call = {"index": 0, "id": f"call_{len(self.requests)}", "type": "function", "function": function}
        call |= self.call_emits
        return {"role": "assistant", "content": None, **self.emits, "tool_calls": [call]}, "tool_calls"


@asynccontextmanager
async def serving_chat(provider: StrictChat) -> AsyncIterator[str]:
    """Serve the provider on the loopback and yield its base URL."""

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        provider.requests.append(body)
        provider.keys.append(request.headers.get("Authorization", ""))
        if (refused := provider.refusal(body)) is not None:
            return web.json_response(refused.body, status=refused.status)
        message, reason = provider.message(body["messages"])
        top = {"id": f"chatcmpl-{len(provider.requests)}", "created": 7, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return web.json_response({**top, "object": "chat.completion", "choices": [choice]})
        deltas: list[tuple[dict[str, Any], Any]] = [
            ({key: value}, None) for key, value in message.items()
        ] + [({}, reason)]
        choices = [{"index": 0, "delta": delta, "finish_reason": why} for delta, why in deltas]
        chunks = [{**top, "object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
        said = "".join(f"data: {data}\n\n" for data in [*map(json.dumps, chunks), "[DONE]"])
        # There is no charset, because some gateways recognize a stream only by exactly this text.
        return web.Response(body=said.encode(), headers={"Content-Type": "text/event-stream"})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    async with serving_app(app) as address:
        yield f"{address}/v1"
