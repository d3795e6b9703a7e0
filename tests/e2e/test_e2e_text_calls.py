"""The official clients use tools with a model that takes no tools and can only write text."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from anthropic import AsyncAnthropic
from in_process import serving_app
from looping import ECHO
from openai import AsyncOpenAI
from running_proxy import make_config, running
from text_call_rig import body_of, say

TOOL: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


@dataclass
class TextOnly:
    """A Chat server whose model follows the words of its prompt: it knows no field for tools and refuses a
    request that has one. ``calls`` maps a word of the question to the call that it writes."""

    calls: dict[str, str]
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        body = await request.json()
        self.asked.append(body)
        if {"tools", "tool_choice", "functions", "parallel_tool_calls"} & set(body):
            return web.json_response({"error": {"message": "tools are not supported"}}, status=400)
        if any(set(message) - {"role", "content"} for message in body["messages"]):
            return web.json_response({"error": {"message": "unknown member"}}, status=400)
        text = self.words(body["messages"])
        if not body.get("stream"):
            raw = say("chat", text, stream=False)[0]
            assert isinstance(raw, bytes)
            return web.Response(body=raw.partition(b"\r\n\r\n")[2], content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(body_of(say("chat", text)))
        return response

    def words(self, messages: Sequence[dict[str, Any]]) -> str:
        """Return the model's text: the results that it got, or the calls for words in the question."""
        last = messages[-1]["content"]
        if "<tool_response>" in last:
            return f"I was told: {last}"
        told = messages[0]["content"] if messages[0]["role"] == "system" else ""
        calls = [
            call for word, call in self.calls.items() if word in last and json.loads(call)["name"] in told
        ]
        return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls) or "Hello."


@asynccontextmanager
async def asking(**served: Any) -> AsyncIterator[tuple[str, TextOnly]]:
    """Yield the address of a proxy in front of such a server, and the server."""
    model = TextOnly(
        {
            "weather": '{"name": "get_weather", "arguments": {"city": "Paris"}}',
            "echo": json.dumps({"name": ECHO, "arguments": {"text": "noon"}}),
        }
    )
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.answer)
    async with serving_app(app) as address:
        table = {"base_url": f"{address}/v1", "wires": ("chat",), "tools": "prompt", **served}
        async with running(make_config(table, modules=("probe_tools",))) as proxy:
            yield f"http://127.0.0.1:{proxy.port}", model


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "reply"])
async def test_openais_chat_client(stream: bool) -> None:
    """OpenAI's client gets a real call of its own function and the final answer; a server tool runs in the
    same turn, unseen."""
    tools: list[Any] = [{"type": "function", "function": {"name": "get_weather", "parameters": TOOL}}]
    messages: list[Any] = [{"role": "user", "content": "The weather, and an echo?"}]
    async with (
        asking(text_calls="hermes") as (url, model),
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
    ):

        async def ask() -> Any:
            if not stream:
                return await client.chat.completions.create(model="qwen3", messages=messages, tools=tools)
            async with client.chat.completions.stream(
                model="qwen3", messages=messages, tools=tools
            ) as helper:
                return await helper.get_final_completion()

        first = (await ask()).choices[0]
        assert first.finish_reason == "tool_calls"
        (call,) = first.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
        assert not first.message.content
        messages += [
            {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": {
                "name": call.function.name, "arguments": call.function.arguments}}]},
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]  # fmt: skip
        second = (await ask()).choices[0]
    assert second.finish_reason == "stop"
    assert second.message.content.index("sunny") < second.message.content.index("noon")
    assert len(model.asked) == 2
    system = [asked["messages"][0]["content"] for asked in model.asked]
    assert system[0] == system[1]


async def test_openais_responses_client() -> None:
    """Over Responses, the client's function and a server tool work in the same turn."""
    tools: list[Any] = [{"type": "function", "name": "get_weather", "parameters": TOOL, "strict": False}]
    async with (
        asking(text_calls="hermes") as (url, _),
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        client.responses.stream(model="qwen3", input="The weather, and an echo?", tools=tools) as helper,
    ):
        first = await helper.get_final_response()
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
        output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
        second = await client.responses.create(
            model="qwen3", input=output, tools=tools, previous_response_id=first.id
        )
    assert second.status == "completed"
    assert second.output_text.index("sunny") < second.output_text.index("noon")


async def test_anthropics_client() -> None:
    """Over Messages, the client's tool and a server tool work in the same turn."""
    tools: list[Any] = [{"name": "get_weather", "input_schema": TOOL}]
    messages: list[Any] = [{"role": "user", "content": "The weather, and an echo?"}]
    async with (
        asking(text_calls="hermes") as (url, _),
        AsyncAnthropic(base_url=url, api_key="none") as client,
    ):
        async with client.messages.stream(
            model="qwen3", max_tokens=500, messages=messages, tools=tools
        ) as helper:
            first = await helper.get_final_message()
        assert first.stop_reason == "tool_use"
        (call,) = [block for block in first.content if block.type == "tool_use"]
        assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
        messages += [
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_none=True) for block in first.content],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}],
            },
        ]
        second = await client.messages.create(model="qwen3", max_tokens=500, messages=messages, tools=tools)
    (block,) = [block for block in second.content if block.type == "text"]
    assert block.text.index("sunny") < block.text.index("noon")


async def test_a_question_that_needs_no_tool() -> None:
    """A question that needs no tool gets the model's plain answer."""
    async with asking() as (url, _), AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = await client.chat.completions.create(
            model="qwen3", messages=[{"role": "user", "content": "Hi"}]
        )
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello.", "stop")
