"""Custom tools of Chat as functions: each way of cutting the arguments, and what is no call of one."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wires.chat.typed_tools.custom import CustomAnswer
from proxy.wires.chat.wire import ChatWire
from proxy.wires.typed_tools.functions import EVERY_TYPE, UpstreamTypes

Item = dict[str, Any]


def event(delta: Item, finish: str | None = None, **more: Any) -> bytes:
    """Return one chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "choices": [choice], **more}).encode() + b"\n\n"


def part(index: int, **function: Any) -> Item:
    """Return a part of a call."""
    opening = {"id": f"call_{index}", "type": "function"} if "name" in function else {}
    return {"tool_calls": [{"index": index, **opening, "function": function}]}


def deltas(stream: bytes) -> Sequence[Item]:
    """Return the deltas of a stream."""
    events = [json.loads(line[6:]) for line in stream.decode().split("\n\n") if line[6:7] == "{"]
    return [event["choices"][0]["delta"] for event in events]


@given(st.text(max_size=20), st.lists(st.integers(0, 60), max_size=5))
def test_a_call_comes_whole_however_it_was_cut(text: str, cuts: Sequence[int]) -> None:
    """The input is that of the arguments; a function beside it keeps its bytes, and the end comes last."""
    arguments = json.dumps({"input": text})
    places = [0, *sorted(min(cut, len(arguments)) for cut in cuts), len(arguments)]
    pieces = [arguments[start:end] for start, end in pairwise(places)]
    plain = [event(part(0, name="plain", arguments="")), event(part(0, arguments="{}"))]
    held = [event(part(1, name="say", arguments="")), *(event(part(1, arguments=one)) for one in pieces)]
    end = [event({}, "tool_calls", usage={"total_tokens": 3}), b"data: [DONE]\n\n"]
    answer = CustomAnswer(frozenset({"say"}))
    told = b"".join(map(answer.stream, [*plain, *held, *end]))
    assert told.startswith(b"".join(plain))
    assert told.endswith(b"".join(end))
    *_, call, last = deltas(told)
    custom = {"index": 1, "id": "call_1", "type": "custom", "custom": {"name": "say", "input": text}}
    assert (call, last) == ({"tool_calls": [custom]}, {})
    assert len(deltas(told)) == 4


@given(st.sampled_from(['{"input":"rm -rf /', "[]", '{"x":1}', '{"input":7}', "", "null"]))
def test_half_a_call_has_no_input(arguments: str) -> None:
    """No client runs half of a call, or one that the model wrote in another form."""
    call = {"id": "c", "type": "function", "function": {"name": "say", "arguments": arguments}}
    other = {"id": "d", "type": "function", "function": {"name": "other", "arguments": arguments}}
    reply = {"choices": [{"index": 0, "message": {"role": "assistant", "tool_calls": [call, other]}}]}
    answer = CustomAnswer(frozenset({"say"}))
    told = json.loads(answer.reply(json.dumps(reply).encode()))["choices"][0]["message"]["tool_calls"]
    assert told == [{"id": "c", "type": "custom", "custom": {"name": "say", "input": ""}}, other]


ODD_CALLS: Sequence[Any] = (
    {"type": "custom"},
    {"type": "custom", "custom": "say"},
    {"type": "custom", "custom": {"name": ["say"]}},
    {"type": "custom", "custom": {"name": "other", "input": "x"}},
    {"type": "function", "function": {"name": "say", "arguments": "{}"}},
    "say",
)


def test_a_turn_with_calls_of_the_type_is_kept_with_functions() -> None:
    """An upstream that was asked with a function may call a custom tool; odd calls of it stay as they are."""
    answer = CustomAnswer(frozenset({"say"}))
    for said, arguments in (("x", '{"input":"x"}'), (7, '{"input":""}'), (None, '{"input":""}')):
        call = {"id": "c", "type": "custom", "custom": {"name": "say", "input": said}}
        turn = {"role": "assistant", "content": None, "tool_calls": [call, *ODD_CALLS]}
        kept = json.loads(answer.as_asked(json.dumps(turn).encode()))
        function = {"name": "say", "arguments": arguments}
        assert kept == {
            **turn,
            "tool_calls": [{"id": "c", "type": "function", "function": function}, *ODD_CALLS],
        }
    plain = b'{"role": "assistant", "content": "custom"}'
    assert answer.as_asked(plain) == plain


@pytest.mark.parametrize("crosses", [False, True])
def test_a_request_without_custom_tools_stays(crosses: bool) -> None:
    """Only a request with a custom tool changes, and only for an upstream that does not know the type."""
    wire, custom = ChatWire(), {"type": "custom", "custom": {"name": "say"}}
    plain: Item = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tool_choice": "auto"}
    assert wire.as_functions(plain, UpstreamTypes((), crosses)) is None
    declared = {**plain, "tools": [custom]}
    for native in (("custom",), (EVERY_TYPE,)):
        assert wire.as_functions(declared, UpstreamTypes(native, crosses)) is None
    assert wire.as_functions(declared, UpstreamTypes((), crosses)) is not None


def test_calls_of_tools_that_are_not_declared_any_more() -> None:
    """A call in the history becomes one of a function for another dialect, which has no other calls."""
    call = {"id": "c", "type": "custom", "custom": {"name": "say", "input": "x"}}
    said = {"role": "assistant", "tool_calls": [call]}
    made = ChatWire().as_functions({"model": "m", "messages": [said]}, UpstreamTypes((), crosses=True))
    assert made is not None
    (message,) = made.payload["messages"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"input": "x"}
    assert "tools" not in made.payload
