"""A Chat upstream whose content is a list of thoughts and texts, as Magistral's is, for all clients."""

import json
from typing import Any

import pytest
from chat_script import finish, role, sse, stream
from looping import ECHO
from raw_upstream import RawUpstream, Step, whole
from running_proxy import make_config, running
from text_call_rig import PATHS, WIRES, ask, thought_in, understood

SAID = [("thinking", "Let me "), ("thinking", "think."), ("text", "It is "), ("text", "noon.")]
streamed = pytest.mark.parametrize("streams", [True, False], ids=["stream", "reply"])


def part(kind: str, text: str) -> dict[str, Any]:
    """One part of the content, in Mistral's form."""
    return {"type": kind, kind: [{"type": "text", "text": text}] if kind == "thinking" else text}


def turn(*, streams: bool, calls: list[Any] | None = None) -> list[Step]:
    """A turn that thinks, says something, and calls tools."""
    reason = "tool_calls" if calls else "stop"
    parts = [part(*one) for one in SAID]
    if streams:
        deltas = [{"content": [one]} for one in parts] + ([{"tool_calls": calls}] if calls else [])
        chunks = [sse({"id": "a", "choices": [{"index": 0, "delta": one}]}) for one in deltas]
        return stream(role(), b"".join(chunks), finish(reason))
    message = {"role": "assistant", "content": parts, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return whole(json.dumps({"id": "a", "object": "chat.completion", "choices": [choice]}).encode())


@pytest.mark.parametrize("client", [wire for wire in WIRES if wire != "chat"])
@streamed
async def test_thoughts_in_the_content_are_reasoning(client: str, streams: bool) -> None:
    """A client of another dialect gets the thoughts as reasoning and the texts as text."""
    async with (
        RawUpstream(turn(streams=streams)) as server,
        running(make_config({"base_url": server.url, "wires": ("chat",)}, allow=())) as proxy,
    ):
        answer = await proxy.ask(ask(client, stream=streams), path=PATHS[client])
    assert understood(client, answer, stream=streams).text == "It is noon."
    assert thought_in(client, answer, stream=streams) == "Let me think."


@pytest.mark.parametrize("client", ["chat", "anthropic"])
@streamed
@pytest.mark.accepts("chat-parts", why="Mistral has thoughts in the content")
async def test_thoughts_in_the_content_go_back_in_their_form(client: str, streams: bool) -> None:
    """With the results of its calls the model gets its own thoughts and texts back, each as one part."""
    function = {"name": ECHO, "arguments": '{"text": "noon"}'}
    calls = [{"index": 0, "id": "abcdefghi", "type": "function", "function": function}]
    scripts = [turn(streams=streams, calls=calls), turn(streams=streams)]
    async with (
        RawUpstream(*scripts) as server,
        running(make_config({"base_url": server.url, "wires": ("chat",)}, modules=("probe_tools",))) as proxy,
    ):
        answer = await proxy.ask(ask(client, stream=streams, tools=()), path=PATHS[client])
        assert answer.status == 200
        sent = json.loads(server.requests[1].body)["messages"][-2]
    assert sent["tool_calls"][0]["function"]["name"] == ECHO
    content = sent["content"]
    assert [one["type"] for one in content][:: 1 if streams else 2] == ["thinking", "text"]
    assert "".join(one["text"] for one in content if one["type"] == "text") == "It is noon."
