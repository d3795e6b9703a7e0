"""An upstream that sends much at once: the proxy reads it in parts and serves others in between."""

import asyncio
import json
from typing import Any

import chat_script as chat
import pytest
import responses_script as responses
from call_count import CALLS_PER_CALLBACK_OF_A_BURST, Count
from looping import ANSWER, ASK, TIME, called, looping
from raw_upstream import KEEP, LAST_CHUNK, Step, chunk, head
from running_proxy import Answer, Proxy
from waiting import PATIENCE_S

from proxy.wires.chat.wire import ChatWire
from proxy.wires.responses.wire import ResponsesWire

SSE_HEAD = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
ODD_HEAD = head("Content-Type: text/plain", "Transfer-Encoding: chunked")
SIZE = 512 << 10
TEXT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
OTHER_TEXT = b'data: {"x":%d,"choices":[{"delta":{"content":"a"}}]}\n\n'
DELTA = b'data: {"type":"response.function_call_arguments.delta","output_index":0,"delta":" "}\n\n'
FILLERS: dict[str, bytes] = {
    "blank lines": b"\n\n",
    "blank lines in crlf": b"\r\n\r\n",
    "blank lines in cr": b"\r\r",
    "mixed blank lines": b"\n\r\n\r\r\n",
    "comments": b": x\n\n",
    "comments in crlf": b":\r\n\r\n",
    "empty events": b"data: {}\n\n",
    "no data": b"x\n\n",
    "numbers": b"data: 1\n\n",
}
DEAR = ("mixed blank lines", "no data", "numbers", "empty events")
"""The proxy reads these fillers one event at a time, so that a test sends fewer of them."""


def pieces(data: bytes) -> list[Step]:
    """Split data into chunks of limited size, so that the upstream's own callbacks are short."""
    return [chunk(data[at : at + 65536]) for at in range(0, len(data), 65536)]


async def ask(proxy: Proxy, path: str, body: dict[str, Any]) -> Answer:
    async with asyncio.timeout(2 * PATIENCE_S):
        return await proxy.ask(body, path=path)


ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", ASK),
    "responses": ("/v1/responses", {"model": "m", "stream": True, "input": "hi"}),
}
BEGUN: dict[str, bytes] = {
    "chat": chat.role() + chat.content("a"),
    "responses": responses.encode(responses.opening()),
}
ENDS: dict[str, bytes] = {
    "chat": chat.finish() + chat.DONE,
    "responses": responses.encode([responses.closing()]) + chat.DONE,
}


async def burst(wire: str, data: bytes, opening: bytes = SSE_HEAD) -> tuple[Count, Answer]:
    """Send a stream with ``data`` in it, with tools offered; return the counted calls and the answer."""
    script = [opening, chunk(BEGUN[wire]), *pieces(data + ENDS[wire]), LAST_CHUNK, KEEP]
    async with looping(script, allow=("core__*",)) as (proxy, _):
        count = Count()
        with count.counting_callbacks():
            answer = await ask(proxy, *ASKS[wire])
    return count, answer


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize("filler", FILLERS)
async def test_events_that_say_nothing(wire: str, filler: str) -> None:
    """Rule W2: a burst of events without content passes unchanged, and no callback blocks the loop."""
    size = SIZE // 64 if filler in DEAR else SIZE
    data = FILLERS[filler] * (size // len(FILLERS[filler]))
    count, answer = await burst(wire, data)
    assert answer.body == BEGUN[wire] + data + ENDS[wire]
    assert count.most <= CALLS_PER_CALLBACK_OF_A_BURST, f"{count.most} calls in {count.which}"


@pytest.mark.parametrize("kind", ["alike", "each another"])
async def test_small_pieces_of_text(kind: str) -> None:
    """A burst of small pieces of text passes unchanged, and no callback blocks the loop."""
    times = SIZE // len(TEXT)
    data = TEXT * times if kind == "alike" else b"".join(OTHER_TEXT % number for number in range(times))
    count, answer = await burst("chat", data)
    assert answer.body == BEGUN["chat"] + data + ENDS["chat"]
    assert count.most <= CALLS_PER_CALLBACK_OF_A_BURST, f"{count.most} calls in {count.which}"


async def test_pieces_of_arguments_on_chat() -> None:
    """Rule W7: arguments in ten thousand pieces become one call, and no callback blocks the loop."""
    data = chat.call("call_1", TIME, '{"timezone":"UTC"') + chat.call(None, None, " ") * 10_000
    data += chat.call(None, None, "}") + chat.finish("tool_calls") + chat.DONE
    first = [SSE_HEAD, chunk(chat.role()), *pieces(data), LAST_CHUNK, KEEP]
    warm = called(("call_0", TIME, '{"timezone":"UTC"}'))
    policy = {"max_argument_bytes": 65536}
    async with looping(warm, ANSWER, first, ANSWER, allow=("core__*",), policy=policy) as (proxy, upstream):
        await ask(proxy, *ASKS["chat"])  # The first request makes what the process keeps for its tools.
        count = Count()
        with count.counting_callbacks():
            answer = await ask(proxy, *ASKS["chat"])
        assert chat.text_of(chat.payloads_of(answer.body)) == "It is noon."
        (made,) = json.loads(upstream.requests[3].body)["messages"][-2]["tool_calls"]
        assert json.loads(made["function"]["arguments"]) == {"timezone": "UTC"}
    assert count.most <= CALLS_PER_CALLBACK_OF_A_BURST, f"{count.most} calls in {count.which}"


async def test_pieces_of_arguments_on_responses() -> None:
    """On Responses, arguments in many pieces do not block the loop either."""
    item = responses.function_call("call_1", "mine", "")
    opened = responses.encode([responses.event("response.output_item.added", output_index=0, item=item)])
    data = opened + DELTA * (SIZE // 8 // len(DELTA))
    count, answer = await burst("responses", data)
    assert answer.body.count(b"[DONE]") == 1
    assert count.most <= CALLS_PER_CALLBACK_OF_A_BURST, f"{count.most} calls in {count.which}"


async def test_a_body_of_an_unknown_kind() -> None:
    """The proxy searches a body of an unexpected type for hidden calls in parts, too (rule W5)."""
    data = b"hello\n\n" + FILLERS["empty events"] * (SIZE // 10)
    script = [ODD_HEAD, *pieces(data), LAST_CHUNK, KEEP]
    async with looping(script, allow=("core__*",)) as (proxy, _):
        count = Count()
        with count.counting_callbacks():
            answer = await ask(proxy, ASKS["chat"][0], {**ASK, "stream": False})
        assert answer.body == data
    assert count.most <= CALLS_PER_CALLBACK_OF_A_BURST, f"{count.most} calls in {count.which}"


async def test_others_are_served_during_a_burst() -> None:
    """While one stream sends a burst, the proxy answers another request before that stream ends."""
    data = FILLERS["empty events"] * (SIZE // 10)
    script = [SSE_HEAD, chunk(BEGUN["chat"]), *pieces(data + ENDS["chat"]), LAST_CHUNK, KEEP]
    async with looping(script, ANSWER, allow=("core__*",)) as (proxy, _), proxy.sent(ASK) as conversation:
        pieces_of_it = conversation.pieces(await conversation.head())
        read = 0
        while read < 100_000:
            read += len(await anext(pieces_of_it))
        other = await ask(proxy, *ASKS["chat"])
        assert other.body.endswith(chat.DONE)
        assert read + sum([len(piece) async for piece in pieces_of_it]) == len(
            BEGUN["chat"] + data + ENDS["chat"]
        )


@pytest.mark.parametrize("wire", [ChatWire(), ResponsesWire()], ids=lambda wire: str(wire.dialect.name))
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("filler", [*FILLERS, "text"])
def test_a_part_is_bounded(wire: Any, filler: str, together: bool) -> None:
    """Rule W6: a reader handles a limited number of events at once, and the output stays the same."""
    data = {**FILLERS, "text": TEXT}[filler] * 3000
    whole = wire.reader({TIME}, lambda name: name == TIME, 8192)
    expected = b"".join(frame.raw for frame in whole.feed(BEGUN[wire.dialect.name] + data))
    reader = wire.reader({TIME}, lambda name: name == TIME, 8192)
    frames = reader.feed(BEGUN[wire.dialect.name] + data, together=together, most=50)
    parts = [frames]
    while reader.has_unread:
        parts.append(reader.feed(b"", together=together, most=50))
    assert b"".join(frame.raw for frames in parts for frame in frames) == expected
    assert max(map(len, parts)) <= 2 * 50 + 2
    assert max(sum(len(frame.raw) for frame in frames if frame.events) for frames in parts) < 50 * 1100
