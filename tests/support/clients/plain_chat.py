"""A provider that has only Chat Completions and refuses what OpenAI refuses.

Its model remembers a code word from the conversation. It calls the client's weather tool if the client
declares one and asks for the weather. Otherwise it repeats the last message. This module does not use the
package under test.
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web
from in_process import serving_app
from provider_rules import RULES, Asked, Broken, Refusal, refusal
from provider_rules.judge import found_now

_WORD = re.compile(r"code word: (\w+)", re.IGNORECASE)
Message = dict[str, Any]


@dataclass
class PlainChat:
    """``requests`` are the bodies of completions, and ``others`` are all other requests.

    ``reasoning`` is the model's reasoning, and ``finish`` the finish reason of an answer in text.
    ``takes_reasoning``: whether requests may have reasoning (``yes``, ``no``), or must have it with calls
    (``asked``), as Moonshot requires.
    """

    reasoning: str = ""
    finish: str = "stop"
    refusal: str = ""
    takes_reasoning: Literal["yes", "no", "asked"] = "yes"
    requests: list[dict[str, Any]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def refused(self, body: dict[str, Any]) -> Refusal | None:
        """Return the error for a request that OpenAI would refuse, or Moonshot for the lack of reasoning."""
        found = found_now("openai", body)
        if self.takes_reasoning != "no":
            found = [one for one in found if one.fault.place[-1:] != ("reasoning_content",)]
        if self.takes_reasoning == "asked":
            rule = RULES["chat-reasoning-back-kimi"]
            found += [Broken(rule, fault) for fault in rule.check(Asked({}, body))]
        return refusal("openai", found)

    def answer(self, body: dict[str, Any]) -> tuple[Message, str]:
        """Return the model's message and its finish reason."""
        said = [(message["role"], _text(message)) for message in body["messages"]]
        last_role, last = said[-1]
        tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
        message: Message = {"role": "assistant", "content": None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if "get_weather" in tools and last_role == "user" and "weather" in last.lower():
            function = {"name": "get_weather", "arguments": '{"location":"San Francisco, CA"}'}
            call = {"id": f"call_{len(self.requests)}", "type": "function", "function": function}
            return {**message, "tool_calls": [call]}, "tool_calls"
        if self.refusal:
            return {**message, "refusal": self.refusal}, "stop"
        words = [found[1] for _, text in said if (found := _WORD.search(text))]
        answer = (
            words[-1] if words and "code word" in last and not _WORD.search(last) else f"You said: {last}"
        )
        return {**message, "content": answer}, self.finish

    def usage(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the usage of an answer; each message of the request counts as ten tokens."""
        received = 10 * len(body["messages"])
        details = {"reasoning_tokens": 3 if self.reasoning else 0}
        usage = {"prompt_tokens": received, "completion_tokens": 5, "total_tokens": received + 5}
        return {**usage, "completion_tokens_details": details}


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(part.get("text", "") for part in content)
    return content or ""


def _deltas(message: Message) -> list[Message]:
    """Cut a message into the deltas of a stream: texts into words, arguments into two halves."""
    deltas: list[Message] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "content", "refusal"):
        deltas += [{name: piece} for piece in re.findall(r"\s*\S+", message.get(name) or "")]
    for index, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"]["arguments"]
        opened = {**call, "function": {**call["function"], "arguments": arguments[:5]}}
        deltas.append({"tool_calls": [{"index": index, **opened}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments[5:]}}]})
    return deltas


def _respond(provider: PlainChat, body: dict[str, Any]) -> web.Response:
    message, reason = provider.answer(body)
    top = {"id": f"chatcmpl-{len(provider.requests)}", "created": 7, "model": body["model"]}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        whole = {**top, "object": "chat.completion", "choices": [choice], "usage": provider.usage(body)}
        return web.json_response(whole)
    top["object"] = "chat.completion.chunk"
    deltas = [*((delta, None) for delta in _deltas(message)), ({}, reason)]
    chunks: list[dict[str, Any]] = [
        {**top, "choices": [{"index": 0, "delta": delta, "finish_reason": why}]} for delta, why in deltas
    ]
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**top, "choices": [], "usage": provider.usage(body)})
    said = "".join(f"data: {data}\n\n" for data in [*map(json.dumps, chunks), "[DONE]"])
    return web.Response(body=said.encode(), headers={"Content-Type": "text/event-stream"})


@asynccontextmanager
async def serving_plain_chat(provider: PlainChat) -> AsyncIterator[str]:
    """Serve the provider on the loopback and yield its base URL."""

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        provider.requests.append(body)
        if (refused := provider.refused(body)) is not None:
            return web.json_response(refused.body, status=refused.status)
        return _respond(provider, body)

    async def unknown(request: web.Request) -> web.Response:
        provider.others.append(f"{request.method} {request.path}")
        return web.json_response({"error": {"message": "Not found"}}, status=404)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_route("*", "/{rest:.*}", unknown)
    async with serving_app(app) as address:
        yield f"{address}/v1"
