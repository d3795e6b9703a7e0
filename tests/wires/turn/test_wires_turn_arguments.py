"""Invalid arguments of a model: the client gets the same as the runner, streamed or not."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages_script import read_stream as read_messages
from ollama_script import read_stream as read_lines
from turn_encoding import cut, encoded

from proxy.base.conversation import Message, ToolCallPart
from proxy.base.errors import ToolRelayError
from proxy.base.events import (
    FinishReason,
    Frame,
    ToolCall,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFinished,
)
from proxy.tools.contract.arguments import parse_arguments
from proxy.wires.anthropic.crossing.encoder import AnthropicTurnEncoder
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.ollama.crossing.encoder import OllamaTurnEncoder
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.turn.arguments import arguments_object

WRONG = [
    '{"city": ""}{"city": "Rome"}{}',
    '{"city": "Rome"',
    '{city: "Rome"}',
    "{'city': 'Rome'}",
    '{"city": "Rome",}',
    '{"city": "Rome"}}',
    '{"city": "Ro\nme"}',
    '{"now": True}',
    '{"most": NaN}',
    '["Rome"]',
    '"Rome"',
    "7",
    "Rome",
]
RIGHT = ['{"city": "Rome", "days": [1, 2.5, null]}', ' {"a": "}{\\""} \n', "{}"]


def frames_of(arguments: str, reason: str, pieces: list[str] | None = None) -> list[Frame]:
    """Return a turn of one call as readers report it: the call ends after the finish reason."""
    events: list[TurnEvent] = [
        ToolCallStarted(0, "call_1", "look"),
        *(ToolCallDelta(0, piece) for piece in pieces or [arguments]),
        TurnFinished(FinishReason(reason)),
        ToolCallFinished(0, ToolCall("call_1", "look", arguments, 0)),
    ]
    return [Frame(b"x", {}, (event,)) for event in events]


def streamed(wire: str, frames: list[Frame]) -> list[Any]:
    """The arguments of each call in a stream, as a client parses them."""
    if wire == "anthropic":
        raw = b"".join(frame.raw for frame in encoded(AnthropicTurnEncoder("m"), frames))
        return [block["input"] for block in read_messages(raw).blocks]
    raw = b"".join(frame.raw for frame in encoded(OllamaTurnEncoder("m"), frames))
    return [call["function"]["arguments"] for call in read_lines(raw).calls]


def replied(wire: str, frames: list[Frame]) -> list[Any]:
    """Return the same from an answer that is not streamed."""
    whole = Frame(b"x", {}, tuple(event for frame in frames for event in frame.events))
    if wire == "anthropic":
        return [
            block["input"]
            for block in json.loads(AnthropicTurnEncoder("m").encode_reply(whole).raw)["content"]
        ]
    message = json.loads(OllamaTurnEncoder("m").encode_reply(whole).raw)["message"]
    return [call["function"]["arguments"] for call in message.get("tool_calls", ())]


def kept(wire: str, arguments: str) -> Any:
    """Return the same from a kept turn, with which the proxy compares what the client sends back."""
    turn = Message("assistant", (ToolCallPart("call_1", "look", arguments),))
    if wire == "anthropic":
        (block,) = json.loads(AnthropicWire().write_turn(turn))["content"]
        return block["input"]
    (call,) = json.loads(OllamaWire().write_turn(turn))["tool_calls"]
    return call["function"]["arguments"]


def run_takes(arguments: str) -> bool:
    """Return whether the runner accepts the arguments."""
    try:
        parse_arguments(arguments)
    except ToolRelayError:
        return False
    return True


@pytest.mark.parametrize("wire", ["anthropic", "ollama"])
@pytest.mark.parametrize("arguments", WRONG)
def test_what_the_runner_refuses_no_client_takes_for_arguments(arguments: str, wire: str) -> None:
    """The client gets invalid arguments under ``INVALID_JSON``, and none of a cut turn."""
    assert not run_takes(arguments)
    wanted = {"INVALID_JSON": arguments}
    frames = frames_of(arguments, "tool_calls")
    assert streamed(wire, frames) == replied(wire, frames) == [wanted]
    assert kept(wire, arguments) == wanted
    for reason in ("length", "content_filter"):
        frames = frames_of(arguments, reason)
        assert streamed(wire, frames) == replied(wire, frames) == ([{}] if wire == "anthropic" else [])


@pytest.mark.parametrize("wire", ["anthropic", "ollama"])
@pytest.mark.parametrize("arguments", RIGHT)
def test_what_the_runner_takes_the_client_gets(arguments: str, wire: str) -> None:
    """The client gets arguments that the runner accepts, as the model wrote them."""
    assert run_takes(arguments)
    frames = frames_of(arguments, "tool_calls")
    assert streamed(wire, frames) == replied(wire, frames) == [json.loads(arguments)]
    assert kept(wire, arguments) == json.loads(arguments)


numbers = st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
written = st.dictionaries(st.text(), values, max_size=3).map(json.dumps)
texts = written | st.text(st.sampled_from('{}[]":, \\ab1\n'), max_size=20)


@given(texts, texts, st.sets(st.integers(1, 60)))
def test_stream_and_reply_say_the_same(one: str, two: str, cuts: set[int]) -> None:
    """Stream, reply and kept turn have the same arguments, and valid ones are the runner's."""
    for arguments in (one, one + two):
        pieces = [
            piece.decode("utf-8", "replace") for piece in cut(arguments.encode("utf-8", "replace"), cuts)
        ]
        frames = frames_of(arguments, "tool_calls", pieces)
        wanted = json.loads(orjson.dumps(arguments_object(arguments)))
        for wire in ("anthropic", "ollama"):
            assert streamed(wire, frames) == replied(wire, frames) == [wanted]
            assert kept(wire, arguments) == wanted
        if run_takes(arguments):
            assert wanted == parse_arguments(arguments)


def test_arguments_are_held_until_they_are_complete() -> None:
    """The encoder holds arguments until they are complete; breaking the silence is not its part."""
    arguments = json.dumps({"text": "x" * 1000})
    frames = frames_of(arguments, "tool_calls", list(arguments))
    encoder = AnthropicTurnEncoder("m")
    before = b"".join(made.raw for frame in frames[:-2] for made in encoder.encode(frame))
    assert b"input_json_delta" not in before
    assert b"event: ping" not in before
    after = b"".join(made.raw for frame in frames[-2:] for made in encoder.encode(frame))
    assert after.count(b"input_json_delta") == 1


def test_an_eager_tool_gets_its_arguments_as_they_come() -> None:
    """For a tool with ``eager_input_streaming``, the client gets each piece of arguments at once."""
    asked: dict[str, Any] = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [
            {"name": "look", "input_schema": {"type": "object"}, "eager_input_streaming": True},
            {"name": "other", "input_schema": {"type": "object"}, "eager_input_streaming": False},
        ],
    }
    wire = AnthropicWire()
    frames = frames_of('{"a": 1}{', "tool_calls", ['{"a', '": 1}', "{"])
    raw = [frame.raw for frame in encoded(wire.encoder(wire.parse(asked)), frames)]
    told = [
        json.loads(one.partition(b"data: ")[2])["delta"]["partial_json"]
        for one in raw
        if b"partial_json" in one
    ]
    assert told == ['{"a', '": 1}', "{"]
    other = [Frame(b"x", {}, (ToolCallStarted(0, "call_1", "other"),)), *frames[1:]]
    raw = [frame.raw for frame in encoded(wire.encoder(wire.parse(asked)), other)]
    assert sum(b"partial_json" in one for one in raw) == 1
