"""Pieces of a server tool's arguments: taken unread, they mean what they mean when each is read."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.base.events import ToolCallDelta
from proxy.wires.chat.reader import ChatTurnReader
from proxy.wires.chat.wire import ChatWire
from proxy.wires.client_port import ClientView

WIRE = ChatWire()
ASKED = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
END = b"data: [DONE]\n\n"
OURS, THEIRS = "ours", "theirs"
MINTED = re.compile(rb"call_[0-9A-Za-z]{24}")


def event(delta: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    body = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps({**body, **more}).encode() + b"\n\n"


def opening(index: int | None, name: str, arguments: str = "") -> bytes:
    function = {"name": name, "arguments": arguments}
    call = {"index": index, "id": f"call_{index}_{name}", "type": "function", "function": function}
    return event({"role": "assistant", "content": None, "tool_calls": [call]})


def piece(index: int | None, arguments: str, **more: Any) -> bytes:
    numbered = {} if index is None else {"index": index}
    return event({"tool_calls": [{**numbered, "function": {"arguments": arguments}, **more}]})


def padded(arguments: str, padding: str) -> bytes:
    return event({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}, obfuscation=padding)


def is_ours(name: str) -> bool:
    return name == OURS


class Reading(ChatTurnReader):
    """A reader that reads every piece."""

    def _piece(self, frame: Any) -> None:
        return None


def result(events: Sequence[bytes], size: int, kind: type[ChatTurnReader]) -> list[Any]:
    """Everything that a turn leads to: the client's bytes, the calls, their pieces, the message and the
    fault."""
    reader = kind([OURS, THEIRS], is_ours, 1000)
    writer: Any = WIRE.writer(WIRE.parse(ASKED), ClientView("m", is_ours))
    stream, frames, out = b"".join(events), [], []
    for start in range(0, len(stream), size):
        for frame in reader.feed(stream[start : start + size], together=writer.transform() is not None):
            frames.append(frame)
            out.append(writer.write(frame))
    frames += reader.close()
    said: dict[int, str] = {}
    for frame in frames:
        for one in frame.events:
            if isinstance(one, ToolCallDelta):
                said[one.seq] = said.get(one.seq, "") + one.arguments
    message = reader.message() if reader.fault is None else b""
    out.append(writer.turn_ended("hidden") if reader.fault is None else b"")
    ends = [one for one in frames[-1].events if not isinstance(one, ToolCallDelta)]
    made = [b"".join(out), message, repr(ends).encode()]
    return [*(MINTED.sub(b"call", one) for one in made), said, repr(reader.fault), reader.text]


ARGUMENTS = st.sampled_from(
    [
        '{"a":"',
        "b",
        'c\\"',
        "\\",
        "n",
        '"}',
        "{}",
        '{"a":"b"}',
        "[",
        "]",
        "1",
        " ",
        "é\U0001f600",
        "\ud83d",
        "\ude00",
        "",
    ]
)
PIECES = (
    st.builds(piece, st.sampled_from([0, 0, 0, 1, None]), ARGUMENTS)
    | st.builds(piece, st.just(0), ARGUMENTS, type=st.sampled_from([None, "function"]))
    | st.builds(piece, st.just(0), ARGUMENTS, extra=st.just({"a": 1}))
    | st.builds(padded, ARGUMENTS, st.sampled_from(["", "abc", "\\"]))
    | st.builds(opening, st.sampled_from([0, 1, 2, None]), st.sampled_from([OURS, THEIRS, "ou"]), ARGUMENTS)
    | st.builds(lambda text: event({"content": text}), st.sampled_from(["a", " b"]))
    | st.builds(lambda text: event({"function_call": {"arguments": text}}), ARGUMENTS)
    | st.just(
        event({"tool_calls": [{"index": 0, "function": {"arguments": "a"}}]}, usage={"total_tokens": 3})
    )
    | st.just(b": comment\n\n")
    | st.just(END)
)


@given(st.lists(PIECES, max_size=12), st.integers(20, 900))
@example([piece(0, "{}"), piece(0, '{"a":'), piece(0, " "), piece(0, "1}"), piece(0, '{"a":1}')], 10_000)
@example([piece(0, '{"a":"'), piece(0, "\ud83d"), piece(0, "\ude00"), piece(0, '"}')], 10_000)
def test_pieces_mean_the_same_unread(events: list[bytes], size: int) -> None:
    """Rule W7: pieces of a server tool's call mean the same whether they are read or taken unread."""
    turn = [opening(0, OURS), *events]
    assert result(turn, size, ChatTurnReader) == result(turn, size, Reading)


@pytest.mark.parametrize(("name", "read"), [(OURS, 3), (THEIRS, 100)])
def test_pieces_are_taken_together(name: str, read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a server tool's call are not read one by one; those of a client's call are."""
    seen: list[Any] = []
    read_one = ChatTurnReader._read

    def counted(self: ChatTurnReader, one: Any, **more: Any) -> Any:
        seen.append(one)
        return read_one(self, one, **more)

    monkeypatch.setattr(ChatTurnReader, "_read", counted)
    pieces = [piece(0, f'x\\"{number}') for number in range(100)]
    turn = [opening(0, name, '{"a":"'), *pieces, piece(0, '"}')]
    _, message, _, _, fault, _ = result(turn, 10_000, ChatTurnReader)
    assert fault == "None"
    assert b"99" in message
    assert (len(seen) <= read) is (name == OURS)
