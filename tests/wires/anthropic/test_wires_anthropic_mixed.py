"""A turn that calls a provider's tool and a client's: the order of its blocks, in streams and replies."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages_rig import ASK, OURS, WIRE, hides, play
from messages_script import Block, read_stream, text, tool, tool_use, turn

from proxy.base.events import FinishReason, Frame, ToolCall, ToolCallFinished, ToolResult
from proxy.wires.anthropic.hosted.tools import SearchForm
from proxy.wires.chosen import ShownTools
from proxy.wires.client_port import ClientView, StreamWriter

FOUND = json.dumps({"results": [{"url": "https://a.example/", "title": "A", "text": "x"}]})
SEARCH, READ = tool_use("toolu_s", OURS, {"query": "q"}), tool_use("toolu_c", "mine", {"path": "a.txt"})
WRITE = tool_use("toolu_d", "mine", {"path": "b.txt"})
ORDERS: list[list[Block]] = [
    [text("So. "), SEARCH, READ, WRITE],
    [text("So. "), READ, SEARCH, WRITE],
    [text("So. "), READ, WRITE, SEARCH],
    [READ, text("So. "), WRITE, SEARCH],
]


def writer_of(*, stream: bool) -> StreamWriter:
    """The writer of a request that declares a search beside a function of its own."""
    asked = WIRE.parse({**ASK, "stream": stream, "tools": [tool("mine")]})
    shown = ShownTools(forms={OURS: SearchForm()})
    return WIRE.writer(asked, ClientView("m", hides("mine"), shown=shown))


def ended(writer: StreamWriter) -> bytes:
    """Run the search of the turn, and end the answer."""
    call = ToolCall("toolu_s", OURS, '{"query": "q"}', 0)
    out = writer.turn_ended("suspended") + writer.tool_started(call, {"query": "q"})
    out += writer.tool_finished(call, ToolResult("toolu_s", True, FOUND, arguments_redacted={"query": "q"}))
    return out + writer.turn_ended("final") + writer.finish(FinishReason.TOOL_CALLS)


def check(blocks: list[Any], stop_reason: str, writer: StreamWriter) -> None:
    """Check that the search and its result stand before the client's calls, in the model's order."""
    said, use, result, *calls = blocks
    assert said["text"] == "So. "
    assert (use["type"], use["input"]) == ("server_tool_use", {"query": "q"})
    assert (result["type"], result["tool_use_id"]) == ("web_search_tool_result", use["id"])
    assert calls == [READ, WRITE]
    assert stop_reason == "tool_use"
    assert writer.client_ids() == {"toolu_c": "toolu_c", "toolu_d": "toolu_d"}
    assert writer.visible == "So. "


@pytest.mark.parametrize("order", ORDERS)
@given(at=st.lists(st.integers(min_value=0, max_value=2500), max_size=20))
def test_streams(order: list[Block], at: list[int]) -> None:
    """The order of a stream is that of the documentation, however the upstream's bytes are cut."""
    writer = writer_of(stream=True)
    out = play(turn(*order), writer, "mine", at=at).out + ended(writer)
    read = read_stream(out)
    check(read.blocks, read.message["stop_reason"], writer)


@pytest.mark.parametrize("order", ORDERS)
def test_replies(order: list[Block]) -> None:
    """The same holds without a stream."""
    writer = writer_of(stream=False)
    calls = [
        ToolCallFinished(at, ToolCall(one["id"], one["name"], json.dumps(one["input"]), at))
        for at, one in enumerate(block for block in order if block["type"] == "tool_use")
    ]
    payload = {"id": "msg_1", "model": "m", "role": "assistant", "content": order, "stop_reason": "tool_use"}
    writer.write(Frame(json.dumps(payload).encode(), payload, tuple(calls)))
    answer = json.loads(ended(writer))
    check(answer["content"], answer["stop_reason"], writer)


def test_a_turn_without_a_search_keeps_its_bytes() -> None:
    """A turn that only calls the client's tools leaves as it came, at its end."""
    writer = writer_of(stream=True)
    data = turn(text("So. "), READ)
    out = play(data, writer, "mine").out
    assert b"toolu_c" not in out
    out += writer.turn_ended("suspended") + writer.turn_ended("final")
    assert out + writer.finish(FinishReason.TOOL_CALLS) == data


@pytest.mark.parametrize("order", [[text("So. "), READ], [text("So. "), SEARCH, READ]])
@pytest.mark.parametrize("index", ["[]", "{}", "null", '"0"'])
@pytest.mark.parametrize("kind", ["delta", "stop"])
def test_an_event_of_no_block(kind: str, index: str, order: list[Block]) -> None:
    """An event whose index is no number ends nothing and breaks nothing."""
    delta = ',"delta":{"type":"text_delta","text":"?"}' if kind == "delta" else ""
    name = f"content_block_{kind}"
    odd = f'event: {name}\ndata: {{"type":"{name}","index":{index}{delta}}}\n\n'.encode()
    data = turn(*order)
    opened = data.index(b"event: content_block_delta")
    for at in (opened, data.index(b"event: message_delta")):
        writer = writer_of(stream=True)
        out = play(data[:at] + odd + data[at:], writer, "mine").out
        out += ended(writer) if SEARCH in order else writer.turn_ended("final") + writer.finish(None)
        assert b'"So. "' in out
        assert b"toolu_c" in out
