"""Held turns of Messages: only the upstream's own dialect gets back what others cannot represent."""

import json
from typing import Any

import pytest
import responses_script as responses
from chat_script import payloads_of, text_of
from looping import CLIENT_TOOL, ECHO, looping
from messages_script import stream, text, thinking, tool_use
from raw_upstream import FIN, RawUpstream, whole
from responses_check import check_response_stream
from running_proxy import Proxy, make_config, running
from sse_check import check_chat_stream

THOUGHT = thinking("Both, I think.\n", "EqQBCkYIBxgCKkD+/==")
REDACTED = {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p=="}
OURS = tool_use("toolu_1", ECHO, {"text": "noon"}, caller={"type": "direct"})
MINE = tool_use("toolu_2", "mine", {"a": 1}, caller={"type": "direct"})
FIRST = tool_use("toolu_0", ECHO, {"text": "first"})
MIXED = stream(THOUGHT, REDACTED, OURS, MINE)
ANSWER = stream(text("Both."), id="msg_2")
ASK: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [CLIENT_TOOL],
}
ANTHROPIC = {"served": {"wires": ["anthropic"]}}


async def returned(proxy: Proxy) -> dict[str, Any]:
    """Ask for a mixed turn; return the request in which the client answers it."""
    read = check_chat_stream((await proxy.ask(ASK)).body, wants_usage=False, hidden=(ECHO,))
    (shown,) = read.calls
    made = {"id": shown.id, "type": "function", "function": {"name": "mine", "arguments": shown.arguments}}
    back = [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": shown.id, "content": "mine too"},
    ]
    return {**ASK, "messages": [*ASK["messages"], *back]}


def told(upstream: RawUpstream, at: int = -1) -> list[Any]:
    """Return the contents of the model's messages in a request."""
    messages = json.loads(upstream.requests[at].body)["messages"]
    return [message["content"] for message in messages if message["role"] == "assistant"]


async def test_a_thought_goes_back_with_its_signature() -> None:
    """Rule R4: the upstream gets its own turn back, with signatures, redacted thinking and callers."""
    async with looping(MIXED, ANSWER, **ANTHROPIC) as (proxy, upstream):
        again = await proxy.ask(await returned(proxy))
        assert text_of(payloads_of(again.body)) == "Both."
    assert told(upstream) == [[THOUGHT, REDACTED, OURS, MINE]]
    results = json.loads(upstream.requests[1].body)["messages"][-1]["content"]
    assert [result["tool_use_id"] for result in results] == ["toolu_1", "toolu_2"]


async def test_hidden_turns_before_it_go_back_too() -> None:
    """Rule R4: if a run has several turns, the upstream gets each of them as it sent it."""
    first = stream(thinking("First.", "c2ln"), FIRST, id="msg_0")
    async with looping(first, MIXED, ANSWER, **ANTHROPIC) as (proxy, upstream):
        await proxy.ask(await returned(proxy))
    assert told(upstream) == [[thinking("First.", "c2ln"), FIRST], [THOUGHT, REDACTED, OURS, MINE]]


async def test_another_dialect_gets_it_translated() -> None:
    """Rule R4: an upstream of another dialect gets the calls of the turn without its signatures."""
    done = responses.stream(responses.message("Both."))
    async with RawUpstream(MIXED, [FIN]) as first, RawUpstream(done) as second:
        upstreams = (
            {"base_url": first.url, "wires": ("anthropic",)},
            {"base_url": second.url, "wires": ("responses",)},
        )
        async with running(make_config(*upstreams, modules=("probe_tools",))) as proxy:
            again = await proxy.ask(await returned(proxy))
            assert text_of(payloads_of(again.body)) == "Both."
        items = json.loads(second.requests[0].body)["input"]
    assert [item["name"] for item in items if item.get("type") == "function_call"] == [ECHO, "mine"]
    assert b"EqQBCkYIBxgCKkD" not in second.requests[0].body


async def test_a_refused_signature_is_left_out() -> None:
    """If the upstream refuses a signature, the proxy repeats the turn without its thinking."""
    error = {"type": "invalid_request_error", "message": "Invalid `signature` in `thinking` block"}
    said = json.dumps({"type": "error", "error": error}).encode()
    refusal = whole(said, status="400 Bad Request")
    async with looping(MIXED, refusal, ANSWER, **ANTHROPIC) as (proxy, upstream):
        again = await proxy.ask(await returned(proxy))
        assert text_of(payloads_of(again.body)) == "Both."
    assert told(upstream, 1) == [[THOUGHT, REDACTED, OURS, MINE]]
    ((ours, mine),) = told(upstream)
    assert (ours["id"], mine["id"]) == ("toolu_1", "toolu_2")


@pytest.mark.parametrize("chained", [True, False])
async def test_a_responses_client_goes_on(chained: bool) -> None:
    """Rule R4: the upstream also gets its turn back from a client of Responses, by items or response id."""
    ask = {"model": "m", "stream": True, "input": "hi", "tools": [responses.function("mine")]}
    async with looping(MIXED, ANSWER, **ANTHROPIC) as (proxy, upstream):
        read = check_response_stream((await proxy.ask(ask, path="/v1/responses")).body, hidden=(ECHO,))
        (call,) = [item for item in read.response["output"] if item["type"] == "function_call"]
        result = responses.output(call["call_id"], "mine too")
        more: dict[str, Any] = {"input": [responses.user("hi"), call, result]}
        if chained:
            more = {"input": [result], "previous_response_id": read.id}
        again = await proxy.ask({**ask, **more}, path="/v1/responses")
        assert again.status == 200, again.body
    assert told(upstream) == [[THOUGHT, REDACTED, OURS, MINE]]
