"""A provider of the Responses API that is as strict as OpenAI's, with a model that follows rules.

It stores responses if it may, refuses every input that OpenAI refuses, and answers the question. If the
question has ``time``, the model calls the proxy's clock tool; if it has ``calendar``, it calls the client's
function; for both words it makes both calls at once. Then it says the results. This module does not use
the package under test.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from in_process import serving_app
from provider_rules import RULES, Broken, Fault, refusal
from provider_rules.judge import found_now
from responses_script import (
    closing,
    encode,
    function_call,
    item_events,
    message,
    opening,
    reasoning,
    resource,
)

Item = dict[str, Any]


class Refused(Exception):
    """The error of a request that OpenAI would answer with 400."""

    def __init__(self, text: str, code: str | None = None) -> None:
        self.code = code
        super().__init__(text)


@dataclass
class Provider:
    """``calls`` maps a word of a question to the function that the model calls for it.

    ``keeps`` says whether the provider stores responses, and ``sees`` whether its model accepts images.
    ``refuses`` is a member of the provider's own items that it does not accept in a request.
    """

    keeps: bool = True
    sees: bool = True
    refuses: str = ""
    calls: dict[str, str] = field(
        default_factory=lambda: {"time": "core__get_current_time", "calendar": "get_calendar"}
    )
    requests: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    stored: dict[str, list[Item]] = field(default_factory=dict)
    conversations: dict[str, list[Item]] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)
    items: dict[str, Item] = field(default_factory=dict)
    count: int = 0

    def next_id(self, prefix: str) -> str:
        """Return a new id."""
        self.count += 1
        return f"{prefix}_{self.count:048x}"

    def answer(self, body: dict[str, Any]) -> tuple[list[Item], str]:
        """Return the items of a response and its id. Raises :class:`Refused`."""
        given = body.get("input", [])
        items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        before: list[Item] = []
        conversation = body.get("conversation")
        if previous := body.get("previous_response_id"):
            if previous not in self.stored:
                raise Refused(
                    f"Previous response with id '{previous}' not found.", "previous_response_not_found"
                )
            before = self.stored[previous]
        elif conversation:
            before = self.conversations.get(conversation, [])
        items = [self._resolved(item) for item in items]
        context = [*before, *items]
        self._check(body, context)
        made = self._model(context, body)
        response_id = self.next_id("resp")
        if body.get("store", True) and self.keeps:
            self.stored[response_id] = [*context, *made]
            self.items |= {item["id"]: item for item in made}
        if conversation:
            self.conversations[conversation] = [*context, *made]
        return made, response_id

    def _resolved(self, item: Item) -> Item:
        if item.get("type") != "item_reference":
            return item
        if item["id"] not in self.items:
            raise Refused(f"Item with id '{item['id']}' not found.")
        return self.items[item["id"]]

    def _check(self, body: dict[str, Any], context: list[Item]) -> None:
        kept = body.keys() - {"previous_response_id", "conversation"}
        found = found_now("openai-responses", {**{name: body[name] for name in kept}, "input": context})
        for position, item in enumerate(context):
            if self.refuses in item and item.get("type", "message") != "function_call_output":
                fault = Fault(place=("input", position, self.refuses))
                found.append(Broken(RULES["responses-members"], fault))
        if (refused := refusal("openai-responses", found)) is not None:
            raise Refused(refused.body["error"]["message"], refused.body["error"]["code"])
        for position, item in enumerate(context):
            if item.get("type") == "reasoning":
                self._check_reasoning(item, context[position + 1 : position + 2])
            self._check_images(item.get("output"))

    def _check_images(self, output: Any) -> None:
        for part in output if isinstance(output, list) else ():
            if part["type"] == "input_image" and not self.sees:
                raise Refused(
                    "Invalid content type. image_url is only supported by certain models.", "invalid_value"
                )

    def _check_reasoning(self, item: Item, following: list[Item]) -> None:
        if item.get("id") not in self.made:
            raise Refused(f"Item with id '{item.get('id')}' not found.")
        if not following or following[0].get("id") not in (self.made[item["id"]], None):
            raise Refused(
                f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
            )
        if not item.get("encrypted_content"):
            raise Refused(f"Item with id '{item['id']}' not found. Items are not persisted.")

    def _model(self, context: list[Item], body: dict[str, Any]) -> list[Item]:
        asked = max(n for n, item in enumerate(context) if item.get("role") == "user")
        question = _text(context[asked])
        offered = {tool["name"] for tool in body.get("tools") or () if tool.get("type") == "function"}
        called = {
            item["name"]: item["call_id"] for item in context[asked:] if item.get("type") == "function_call"
        }
        wanted = [
            name for word, name in self.calls.items() if word in question and name in offered - set(called)
        ]
        if wanted and body.get("tool_choice") != "none":
            think = reasoning("I need a tool.", id=self.next_id("rs"), encrypted_content="gAAAA")
            made = [self._call(name) for name in wanted]
            self.made[think["id"]] = made[0]["id"]
            return [think, *made]
        outputs = {
            i["call_id"]: i["output"] for i in context[asked:] if i.get("type") == "function_call_output"
        }
        told = [f"{name}={_short(outputs[call_id])}" for name, call_id in sorted(called.items())]
        text = json.dumps({"told": told}) if "format" in body.get("text", {}) else "; ".join(told) or "Hello."
        return [message(text, id=self.next_id("msg"))]

    def _call(self, name: str) -> Item:
        arguments = '{"timezone":"UTC"}' if name.startswith("core__") else "{}"
        return {**function_call(self.next_id("call"), name, arguments), "id": self.next_id("fc")}


def _text(item: Item) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _short(output: Any) -> str:
    if isinstance(output, list):
        return " ".join("IMAGE" if part["type"] == "input_image" else part["text"] for part in output)
    try:
        told = json.loads(output)
    except ValueError:
        return str(output)
    return str(told.get("iso", told) if isinstance(told, dict) else output)


@asynccontextmanager
async def serving_provider(provider: Provider) -> AsyncIterator[str]:
    """Serve the provider on the loopback and yield its base URL."""

    async def create(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        provider.requests.append(body)
        try:
            items, response_id = provider.answer(body)
        except Refused as refused:
            provider.refused.append(str(refused))
            error = {
                "message": str(refused),
                "type": "invalid_request_error",
                "param": "input",
                "code": refused.code,
            }
            return web.json_response({"error": error}, status=400)
        more = {
            "id": response_id, "tools": body.get("tools", []), "tool_choice": body.get("tool_choice", "auto"),
            "store": bool(body.get("store", True)) and provider.keeps, "model": body["model"],
            "previous_response_id": body.get("previous_response_id"),
            "created_at": 1700000000 + provider.count,
        }  # fmt: skip
        usage = {
            "input_tokens": 10, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 15,
        }  # fmt: skip
        if not body.get("stream"):
            return web.json_response(resource(items, usage=usage, **more))
        events = [*opening(**more)]
        for index, item in enumerate(items):
            events += item_events(item, index)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(encode([*events, closing(items, usage=usage, **more)]))
        await answer.write_eof()
        return answer

    async def delete(request: web.Request) -> web.Response:
        response_id = request.match_info["id"]
        provider.deleted.append(response_id)
        found = provider.stored.pop(response_id, None) is not None
        return web.json_response({"id": response_id, "deleted": found}, status=200 if found else 404)

    async def missing(request: web.Request) -> web.Response:
        error = {"message": "Not found.", "type": "invalid_request_error", "param": None, "code": None}
        return web.json_response({"error": error}, status=404)

    app = web.Application()
    app.router.add_post("/v1/responses", create)
    app.router.add_delete("/v1/responses/{id}", delete)
    app.router.add_route("*", "/{tail:.*}", missing)
    async with serving_app(app) as address:
        yield f"{address}/v1"
