"""Tests of an agent that need no model, no key and no network: each is answered by its own recording."""

import json

from anthropic import Anthropic
from openai import OpenAI

MODEL = "qwen2.5-coder-0.5b-instruct-q4_k_m"
RIVERS = [{"role": "user", "content": "Write one sentence about rivers."}]
TIME = [{"role": "user", "content": "What time is it in Berlin right now?"}]
CLOCK = {
    "type": "function",
    "function": {
        "name": "core__get_current_time",
        "description": "Get the current date and time in a time zone",
        "parameters": {"type": "object", "properties": {"timezone": {"type": "string"}}},
    },
}


def test_openai(toolrelay_replay):
    answer = OpenAI().chat.completions.create(model=MODEL, messages=RIVERS)
    assert "river" in answer.choices[0].message.content.lower()


def test_anthropic(toolrelay_replay):
    answer = Anthropic().messages.create(model=MODEL, max_tokens=200, messages=RIVERS)
    assert "river" in answer.content[0].text.lower()


def test_stream(toolrelay_replay):
    stream = OpenAI().chat.completions.create(model=MODEL, messages=RIVERS, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert len(pieces) > 3
    assert "river" in "".join(pieces).lower()


def test_client_tool_loop(toolrelay_replay):
    """The agent runs the tool that the model calls, and the model reads the result."""
    client, messages, asked = OpenAI(), list(TIME), []
    while True:
        message = (
            client.chat.completions.create(model=MODEL, messages=messages, tools=[CLOCK]).choices[0].message
        )
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            asked.append(json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"time": "14:05"}'})
    assert asked == [{"timezone": "Europe/Berlin"}]
    assert "14:05" in message.content


def test_server_tool(toolrelay_replay):
    """The tool ran on the server when this was recorded; the client got only the answer."""
    answer = OpenAI().chat.completions.create(model=MODEL, messages=TIME)
    assert answer.choices[0].message.tool_calls is None
    assert "Berlin" in answer.choices[0].message.content
