"""A provider of Chat Completions that refuses members of assistant messages, even some that it sends.

If it is asked for the time, its model calls the proxy's clock tool and then repeats the result.  Its errors
have the exact texts of real providers.  This module does not use the package under test.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

__all__ = ["DIALECTS", "StrictChat", "serving_chat"]

TAKEN = {"role", "content", "tool_calls", "name"}
CALL_TAKEN = {"id", "type", "function"}
Words = Callable[[int, str, Any], tuple[int, Any]]


def _groq(at: int, name: str, value: Any) -> tuple[int, Any]:
    said = (
        f"'messages.{at}' : for 'role:assistant' the following must be satisfied"
        f"[('messages.{at}' : property '{name}' is unsupported)]"
    )
    return 400, {"error": {"message": said, "type": "invalid_request_error"}}


def _mistral(at: int, name: str, value: Any) -> tuple[int, Any]:
    place = ["body", "messages", at, "assistant", *name.split(".")]
    said = {"type": "extra_forbidden", "loc": place, "msg": "Extra inputs are not permitted", "input": value}
    return 422, {"object": "error", "message": {"detail": [said]}, "type": "invalid_request_error"}


def _fastapi(at: int, name: str, value: Any) -> tuple[int, Any]:
    return 422, {"detail": _mistral(at, name, value)[1]["message"]["detail"]}


def _vllm(at: int, name: str, value: Any) -> tuple[int, Any]:
    place = ("body", "messages", at, "assistant", *name.split("."))
    faults = [
        {"type": "extra_forbidden", "loc": place, "msg": "Extra inputs are not permitted", "input": value}
    ]
    return 400, {"object": "error", "message": str(faults), "type": "BadRequestError", "code": 400}


def _openai(at: int, name: str, value: Any) -> tuple[int, Any]:
    place = f"messages[{at}].{name}"
    error = {"message": f"Unknown parameter: '{place}'.", "type": "invalid_request_error", "param": place}
    return 400, {"error": {**error, "code": "unknown_parameter"}}


def _google(at: int, name: str, value: Any) -> tuple[int, Any]:
    said = f"Invalid JSON payload received. Unknown name \"{name}\" at 'messages[{at}]': Cannot find field."
    return 400, {"error": {"code": 400, "message": said, "status": "INVALID_ARGUMENT"}}


DIALECTS: dict[str, Words] = {
    "groq": _groq, "mistral": _mistral, "fastapi": _fastapi,
    "vllm": _vllm, "openai": _openai, "google": _google,
}  # fmt: skip


@dataclass
class StrictChat:
    """``emits`` are extra members of its messages, and ``call_emits`` of the calls in them.

    It refuses a member that is not in ``taken``, and one of a call that is not in ``call_taken``.  ``always``
    refuses every request that ends with a result of a tool, whatever members it has.
    """

    words: str = "groq"
    emits: dict[str, Any] = field(default_factory=lambda: {"reasoning": "The clock knows."})
    call_emits: dict[str, Any] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: set(TAKEN))
    call_taken: set[str] = field(default_factory=lambda: set(CALL_TAKEN))
    always: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def fault(self, messages: list[dict[str, Any]]) -> tuple[int, Any] | None:
        """Return the error for a history as status and body, or ``None``."""
        for at, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            found = [(name, value) for name, value in message.items() if name not in self.taken]
            for position, call in enumerate(message.get("tool_calls") or ()):
                found += [
                    (f"tool_calls.{position}.{name}", value)
                    for name, value in call.items()
                    if name not in self.call_taken
                ]
            if not found and self.always and messages[-1]["role"] == "tool":
                found = list(self.emits.items())
            if found:
                self.refused.append(found[0][0])
                return DIALECTS[self.words](at, *found[0])
        return None

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
        if (fault := provider.fault(body["messages"])) is not None:
            return web.json_response(fault[1], status=fault[0])
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
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
