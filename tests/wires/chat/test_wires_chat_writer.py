"""The client's stream over all turns: forwarded at first, and composed from the first server call on."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_json import odd_chunk
from sse_check import Reading, check_chat_stream

from proxy.base.errors import FrameTooLarge
from proxy.base.events import FinishReason, Frame, ToolCall, ToolCallFinished, ToolResult
from proxy.wires.chat.reader import ChatTurnReader
from proxy.wires.chat.writer import ChatStreamWriter
from proxy.wires.client_port import ClientView, Trace
from proxy.wires.openai.dialect import error_event
from proxy.wires.stream import held as held_module
from proxy.wires.stream.sse import END_MARK, SSEParser

SERVER = ("srv_time", "srv_time_zone", "srv_weather")
CLIENT = ("book", "book_flight")
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def is_hidden(name: str) -> bool:
    """Return whether a call is the server's, or of an unknown tool."""
    return name not in CLIENT


def chunk(delta: dict[str, Any] | None = None, *, turn: int = 1, **fields: Any) -> dict[str, Any]:
    """Return one chunk of a well-behaved upstream."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": fields.pop("finish", None)}
    head = {"id": f"up{turn}", "object": "chat.completion.chunk", "created": 1700 + turn, "model": "m"}
    return {**head, "choices": [choice], **fields}


def fragment(
    index: int, call_id: str | None, name: str | None, arguments: str = "", **extra: Any
) -> dict[str, Any]:
    """Return one piece of a call, as OpenAI sends it."""
    function: dict[str, Any] = {"arguments": arguments}
    if name is not None:
        function["name"] = name
    call: dict[str, Any] = {"index": index, "function": function, **extra}
    if call_id is not None:
        call |= {"id": call_id, "type": "function"}
    return {"tool_calls": [call]}


def encoded(*payloads: dict[str, Any] | bytes, done: bool = True) -> bytes:
    """Return a stream of these chunks; bytes are used unchanged."""
    parts = [p if isinstance(p, bytes) else b"data: " + json.dumps(p).encode() + b"\n\n" for p in payloads]
    return b"".join(parts) + (END_MARK if done else b"")


@dataclass
class Relayed:
    """The result of a run: the pieces for the client, the calls, and the ids."""

    pieces: list[bytes]
    writer: ChatStreamWriter
    calls: list[list[ToolCall]]
    ids: dict[str, str]
    failed: bool = False

    @property
    def body(self) -> bytes:
        """The whole stream."""
        return b"".join(self.pieces)

    def read(self, **how: Any) -> Reading:
        """Return the stream as a strict client reads it."""
        how = {"wants_usage": False, "hidden": SERVER, **how}
        return check_chat_stream(self.body, **how)

    def chunks(self) -> list[dict[str, Any]]:
        """The payloads of the stream."""
        datas = [event.data for event in SSEParser().feed(self.body)]
        return [json.loads(data) for data in datas if data and data != b"[DONE]"]


def relay(
    *turns: bytes, size: int | None = None, reason: str | None = None, note: str = "", **how: Any
) -> Relayed:
    """Run turns as the relay does, cut into pieces of ``size`` bytes."""
    seen = {key: how.pop(key) for key in ("trace", "usage_was_added") if key in how}
    hidden = how.pop("is_hidden", is_hidden)
    writer = ChatStreamWriter(ClientView("asked", hidden, **seen), **how)
    pieces: list[bytes] = []
    calls: list[list[ToolCall]] = []
    ids: dict[str, str] = {}
    for number, stream in enumerate(turns):
        reader = ChatTurnReader({*SERVER, *CLIENT}, is_hidden, 8192)
        found: list[ToolCall] = []

        def take(frame: Frame, found: list[ToolCall] = found) -> None:
            found += [event.call for event in frame.events if isinstance(event, ToolCallFinished)]
            pieces.append(writer.write(frame))

        for start in range(0, len(stream), size or len(stream)):
            frames = reader.feed(stream[start : start + (size or len(stream))])
            for frame in frames:
                take(frame)
            if writer.composing and any(frame.is_end_mark for frame in frames):
                break
        for frame in reader.close():
            take(frame)
        if (fault := reader.fault) is not None:
            pieces.append(writer.fail(str(fault), type="upstream_error", code="upstream_malformed"))
            return Relayed(pieces, writer, calls, ids, failed=True)
        calls.append(found)
        ours = [call for call in found if is_hidden(call.name)]
        theirs = [call for call in found if not is_hidden(call.name)]
        last = number == len(turns) - 1
        if ours and not (last and reason):
            pieces.append(writer.turn_ended("suspended" if theirs else "hidden"))
            for call in ours:
                result = ToolResult(
                    call.call_id, True, "secret", redacted={"ok": 1}, arguments_redacted={"z": "UTC"}
                )
                pieces.append(writer.tool_started(call, {"z": "UTC"}))
                pieces.append(writer.tool_finished(call, result))
            if theirs:
                pieces.append(writer.turn_ended("suspended"))
                reason = "tool_calls"
                break
    if note:
        pieces.append(writer.turn_ended("final") + writer.note(note))
    elif theirs and writer.composing:
        reason = reason or "tool_calls"
    ids.update(writer.client_ids())
    pieces.append(writer.turn_ended("final") + writer.finish(FinishReason(reason) if reason else None))
    return Relayed(pieces, writer, calls, ids)


def text_turn(*texts: str, turn: int = 1, finish: str = "stop", **last: Any) -> bytes:
    """Return a turn that answers with text."""
    parts = [chunk({"content": text}, turn=turn) for text in texts]
    return encoded(chunk({"role": "assistant"}, turn=turn), *parts, chunk(turn=turn, finish=finish, **last))


def call_turn(*names: str, turn: int = 1, text: str = "", usage: dict[str, Any] | None = None) -> bytes:
    """Return a turn that calls tools in order, after some text."""
    parts = [chunk({"content": text}, turn=turn)] if text else []
    for index, name in enumerate(names):
        parts.append(chunk(fragment(index, f"id{turn}.{index}", name), turn=turn))
        parts += [chunk(fragment(index, None, None, piece), turn=turn) for piece in ('{"z":', '"UTC"}')]
    tail = [chunk(turn=turn, usage=usage) | {"choices": []}] if usage else []
    return encoded(
        chunk({"role": "assistant", "content": None}, turn=turn),
        *parts,
        chunk(turn=turn, finish="tool_calls"),
        *tail,
    )


# Forwarding.


@pytest.mark.parametrize("size", [None, 1, 7, 64])
def test_no_server_call_no_change(size: int | None) -> None:
    """Rule W2: without a server call the client gets the upstream's exact bytes, even odd ones."""
    for stream in (
        text_turn("a", "b"),
        call_turn("book"),
        encoded(b": ping\n\n", chunk({"content": "a"}), b"event: x\r\ndata: 5\r\n\r\n", END_MARK),
        encoded(
            chunk({"content": "a"}), b"data: {broken\n\n", chunk(finish="stop"), END_MARK + b": late\n\n"
        ),
        encoded(chunk(fragment(0, "", "book", "{}")), chunk(finish="stop")),
        encoded(chunk(fragment(3, None, "book")), chunk(fragment(3, None, None, "{}"))),
        encoded(chunk(fragment(0, "a", "book")), b": ping\n\n", chunk(finish="tool_calls")),
        encoded(chunk({"function_call": {"name": "book", "arguments": ""}})),
        encoded(chunk(fragment(0, "a", None, "{}")), chunk(finish="tool_calls")),
        encoded({"choices": [{"delta": None}]}, chunk(finish="stop")),
        encoded(chunk({"tool_calls": [5, {"index": None}, *fragment(0, "a", "book_flight")["tool_calls"]]})),
    ):
        relayed = relay(stream, size=size)
        assert relayed.body == stream
        assert not relayed.writer.composing


@pytest.mark.parametrize("end", [b"", b"data: [DONE]", b'data: {"choices":[]}\n'])
def test_a_missing_end_mark_is_added(end: bytes) -> None:
    """Rule W3: the writer completes a half event, and adds an end mark to a stream without one."""
    stream = encoded(chunk({"content": "a"}), end, done=False)
    body = relay(stream).body
    assert body.startswith(stream)
    assert body.count(b"[DONE]") == 1
    assert body.endswith(END_MARK)


def test_forwarded_at_once() -> None:
    """Rule W6: each event leaves as soon as it has come."""
    stream = text_turn("a", "b")
    assert [piece for piece in relay(stream).pieces if piece] == [e.raw for e in SSEParser().feed(stream)]


def test_a_client_call_leaves_at_once() -> None:
    """The writer does not hold a client call whose name is certain."""
    relayed = relay(call_turn("book_flight"))
    assert all(relayed.pieces[:6])
    assert relayed.ids == {"id1.0": "id1.0"}


def test_a_legacy_client_call_leaves_at_once() -> None:
    """A legacy call has no id that may need a repair, so nothing is held."""
    legacy = [{"name": "book_flight", "arguments": ""}, {"arguments": "{}"}]
    relayed = relay(encoded(*[chunk({"function_call": call}) for call in legacy]))
    assert all(relayed.pieces[:3])


def test_a_client_call_without_id_waits_for_its_turn() -> None:
    """Rule W8: a call without an id holds back what follows until the turn ends; the bytes stay."""
    stream = encoded(
        chunk(fragment(0, "", "book_flight", "{}")), chunk({"content": "a"}), chunk(finish="stop")
    )
    relayed = relay(stream, size=50)
    assert [piece for piece in relayed.pieces if piece] == [stream]


def test_an_undecided_call_is_held() -> None:
    """Rule W5: the writer holds every piece of a call, and comments, while its owner is uncertain."""
    head = encoded(chunk({"role": "assistant"}), done=False)
    stream = head + encoded(chunk(fragment(0, "a", "srv_time")), b": ping\n\n", done=False)
    writer = ChatStreamWriter(ClientView("m", is_hidden))
    reader = ChatTurnReader({*SERVER, *CLIENT}, is_hidden, 8192)
    assert b"".join(map(writer.write, reader.feed(stream))) == head
    assert b"".join(map(writer.write, reader.feed(END_MARK))) == b""
    out = b"".join(map(writer.write, reader.close()))
    assert writer.composing
    assert b"srv_time" not in out


def test_an_undecided_client_call_is_let_go() -> None:
    """A held call that turns out to be the client's leaves with its exact bytes."""
    stream = encoded(
        chunk(fragment(0, "a", "book")),
        chunk({"content": "x"}),
        chunk(fragment(0, None, None, "{}")),
        chunk(finish="tool_calls"),
    )
    pieces = relay(stream).pieces
    events = [event.raw for event in SSEParser().feed(stream)]
    assert pieces[:4] == [b"", b"", b"".join(events[:3]), events[3]]


def test_a_call_that_is_certain_only_at_the_end() -> None:
    """A client call that is uncertain to the end leaves when its turn ends."""
    stream = encoded(chunk(fragment(0, "a", "book")), chunk(finish="tool_calls"))
    assert relay(stream).body == stream


def test_too_much_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that the writer holds have a limit; forwarded text has none."""
    monkeypatch.setattr(held_module, "_MAX_BYTES", 300)
    with pytest.raises(FrameTooLarge, match="300 bytes"):
        relay(text_turn("a", "b"), last_text_only=True)
    assert relay(text_turn("x" * 400)).body == text_turn("x" * 400)


def test_the_bound_is_met_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer may hold exactly as many bytes as the limit."""
    stream = text_turn("a")
    monkeypatch.setattr(held_module, "_MAX_BYTES", len(stream))
    assert relay(stream, last_text_only=True).body == stream
    monkeypatch.setattr(held_module, "_MAX_BYTES", len(stream) - 1)
    with pytest.raises(FrameTooLarge):
        relay(stream, last_text_only=True)


def test_the_bound_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that have left no longer count for the limit."""
    calls = [[fragment(n, f"i{n}", "book"), fragment(n, None, None, "{")] for n in range(9)]
    stream = encoded(*[chunk(piece) for call in calls for piece in call], chunk(finish="tool_calls"))
    monkeypatch.setattr(held_module, "_MAX_BYTES", 600)
    assert relay(stream).body == stream


# Usage that only the proxy asked for.


@pytest.mark.parametrize("dump", [lambda p: json.dumps(p), lambda p: json.dumps(p, separators=(",", ":"))])
def test_usage_nobody_asked_for_is_taken_out(dump: Any) -> None:
    """Rule W2: the writer removes null keys and the usage chunk that the client did not ask for."""

    def raw(payload: dict[str, Any]) -> bytes:
        return f"data: {dump(payload)}\n\n".encode()

    plain = [chunk({"content": 'a,"usage":null'}), chunk(finish="stop")]
    asked = [raw(p | {"usage": None}) for p in plain]
    stream = encoded(*asked, chunk(usage=USAGE) | {"choices": []})
    assert relay(stream, usage_was_added=True).body == encoded(*[raw(p) for p in plain])
    assert relay(stream, wants_usage=True).body == stream


def test_numbers_stay_as_they_are_where_usage_is_taken_out() -> None:
    """Rule W2: the writer removes the null key and no other byte."""
    for before, after in ((b',"usage":null', b""), (b', "usage": null', b"")):
        raw = b'data: {"choices":[{"delta":{"content":"a"}}],"x":1.00' + before + b"}\n\n"
        assert relay(encoded(raw), usage_was_added=True).body == encoded(raw.replace(before, after))


def test_usage_in_other_places_is_taken_out() -> None:
    """Rule W2: the writer removes usage in a chunk with choices, and a null key that comes first."""
    first = {"usage": None, **chunk({"role": "assistant", "content": "a"})}
    stream = encoded(first, chunk({"content": "b"}, usage=USAGE), chunk(finish="stop"))
    relayed = relay(stream, usage_was_added=True)
    assert relayed.read().text == "ab"
    assert b"usage" not in relayed.body


def test_what_has_no_usage_is_not_touched() -> None:
    """Rule W2: the filter does not change chunks without usage."""
    stream = encoded(chunk({"content": "a"}), b": ping\n\n", chunk(finish="stop"))
    assert relay(stream, usage_was_added=True).body == stream


# Composing.


def test_two_turns_are_one_stream() -> None:
    """Rule W4: two turns give one id, role and finish reason; rule W3: one end mark; rule W5: no call."""
    relayed = relay(call_turn("srv_time", text="Let me see."), text_turn("It is", " noon.", turn=2))
    read = relayed.read()
    assert read.text == relayed.writer.visible == "Let me see.\n\nIt is noon."
    assert (read.finish, read.usage, set(read.ids), set(read.models)) == ("stop", None, {"up1"}, {"m"})
    assert set(read.created) == {1701}
    assert not relayed.ids


def test_ids_that_change_with_every_chunk() -> None:
    """The composed stream keeps the first id that the client got."""
    first = [
        chunk({"role": "assistant", "content": "a"}),
        chunk(fragment(0, "a", "srv_weather", "{}"), turn=7),
    ]
    assert set(relay(encoded(*first), text_turn("b", turn=2)).read().ids) == {"up1"}


def test_role_and_id_in_different_chunks() -> None:
    """Rule W4: the stream has one role and one id, whichever of them comes first."""
    call = chunk(fragment(0, "a", "srv_weather", "{}"), turn=7)
    bare = {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}
    shown = relay(encoded(bare, chunk({"content": "a"}), call), text_turn("b", turn=2)).chunks()
    assert [c.get("id") for c in shown] == [None, "up1", "up1", "up1"]
    assert [c["choices"][0]["delta"].get("role") for c in shown] == ["assistant", None, None, None]
    headed = {"id": "up1", "choices": []}
    shown = relay(encoded(headed, bare, call), text_turn("b", turn=2)).chunks()
    assert [c["choices"][0]["delta"].get("role") for c in shown[1:]] == ["assistant", None, None]


def test_a_hidden_turn_means_composing() -> None:
    """After a hidden turn the writer composes the stream."""
    writer = ChatStreamWriter(ClientView("m", is_hidden))
    assert not writer.composing
    assert writer.turn_ended("hidden") == b""
    assert writer.composing


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        (("a", "b"), "a\n\nb"),
        (("a\n", "b"), "a\nb"),
        (("a", " b"), "a b"),
        (("", "b"), "b"),
        (("a", ""), "a\n\n"),
    ],
)
def test_texts_of_turns_are_paragraphs(texts: tuple[str, str], joined: str) -> None:
    """The texts of two turns become paragraphs, unless they already have whitespace between them."""
    first = call_turn("srv_time", text=texts[0])
    assert relay(first, text_turn(texts[1], "!", turn=2)).read().text == joined + "!"


def test_texts_of_three_turns() -> None:
    """Each turn's text is a paragraph, also after a turn without text."""
    relayed = relay(
        call_turn("srv_time", text="a"),
        call_turn("srv_time", turn=2),
        call_turn("srv_time", turn=3, text="b"),
        text_turn("c", turn=4),
    )
    assert relayed.read().text == "a\n\nb\n\nc"
    for text, joined in (("b", "b\n\nc"), ("b ", "b c")):
        turns = [call_turn("srv_time"), call_turn("srv_time", turn=2, text=text), text_turn("c", turn=3)]
        assert relay(*turns).read().text == joined


def test_an_empty_piece_is_no_paragraph() -> None:
    """The paragraph break comes before a turn's first text that is not empty."""
    second = encoded(chunk({"content": ""}, turn=2), chunk({"content": "b"}, turn=2), chunk(finish="stop"))
    assert relay(call_turn("srv_time", text="a"), second).read().text == "a\n\nb"
    silent = encoded(chunk({"content": ""}, turn=2), chunk(finish="stop", turn=2))
    assert relay(call_turn("srv_time", text="a"), silent).read().text == "a"


def test_citations_of_several_turns_keep_their_places() -> None:
    """Citations of later turns are moved to fit the whole text, and are numbered on."""

    def noted(turn: int) -> dict[str, Any]:
        said = {"url": "https://example.com", "title": "", "start_index": 1, "end_index": 3}
        return chunk({"annotations": [{"index": 0, "type": "url_citation", "url_citation": said}]}, turn=turn)

    call = fragment(0, "id1.0", "srv_time")
    first = encoded(
        chunk({"role": "assistant", "content": "one"}), chunk(call), noted(1), chunk(finish="tool_calls")
    )
    second = encoded(chunk({"content": "two"}, turn=2), noted(2), chunk(finish="stop", turn=2))
    relayed = relay(first, second)
    text = relayed.read().text
    deltas = [choice["delta"] for one in relayed.chunks() for choice in one["choices"]]
    found = [one for delta in deltas for one in delta.get("annotations", ())]
    places = [(one["url_citation"]["start_index"], one["url_citation"]["end_index"]) for one in found]
    assert [text[start:end] for start, end in places] == ["ne", "wo"]
    assert [one["index"] for one in found] == [0, 1]


def test_text_in_parts_is_a_paragraph() -> None:
    """Content as a list of parts stays a list, with a paragraph break before it."""
    parts = [{"type": "text", "text": "b"}]
    relayed = relay(
        call_turn("srv_time", text="a"),
        encoded(chunk({"content": parts}, turn=2), chunk({"content": parts}, turn=2)),
    )
    contents = [
        c["choices"][0]["delta"]["content"] for c in relayed.chunks() if "content" in c["choices"][0]["delta"]
    ]
    assert contents[-2:] == [[{"type": "text", "text": "\n\n"}, *parts], parts]


def test_an_empty_list_of_parts() -> None:
    """A delta with an empty list as content is not shown."""
    relayed = relay(
        call_turn("srv_time"), encoded(chunk({"content": []}, turn=2), chunk(finish="stop", turn=2))
    )
    assert len(relayed.chunks()) == 2


def test_a_server_call_first_then_the_role() -> None:
    """Rule W4: if the first turn shows nothing, the first chunk that is shown has the role."""
    first = encoded(chunk(fragment(0, "a", "srv_weather", "{}")), chunk(finish="tool_calls"))
    relayed = relay(first, text_turn("b", turn=2))
    read = relayed.read()
    assert (read.roles, read.text) == (1, "b")
    assert relayed.chunks()[0]["choices"][0]["delta"] == {"role": "assistant", "content": "b"}


def test_a_blank_head() -> None:
    """The stream takes its head from the first chunk with an id; Azure's first chunk has a blank one."""
    azure = {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": [1]}
    relayed = relay(encoded(azure, chunk(fragment(0, "a", "srv_weather", "{}"))), text_turn("b", turn=2))
    read = check_chat_stream(relayed.body, wants_usage=False, hidden=SERVER, forwarded=1)
    assert set(read.ids) == {"up1"}


def test_a_head_that_never_comes() -> None:
    """Without an id upstream, the stream gets a minted id, the current time and the requested model."""
    bare = {
        "choices": [{"index": 0, "delta": fragment(0, "a", "srv_weather", "{}")}],
        "created": True,
        "model": 5,
    }
    answer = {
        "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}],
        "id": "",
        "created": -1,
    }
    read = relay(encoded(bare), encoded(answer)).read()
    assert re.fullmatch(r"chatcmpl-[A-Za-z0-9]{24}", read.ids[0])
    assert read.models[0] == "asked"
    assert read.created[0] > 1_700_000_000
    assert read.text == "b"


def test_a_head_with_half_of_it() -> None:
    """The writer fills in what the first chunk with an id does not have."""
    for head in ({}, {"created": -5, "model": ""}, {"created": "1", "model": None}):
        bare = {"id": "x", "choices": [{"delta": fragment(0, "a", "srv_weather", "{}")}], **head}
        read = relay(encoded(bare), text_turn("b")).read()
        assert (read.ids[0], read.models[0], read.created[0] > 1_700_000_000) == ("x", "asked", True)


def test_unknown_fields_are_shown() -> None:
    """Unknown fields of a chunk, a choice and a delta are kept, and null ones of a chunk are dropped."""
    payload = chunk({"content": "b", "reasoning": "r", "refusal": None}, turn=2, x_groq={"id": 1}, error=None)
    payload["choices"][0] |= {"logprobs": {"content": [1]}, "native_finish_reason": "x"}
    payload |= {"service_tier": "t", "system_fingerprint": "f", "usage": None}
    relayed = relay(call_turn("srv_time"), encoded(payload, chunk(finish="stop", turn=2)))
    assert relayed.chunks()[1] == {
        "id": "up1",
        "object": "chat.completion.chunk",
        "created": 1701,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "delta": {"content": "b", "reasoning": "r", "refusal": None},
                "finish_reason": None,
                "logprobs": {"content": [1]},
            }
        ],
        "x_groq": {"id": 1},
        "service_tier": "t",
        "system_fingerprint": "f",
    }


def test_a_chunk_of_nothing_is_not_shown() -> None:
    """The writer drops chunks without content, and keeps comments."""
    quiet = [
        chunk({"content": "", "refusal": None}, turn=2),
        chunk(turn=2),
        {"choices": []},
        {"choices": 5},
        {},
    ]
    second = encoded(*quiet, b": ping\n\n", b"data: 5\n\n", b"event: x\n\n", chunk(finish="stop", turn=2))
    relayed = relay(call_turn("srv_time"), second)
    assert relayed.read().comments == ["ping"]
    assert [c["choices"][0]["finish_reason"] for c in relayed.chunks()] == [None, "stop"]


def test_chunks_without_choices_are_shown_for_what_else_they_say() -> None:
    """A chunk with only unknown fields is shown with an empty delta."""
    relayed = relay(call_turn("srv_time"), encoded({"choices": [], "citations": [1]}, chunk(finish="stop")))
    shown = relayed.chunks()[1]
    assert (shown["citations"], shown["choices"][0]["delta"]) == ([1], {})


def test_only_the_first_choice_is_shown() -> None:
    """The client gets only the first choice."""
    payload = chunk({"content": "mine"}, turn=2)
    payload["choices"].insert(0, {"index": 1, "delta": {"content": "other"}})
    assert relay(call_turn("srv_time"), encoded(payload, chunk(finish="stop"))).read().text == "mine"


def test_messages_instead_of_deltas_are_shown() -> None:
    """The writer accepts ``message`` instead of ``delta``, and prefers ``delta``."""
    second = encoded(
        {"choices": [{"message": {"role": "assistant", "content": "b"}}]},
        {"choices": [{"delta": {"content": "c"}, "message": {"content": "x"}}]},
        {"choices": [{"delta": None, "finish_reason": "stop"}]},
    )
    assert relay(call_turn("srv_time"), second).read().text == "bc"
    third = {"choices": [{"index": None, "message": {"content": "c"}, "finish_reason": "stop"}]}
    relayed = relay(call_turn("srv_time"), encoded(third))
    assert relayed.read().text == "c"
    assert not any("message" in c["choices"][0] for c in relayed.chunks())


# The finish reason.


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter"])
def test_the_last_turn_says_why(finish: str) -> None:
    """The composed stream has the finish reason of the last turn."""
    assert relay(call_turn("srv_time"), text_turn("b", turn=2, finish=finish)).read().finish == finish


def test_a_finish_reason_is_made_up_where_none_came() -> None:
    """Rule W4: a composed stream has one finish reason, ``stop`` if the upstream gave none."""
    assert relay(call_turn("srv_time"), encoded(chunk({"content": "b"}, turn=2))).read().finish == "stop"
    relayed = relay(call_turn("srv_time"), text_turn("b", turn=2, finish="tool_calls"), reason="stop")
    assert relayed.read().finish == "stop"


def test_the_finish_chunk_keeps_what_else_it_said() -> None:
    """The last chunk keeps the other fields of the last turn's finish, if they fit its reason."""
    last = chunk(finish="stop", turn=2, service_tier="t", system_fingerprint="f", x="y")
    last["choices"][0] |= {"content_filter_results": {"a": 1}, "native_finish_reason": "STOP"}
    for reason, native in ((None, True), ("length", False)):
        shown = relay(call_turn("srv_time"), encoded(last), reason=reason).chunks()[-1]
        assert (shown["service_tier"], shown["system_fingerprint"], shown["x"]) == ("t", "f", "y")
        assert shown["choices"][0]["content_filter_results"] == {"a": 1}
        assert ("native_finish_reason" in shown["choices"][0]) is native


def test_a_hidden_finish_is_forgotten() -> None:
    """The last chunk has no fields of an earlier turn's finish."""
    first = encoded(chunk(fragment(0, "a", "srv_weather", "{}"), finish="tool_calls", x="old"))
    assert "x" not in relay(first, encoded(chunk({"content": "b"}, turn=2))).chunks()[-1]


def test_finish_and_text_in_one_chunk() -> None:
    """Text next to the finish reason goes first, with its log probabilities."""
    last = chunk({"content": "b"}, turn=2, finish="stop", x="y")
    last["choices"][0]["logprobs"] = {"content": [1]}
    text, finish = relay(call_turn("srv_time"), encoded(last)).chunks()[-2:]
    assert (text["choices"][0]["delta"], text["choices"][0]["finish_reason"]) == ({"content": "b"}, None)
    assert text["choices"][0]["logprobs"] == {"content": [1]}
    assert finish["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop", "logprobs": None}


# Usage.


def usage_of(relayed: Relayed) -> Any:
    """Return the usage at the end of a stream."""
    return relayed.chunks()[-1].get("usage")


def test_usage_is_the_sum_of_all_turns() -> None:
    """Rule W4: a client that asked for usage gets one last chunk with the sum, also of nested fields."""
    first = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 9, "details": {"a": 1, "b": None}}
    second = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30, "details": {"a": 2, "c": 0.5}}
    last = encoded(
        chunk({"content": "b"}, turn=2),
        chunk(finish="stop", turn=2),
        chunk(turn=2, usage=second, x="y", service_tier="t") | {"choices": []},
    )
    relayed = relay(call_turn("srv_time", usage=first), last, wants_usage=True)
    assert relayed.read(wants_usage=True).usage == {
        "prompt_tokens": 11,
        "completion_tokens": 22,
        "total_tokens": 39,
        "details": {"a": 3, "c": 0.5},
    }
    shown = relayed.chunks()[-1]
    assert (shown["x"], shown["service_tier"], shown["choices"]) == ("y", "t", [])
    assert ["x" in c for c in relayed.chunks()].count(True) == 1
    assert all(c["usage"] is None for c in relayed.chunks()[2:-1])


def test_usage_that_nobody_asked_for() -> None:
    """Rule W4: a client that did not ask for usage gets none."""
    relayed = relay(call_turn("srv_time"), text_turn("b", turn=2, usage=USAGE))
    relayed.read()
    assert b"usage" not in relayed.body


def test_cumulative_usage_counts_once() -> None:
    """If every chunk has the usage so far, only the last one of each turn counts."""
    first = encoded(
        chunk({"role": "assistant", "content": "x"}, usage={"total_tokens": 1}),
        chunk(fragment(0, "a", "srv_weather", "{}"), usage={"total_tokens": 2}),
    )
    second = encoded(
        chunk({"content": "b"}, usage={"total_tokens": 5}), chunk(finish="stop", usage={"total_tokens": 7})
    )
    assert usage_of(relay(first, second, wants_usage=True)) == {"total_tokens": 9}


def test_usage_before_the_call_counts() -> None:
    """Usage in a forwarded chunk counts, also in Groq's own field."""
    first = encoded(
        chunk({"role": "assistant", "content": "x"}, x_groq={"usage": USAGE}),
        chunk(fragment(0, "a", "srv_weather", "{}")),
    )
    assert usage_of(relay(first, text_turn("b", turn=2), wants_usage=True)) == USAGE


def test_usage_of_a_mixed_turn() -> None:
    """Rule W4: a run that ends with a client call in its first turn reports its usage."""
    mixed = encoded(
        chunk({"role": "assistant"}),
        chunk(fragment(0, "a", "srv_weather", "{}")),
        chunk(fragment(1, "b", "book_flight", "{}")),
        chunk(finish="tool_calls", usage=USAGE),
    )
    assert relay(mixed, wants_usage=True).read(wants_usage=True).usage == USAGE


def test_no_usage_came() -> None:
    """If no turn reported usage, the client gets none."""
    relayed = relay(call_turn("srv_time"), text_turn("b", turn=2), wants_usage=True)
    assert relayed.chunks()[-1]["choices"][0]["finish_reason"] == "stop"


def test_the_labels_of_the_usage_chunk() -> None:
    """If the upstream sent no separate usage chunk, tier and fingerprint come from the last finish."""
    second = text_turn("b", turn=2, usage=USAGE, service_tier="t", system_fingerprint="f")
    shown = relay(call_turn("srv_time"), second, wants_usage=True).chunks()[-1]
    assert (shown["service_tier"], shown["system_fingerprint"], shown["usage"]) == ("t", "f", USAGE)
    second = encoded(chunk({"content": "b"}, turn=2, usage=USAGE, x="y"))
    shown = relay(call_turn("srv_time"), second, wants_usage=True).chunks()[-1]
    assert (shown["usage"], "x" in shown) == (USAGE, False)


# Client calls in a composed stream.


def test_a_client_call_in_a_later_turn() -> None:
    """In a composed stream a client call has its id and name once, and its own arguments."""
    relayed = relay(call_turn("srv_time"), call_turn("book", turn=2))
    read = relayed.read()
    (call,) = read.calls
    assert (call.id, call.name, call.arguments, read.finish) == ("id2.0", "book", '{"z":"UTC"}', "tool_calls")
    assert relayed.ids == {"id2.0": "id2.0"}


@pytest.mark.parametrize(
    "names",
    [
        ("srv_time", "book"),
        ("book", "srv_time"),
        ("srv_time", "book", "srv_weather", "book_flight"),
        ("book_flight", "srv_weather", "book"),
    ],
)
@pytest.mark.parametrize("size", [None, 5])
def test_a_mixed_turn(names: tuple[str, ...], size: int | None) -> None:
    """Rule W5: the client gets only its own calls of a mixed turn, with dense indices."""
    relayed = relay(call_turn(*names, text="x"), size=size)
    read = relayed.read()
    want = [(f"id1.{n}", name) for n, name in enumerate(names) if name in CLIENT]
    assert [(call.id, call.name) for call in read.calls] == want
    assert all(call.arguments == '{"z":"UTC"}' for call in read.calls)
    assert (read.finish, read.text) == ("tool_calls", "x")
    assert relayed.ids == {call_id: call_id for call_id, _ in want}


def test_a_forwarded_call_goes_on_when_composing_began() -> None:
    """Later pieces of a forwarded client call keep the index that the client got."""
    stream = encoded(
        chunk({"role": "assistant"}),
        chunk(fragment(0, "a", "book_flight", '{"x":')),
        chunk(fragment(1, "b", "srv_weather")),
        chunk(fragment(0, None, None, "1}")),
        chunk(fragment(2, "c", "book_flight", "{}")),
        chunk(fragment(1, None, None, "{}")),
        chunk(finish="tool_calls"),
    )
    calls = relay(stream).read().calls
    assert [(c.index, c.id, c.arguments) for c in calls] == [(0, "a", '{"x":1}'), (1, "c", "{}")]


def test_a_forwarded_call_without_arguments() -> None:
    """Rule W8: the arguments of a forwarded call are not repeated at the end of its turn."""
    stream = encoded(
        chunk({"role": "assistant"}),
        chunk(fragment(0, "a", "book_flight", "{}")),
        chunk(fragment(1, "b", "srv_weather", "{}")),
        chunk(finish="tool_calls"),
    )
    assert [call.arguments for call in relay(stream).read().calls] == ["{}"]


def test_a_client_call_without_arguments_in_a_composed_stream() -> None:
    """Rule W8: held arguments that could be a placeholder are sent when the turn ends."""
    stream = encoded(chunk(fragment(0, "a", "book_flight", "{}")), chunk(finish="tool_calls"))
    assert [call.arguments for call in relay(call_turn("srv_time"), stream).read().calls] == ["{}"]


def test_a_client_call_that_is_certain_only_at_the_end_of_a_composed_turn() -> None:
    """Rule W7: a call that is uncertain to the end is sent when its turn ends."""
    stream = encoded(chunk(fragment(0, "a", "book"), turn=2), chunk(finish="tool_calls", turn=2))
    (call,) = relay(call_turn("srv_time"), stream).read().calls
    assert (call.id, call.name) == ("a", "book")


def test_sparse_indices_of_forwarded_calls() -> None:
    """After a forwarded call with index 4, the next call has 5, and the first one continues at 4."""
    stream = encoded(
        chunk({"role": "assistant"}),
        chunk(fragment(4, "a", "book_flight", '{"x":')),
        chunk(fragment(6, "b", "srv_weather", "{}")),
        chunk(fragment(4, None, None, "1}")),
        chunk(fragment(7, "c", "book_flight", "{}")),
    )
    shown = [f for c in relay(stream).chunks() for f in c["choices"][0]["delta"].get("tool_calls", [])]
    assert [f["index"] for f in shown] == [4, 4, 5, 5]


def test_two_forwarded_calls_of_one_chunk() -> None:
    """Two calls of one forwarded chunk keep their indices."""
    both = {
        "tool_calls": [
            *fragment(0, "a", "book_flight", '{"x":')["tool_calls"],
            *fragment(1, "b", "book_flight", '{"y":')["tool_calls"],
        ]
    }
    stream = encoded(
        chunk({"role": "assistant"}),
        chunk(both),
        chunk(fragment(2, "c", "srv_weather", "{}")),
        chunk(fragment(1, None, None, "1}")),
        chunk(fragment(0, None, None, "2}")),
        chunk(fragment(3, "d", "book_flight", "{}")),
    )
    calls = relay(stream).read().calls
    assert [(c.id, c.arguments) for c in calls] == [("a", '{"x":2}'), ("b", '{"y":1}'), ("d", "{}")]


@pytest.mark.parametrize("call_id", ["", None])
def test_a_blank_id_is_never_shown_blank(call_id: str | None) -> None:
    """Rule W8: a client call without an id waits, and gets a minted id if a server call follows."""
    stream = encoded(
        chunk({"role": "assistant"}),
        chunk(fragment(0, call_id, "book_flight", '{"x":1}')),
        chunk({"content": "t"}),
        chunk(fragment(1, "b", "srv_weather", "{}")),
        chunk(finish="tool_calls"),
    )
    relayed = relay(stream)
    read = relayed.read()
    assert re.fullmatch(r"call_[A-Za-z0-9]{24}", read.calls[0].id)
    assert relayed.ids == {read.calls[0].id: read.calls[0].id}
    assert read.text == "t"


def test_an_id_of_the_history_is_not_used_again() -> None:
    """A composed stream replaces a call id that the history has, and remembers the new one."""
    relayed = relay(call_turn("srv_time"), call_turn("book", turn=2), used_ids=frozenset({"id2.0"}))
    (call,) = relayed.read().calls
    assert call.id != "id2.0"
    assert relayed.ids == {"id2.0": call.id}


def test_an_id_is_not_used_twice_over_turns() -> None:
    """A call in a composed stream gets a new id if a forwarded call already has its id."""
    mixed = encoded(
        chunk({"role": "assistant"}),
        chunk(fragment(0, "a", "book_flight", "{}")),
        chunk(fragment(1, "b", "srv_weather", "{}")),
        chunk(fragment(2, "a", "book", '{"x":1}')),
    )
    calls = relay(mixed).read().calls
    assert calls[0].id == "a"
    assert calls[1].id != "a"


def test_a_custom_call_is_shown_as_one() -> None:
    """The input of a custom call is sent in pieces under ``custom``, with its unknown fields."""

    def custom(index: int, **inner: Any) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "type": "custom", "custom": inner}]}

    head = custom(0, name="book_flight", input="a")
    head["tool_calls"][0] |= {"id": "c", "x": 1}
    stream = encoded(chunk(head, turn=2), chunk(custom(0, input="b"), turn=2), chunk(finish="tool_calls"))
    shown = [
        f
        for c in relay(call_turn("srv_time"), stream).chunks()
        for f in c["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert shown == [
        {"index": 0, "id": "c", "type": "custom", "custom": {"name": "book_flight", "input": "a"}, "x": 1},
        {"index": 0, "custom": {"input": "b"}},
    ]


def test_a_forwarded_custom_call_goes_on() -> None:
    """A forwarded custom call keeps its form in the composed stream."""
    head = {
        "tool_calls": [
            {"index": 0, "id": "c", "type": "custom", "custom": {"name": "book_flight", "input": "a"}}
        ]
    }
    more = {"tool_calls": [{"index": 0, "custom": {"input": "b"}}]}
    stream = encoded(
        chunk({"role": "assistant"}), chunk(head), chunk(fragment(1, "s", "srv_weather")), chunk(more)
    )
    shown = [f for c in relay(stream).chunks() for f in c["choices"][0]["delta"].get("tool_calls", [])]
    assert shown[-1] == {"index": 0, "custom": {"input": "b"}}


def test_unknown_fields_of_a_client_call_are_shown() -> None:
    """The client gets the unknown fields of its own call, such as a thought signature, at any time."""
    signature = {"extra_content": {"google": {"thought_signature": "S"}}}
    second = encoded(
        chunk(fragment(0, "a", "book_flight", '{"x":1}', **signature), turn=2),
        chunk({"tool_calls": [{"index": 0, "more": 1}]}, turn=2),
        chunk(finish="tool_calls", turn=2),
    )
    shown = [
        f
        for c in relay(call_turn("srv_time"), second).chunks()
        for f in c["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert shown == [
        {
            "index": 0,
            "id": "a",
            "type": "function",
            "function": {"name": "book_flight", "arguments": '{"x":1}'},
            **signature,
        },
        {"index": 0, "function": {"arguments": ""}, "more": 1},
    ]


def test_unknown_fields_of_a_function_are_not_shown_twice() -> None:
    """B.2: unknown fields inside a function do not replace its name and arguments."""
    head = fragment(0, "a", "book_flight", '{"x":')
    more = fragment(0, None, None, "1}")
    for piece in (head, more):
        piece["tool_calls"][0]["function"]["strict"] = True
    stream = encoded(chunk(head, turn=2), chunk(more, turn=2), chunk(finish="tool_calls", turn=2))
    (call,) = relay(call_turn("srv_time"), stream).read().calls
    assert (call.name, call.arguments) == ("book_flight", '{"x":1}')


def test_the_older_form_in_a_composed_stream() -> None:
    """A legacy client call keeps its form and finish reason in a composed stream."""
    legacy = [{"name": "book_flight", "arguments": '{"x":'}, {"arguments": "1}"}]
    stream = encoded(
        *[chunk({"function_call": c}, turn=2) for c in legacy], chunk(finish="function_call", turn=2)
    )
    read = relay(encoded(chunk({"function_call": {"name": "srv_weather", "arguments": "{}"}})), stream).read()
    assert read.function_call is not None
    assert (read.function_call.name, read.function_call.arguments) == ("book_flight", '{"x":1}')
    assert read.finish == "function_call"
    cut = relay(call_turn("srv_time"), stream, reason="length").chunks()[-1]
    assert cut["choices"][0]["finish_reason"] == "length"


def test_a_server_call_after_the_last_turn() -> None:
    """The client gets a note instead of the calls of a model that still calls in its last turn."""
    relayed = relay(
        call_turn("srv_time", text="a"), call_turn("srv_time", turn=2), reason="stop", note="[spent]"
    )
    read = relayed.read()
    assert (read.text, read.finish, read.calls) == ("a\n\n[spent]", "stop", [])


# JSON mode.


def test_json_is_never_two_texts() -> None:
    """With ``response_format`` the client gets only the last turn's text."""
    relayed = relay(
        call_turn("srv_time", text='{"a":1}', usage=USAGE),
        call_turn("srv_weather", turn=2, text='{"b":2}'),
        text_turn('{"c"', ":3}", turn=3, usage=USAGE),
        last_text_only=True,
        wants_usage=True,
        trace="status",
    )
    read = relayed.read(wants_usage=True)
    assert read.text == '{"c":3}'
    assert set(read.ids) == {"up1"}
    assert read.usage == {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}


def test_json_waits_for_its_turn() -> None:
    """In JSON mode text waits for the end of its turn, and keeps the upstream's bytes."""
    stream = text_turn('{"c"', ":3}")
    relayed = relay(stream, last_text_only=True)
    assert [piece for piece in relayed.pieces if piece] == [stream]
    assert not relayed.writer.composing


def test_json_and_a_client_call() -> None:
    """In JSON mode a mixed turn's text and client calls are shown."""
    relayed = relay(call_turn("srv_time", "book_flight", text="x"), last_text_only=True)
    read = relayed.read()
    assert (read.text, [call.name for call in read.calls], read.finish) == (
        "x",
        ["book_flight"],
        "tool_calls",
    )


def test_json_and_a_note() -> None:
    """In JSON mode the client gets no note, which would make the JSON invalid."""
    relayed = relay(
        call_turn("srv_time"),
        call_turn("srv_time", turn=2),
        last_text_only=True,
        reason="stop",
        note="[spent]",
    )
    assert relayed.read().text == ""


# What the proxy adds.


RESULT = ToolResult(
    "a", True, "secret", redacted={"t": 1}, arguments_redacted={"zone": "UTC", "n": 1}, milliseconds=12.34
)
FAILED = ToolResult("a", False, "secret", "timeout", "Took too long.", milliseconds=5)
CALL = ToolCall("a", "srv_time", '{"secret":1}', 0)


@pytest.mark.parametrize("trace", ["silent", "reasoning", "status", "events"])
def test_traces(trace: Trace) -> None:
    """Rule W5: the trace mode decides how a server call is shown; private values are always redacted."""
    writer = ChatStreamWriter(ClientView("m", is_hidden, trace=trace))
    out = writer.tool_started(CALL, {"zone": "UTC"}) + writer.tool_finished(CALL, RESULT)
    out += writer.tool_finished(CALL, FAILED)
    assert b"secret" not in out
    shown = [json.loads(event.data) for event in SSEParser().feed(out)]
    deltas = [c["choices"][0]["delta"] for c in shown]
    if trace == "silent":
        assert out == b""
    elif trace == "reasoning":
        assert deltas == [
            {"role": "assistant", "reasoning_content": 'srv_time(zone="UTC", n=1): done in 12 ms\n'},
            {"reasoning_content": "srv_time(): failed: timeout in 5 ms\n"},
        ]
    elif trace == "status":
        assert deltas == [
            {"role": "assistant", "content": '> srv_time(zone="UTC", n=1): done in 12 ms'},
            {"content": "\n\n> srv_time(): failed: timeout in 5 ms"},
        ]
    else:
        assert deltas == [{"role": "assistant"}, {}, {}]
        assert [c["x_toolrelay"] for c in shown] == [
            {
                "type": "tool_call",
                "call_id": "a",
                "name": "srv_time",
                "arguments": {"zone": "UTC"},
                "status": "in_progress",
                "ms": 0,
            },
            {
                "type": "tool_result",
                "call_id": "a",
                "name": "srv_time",
                "result": {"t": 1},
                "status": "completed",
                "ms": 12.3,
            },
            {
                "type": "tool_result",
                "call_id": "a",
                "name": "srv_time",
                "error": {"code": "timeout", "message": "Took too long."},
                "status": "failed",
                "ms": 5,
            },
        ]


def test_status_lines_are_paragraphs() -> None:
    """A status line is a paragraph of its own between the texts."""
    relayed = relay(call_turn("srv_time", text="a"), text_turn("b", turn=2), trace="status")
    assert relayed.read(hidden=()).text == 'a\n\n> srv_time(z="UTC"): done in 0 ms\n\nb'
    relayed = relay(call_turn("srv_time", "book_flight", text="x"), trace="status")
    assert relayed.read(hidden=()).text == 'x\n\n> srv_time(z="UTC"): done in 0 ms'
    relayed = relay(call_turn("srv_time"), text_turn("b", turn=2), trace="status")
    assert relayed.read(hidden=()).text == '> srv_time(z="UTC"): done in 0 ms\n\nb'


def test_keep_alive() -> None:
    """Section 0: a keep-alive is one comment, long enough for proxies that buffer."""
    alive = ChatStreamWriter(ClientView("m", is_hidden)).keep_alive()
    (event,) = SSEParser().feed(alive)
    assert event.is_comment
    assert len(alive) == 2048


def test_failing() -> None:
    """Rule W3: a failed stream ends with an error event and one end mark, and held calls are dropped."""
    error = encoded({"error": {"message": "no", "type": "t", "param": None, "code": "c"}}, done=False)
    assert error_event("no", type="t", code="c").replace(b" ", b"") == error.replace(b" ", b"")
    writer = ChatStreamWriter(ClientView("m", is_hidden))
    reader = ChatTurnReader({*SERVER, *CLIENT}, is_hidden, 8192)
    for frame in reader.feed(
        encoded(chunk({"role": "assistant"}), chunk(fragment(0, "a", "srv_time")), done=False)
    ):
        writer.write(frame)
    out = writer.fail("no", type="t", code=None)
    assert b"srv_time" not in out
    assert out == error_event("no", type="t", code=None) + END_MARK
    assert writer.turn_ended("final") == b""


def test_failing_after_the_end_mark() -> None:
    """Rule W3: a failure after the end mark adds no second one."""
    writer = ChatStreamWriter(ClientView("m", is_hidden))
    writer.write(Frame(END_MARK, is_end_mark=True))
    assert writer.fail("no", type="t", code=None) == error_event("no", type="t", code=None)


def test_an_error_in_a_later_turn_is_not_passed_on() -> None:
    """A composed stream does not forward an upstream's error, which the relay reports."""
    relayed = relay(
        call_turn("srv_time"), encoded({"error": {"message": "x"}}, chunk({"content": "b"}, turn=2))
    )
    assert relayed.read().text == "b"


# Generated runs.


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[bytes], dict[str, Any]]:
    """The turns of a run with server calls, and the client's options."""
    turns = []
    words = st.sampled_from(["", "a", "b ", "\n", "\u00e9\U0001f600", "data: [DONE]\n\n"])
    count = draw(st.integers(1, 3))
    for turn in range(1, count + 1):
        names = draw(st.lists(st.sampled_from(SERVER), min_size=1, max_size=3))
        names += draw(st.lists(st.sampled_from(CLIENT), max_size=1)) if turn == count else []
        turns.append(call_turn(*draw(st.permutations(names)), turn=turn, text=draw(words), usage=USAGE))
    texts = draw(st.lists(words, max_size=3))
    turns.append(text_turn(*texts, turn=9, finish=draw(st.sampled_from(["stop", "length"])), usage=USAGE))
    how = {
        "wants_usage": draw(st.booleans()),
        "last_text_only": draw(st.booleans()),
        "trace": draw(st.sampled_from(["silent", "reasoning", "status", "events"])),
    }
    return turns, how


@settings(max_examples=150)
@given(runs(), st.sampled_from([1, 3, 17, 100, 1000]))
def test_every_run_is_one_good_stream(run: tuple[list[bytes], dict[str, Any]], size: int) -> None:
    """Rules W3, W4, W5, W6: every run gives one valid stream of whole events, the same for every cut."""
    turns, how = run
    relayed = relay(*turns, size=size, **how)
    silent = how["trace"] == "silent"
    read = check_chat_stream(
        relayed.body,
        wants_usage=how["wants_usage"],
        hidden=SERVER if silent else (),
        trace=how["trace"],
    )
    assert set(read.ids) == {"up1"}
    for piece in relayed.pieces:
        parser = SSEParser()
        parser.feed(piece)
        assert parser.tail == b""
    assert relayed.body == relay(*turns, **how).body
    client = [call for call in relayed.calls[-1] if call.name in CLIENT]
    assert [(call.name, call.arguments) for call in read.calls] == [(c.name, c.arguments) for c in client]


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.sampled_from([None, 1, 50]))
def test_odd_upstreams_never_break_it(seed: int, size: int | None) -> None:
    """Rules W3, W5, W6: any JSON gives whole events, one end mark and no server call, for every cut."""
    rng = random.Random(seed)
    turns = []
    for turn in (1, 2):
        odd: Sequence[dict[str, Any]] = [odd_chunk(rng) for _ in range(rng.randint(0, 3))]
        call = chunk(fragment(9, f"s{turn}", "srv_secret", '{"x":"hush"}'), turn=turn)
        turns.append(encoded(*odd, call, *[odd_chunk(rng) for _ in range(rng.randint(0, 2))]))
    relayed = relay(*turns, text_turn("b"), size=size, reason="stop")
    # A call of an unknown tool in a later choice makes the turn fail.
    assert relayed.writer.composing or relayed.failed
    parser = SSEParser()
    events = parser.feed(relayed.body)
    assert parser.tail == b""
    assert [event.is_end_mark for event in events].count(True) == 1
    assert events[-1].is_end_mark
    assert b"srv_secret" not in relayed.body
    assert b"hush" not in relayed.body


def test_a_mark_in_the_text_ends_nothing() -> None:
    """The text of an end mark inside a message is only text."""
    read = relay(call_turn("srv_time", text="data: [DONE]\n\n"), text_turn("[DONE]", turn=2)).read()
    assert read.text == "data: [DONE]\n\n[DONE]"


def test_what_follows_the_end_mark_of_a_hidden_turn() -> None:
    """Rule W6: data after a hidden turn's end mark changes nothing, in the same read or the next."""
    late = call_turn("srv_time") + encoded(chunk({"content": "late"})) + b": late\n\n"
    plain = relay(call_turn("srv_time"), text_turn("b", turn=2)).body
    for size in (None, 1, 200):
        assert relay(late, text_turn("b", turn=2), size=size).body == plain
