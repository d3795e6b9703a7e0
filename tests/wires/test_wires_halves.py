"""A character that a server cuts into two events is whole in translated and composed streams."""

# ruff: noqa: UP031 - JSON is full of braces.

import json
from typing import Any

import pytest
from crossed_recordings import ASKED, MOST_BYTES, WIRES
from hypothesis import given
from hypothesis import strategies as st
from turn_encoding import cut

from proxy.base.events import ReasoningDelta, TextDelta, ToolCallDelta, ToolCallFinished
from proxy.wires.client_port import ClientView
from proxy.wires.crossed_texts import crossed_reader

EMOJI = "\U0001f600"
FIRST, SECOND = "a\\ud83d", "\\ude00b"


def sse(name: str, *payloads: str) -> bytes:
    """Return events with these payloads."""
    return "".join(f"event: {name}\ndata: {payload}\n\n" for payload in payloads).encode()


def chat(field: str) -> bytes:
    """Return a Chat stream with the character in a member of the delta."""
    opened = '{"id":"c","model":"m","choices":[{"index":0,"delta":{"role":"assistant"}}]}'
    if field == "arguments":
        opened = (
            '{"id":"c","model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1",'
            '"type":"function","function":{"name":"mine","arguments":"{\\"x\\":\\""}}]}}]}'
        )
        pieces = [
            '{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"%s"}}]}}]}'
            % said
            for said in (FIRST, SECOND, '\\"}')
        ]
        end = "tool_calls"
    else:
        pieces = ['{"choices":[{"index":0,"delta":{"%s":"%s"}}]}' % (field, one) for one in (FIRST, SECOND)]
        end = "stop"
    last = '{"choices":[{"index":0,"delta":{},"finish_reason":"%s"}]}' % end
    return "".join(f"data: {said}\n\n" for said in (opened, *pieces, last, "[DONE]")).encode()


def ollama(field: str) -> bytes:
    """Return an Ollama stream with the character in a member of the message."""
    lines = ['{"model":"m","message":{"role":"assistant","content":"","%s":"%s"},"done":false}' % (field, one)
             for one in (FIRST, SECOND)]  # fmt: skip
    if field == "content":
        lines = [line.replace('"content":"",', "") for line in lines]
    return "\n".join([*lines, '{"model":"m","done":true,"done_reason":"stop"}', ""]).encode()


def anthropic(kind: str, name: str, block: str) -> bytes:
    """Return a Messages stream with the character in deltas of a kind."""
    said = [
        '{"type":"message_start","message":{"id":"msg_1","model":"m","usage":{"input_tokens":1}}}',
        '{"type":"content_block_start","index":0,"content_block":%s}' % block,
    ]
    pieces = (FIRST, SECOND) if kind != "input_json_delta" else ('{\\"x\\":\\"' + FIRST, SECOND + '\\"}')
    said += [
        '{"type":"content_block_delta","index":0,"delta":{"type":"%s","%s":"%s"}}' % (kind, name, one)
        for one in pieces
    ]
    said += [
        '{"type":"content_block_stop","index":0}',
        '{"type":"message_delta","delta":{"stop_reason":"end_turn"}}',
        '{"type":"message_stop"}',
    ]
    return b"".join(sse(json.loads(one.replace("\\u", ""))["type"], one) for one in said)


def responses() -> bytes:
    """Return a Responses stream with the character in the deltas of a text."""
    place = '"item_id":"msg_1","output_index":0,"content_index":0'
    said = [
        '{"type":"response.created","response":{"id":"resp_1","model":"m","status":"in_progress"}}',
        '{"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"msg_1"}}',
        *('{"type":"response.output_text.delta",%s,"delta":"%s"}' % (place, one) for one in (FIRST, SECOND)),
        '{"type":"response.completed","response":{"id":"resp_1","model":"m","status":"completed"}}',
    ]
    return b"".join(sse(json.loads(one.replace("\\u", ""))["type"], one) for one in said)


TEXT = '{"type":"text","text":""}'
THINKING = '{"type":"thinking","thinking":""}'
CALL = '{"type":"tool_use","id":"toolu_1","name":"mine","input":{}}'
STREAMS: dict[str, tuple[str, bytes]] = {
    "chat text": ("chat", chat("content")),
    "chat reasoning": ("chat", chat("reasoning_content")),
    "chat arguments": ("chat", chat("arguments")),
    "ollama text": ("ollama", ollama("content")),
    "ollama reasoning": ("ollama", ollama("thinking")),
    "messages text": ("anthropic", anthropic("text_delta", "text", TEXT)),
    "messages reasoning": ("anthropic", anthropic("thinking_delta", "thinking", THINKING)),
    "messages arguments": ("anthropic", anthropic("input_json_delta", "partial_json", CALL)),
    "responses text": ("responses", responses()),
}


@pytest.mark.parametrize("name", STREAMS)
@given(cuts=st.lists(st.integers(1, 900), max_size=6))
def test_a_character_in_two_halves_is_whole(name: str, cuts: list[int]) -> None:
    """However the stream is cut, the reader joins the halves, in every field."""
    wire, data = STREAMS[name]
    reader = WIRES[wire].reader(("mine",), lambda name: False, MOST_BYTES)
    frames = [frame for piece in cut(data, cuts) for frame in reader.feed(piece)] + reader.close()
    assert reader.fault is None
    events = [event for frame in frames for event in frame.events]
    texts = [event.text for event in events if isinstance(event, TextDelta | ReasoningDelta)]
    pieces = [event.arguments for event in events if isinstance(event, ToolCallDelta)]
    calls = [event.call.arguments for event in events if isinstance(event, ToolCallFinished)]
    for said in ["".join(texts), "".join(pieces), *calls]:
        assert said == "" or f"a{EMOJI}b" in said
        assert "\ufffd" not in said
    assert texts or calls
    json.dumps([frame.payload for frame in frames], ensure_ascii=False).encode()


@pytest.mark.parametrize("client", WIRES)
@pytest.mark.parametrize("name", STREAMS)
def test_a_translated_stream_has_it_whole(client: str, name: str) -> None:
    """A client of another dialect gets the whole character."""
    upstream, data = STREAMS[name]
    if client == upstream:
        return
    port = WIRES[client]
    request = port.parse({"model": "m", "stream": True, **ASKED[client]})
    reader = crossed_reader(WIRES[upstream].reader(("mine",), lambda name: False, MOST_BYTES),
                            port.encoder(request), {})  # fmt: skip
    writer = port.writer(request, ClientView("m", lambda name: False))
    out = b"".join(writer.write(frame) for frame in [*reader.feed(data), *reader.close()])
    assert EMOJI.encode() in out
    assert "\ufffd".encode() not in out


def test_a_half_without_the_other_is_replaced() -> None:
    """A half that is not followed by the other one becomes U+FFFD, and nothing else is lost."""
    reader = WIRES["chat"].reader((), lambda name: False, MOST_BYTES)
    one: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": "@"}}]}
    said = [json.dumps(one).replace("@", text) for text in ("a\\ud83d", "b", "\\ude00c")]
    frames = reader.feed("".join(f"data: {text}\n\n" for text in said).encode())
    texts = [event.text for frame in frames for event in frame.events if isinstance(event, TextDelta)]
    assert texts == ["a", "\ufffdb", "\ufffdc"]
