"""The Messages reader: blocks, calls, thoughts, usage, errors and truncated streams."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages_rig import OURS, play, reader_of
from messages_script import (
    STOP,
    Block,
    block_events,
    ending,
    error_event,
    event,
    start,
    text,
    thinking,
    tool_use,
    turn,
)

from proxy.base.errors import Unreadable, WireError
from proxy.base.events import (
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallStarted,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    UsageReported,
)
from proxy.wires.stream.fast_path import FastReader

SERVER = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
FOUND = {
    "type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}],
}  # fmt: skip
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}


def joined(events: list[Any], kind: type[Any]) -> str:
    """Return the joined texts of all events of a type."""
    return "".join(one.text for one in events if isinstance(one, kind))


def calls(data: bytes, *theirs: str) -> list[tuple[str, str, str]]:
    """Return (id, name, arguments) of each call of a turn."""
    return [(call.call_id, call.name, call.arguments) for call in play(data, None, *theirs).calls]


def test_a_turn_says_what_it_says() -> None:
    """The events have id, model, text, thought, combined usage and the stop reason."""
    played = play(turn(thinking("Let me see."), text("It is noon."), cache_read_input_tokens=90))
    assert played.of(TurnStarted) == [TurnStarted("msg_1", "m")]
    assert joined(played.events, TextDelta) == played.reader.text == "It is noon."
    assert joined(played.events, ReasoningDelta) == "Let me see."
    assert played.of(TurnFinished) == [TurnFinished(FinishReason.STOP)]
    last = played.of(UsageReported)[-1].usage
    assert (last.input_tokens, last.cached_tokens, last.output_tokens, last.total_tokens) == (100, 90, 7, 107)
    assert last.native["cache_read_input_tokens"] == 90
    assert not played.of(TurnFailed)


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause"),
    ],
)
def test_a_stop_reason_has_a_neutral_word(reason: str, word: str) -> None:
    """A stop reason becomes the neutral one."""
    assert play(turn(text("x"), reason=reason)).of(TurnFinished) == [TurnFinished(FinishReason(word))]


def test_what_came_goes_back() -> None:
    """The next request gets all blocks unchanged and in order, also signed, redacted and unknown ones."""
    odd = {"type": "container_upload", "file_id": "file_1"}
    blocks: list[Block] = [
        thinking("Let me\nsee “this”.", "EqQBCkYI/+=="),
        REDACTED,
        text("Looking."),
        SERVER,
        FOUND,
        odd,
        tool_use("toolu_1", OURS, {"zone": "UTC", "n": 1.0}, caller={"type": "direct"}),
    ]
    assert play(turn(*blocks)).blocks == blocks
    whole = json.dumps({"id": "m", "type": "message", "content": blocks, "stop_reason": "tool_use"})
    reader = reader_of()
    reader.read_reply(whole.encode())
    assert json.loads(reader.message()) == {"role": "assistant", "content": blocks}


def test_arguments_keep_their_bytes() -> None:
    """A call's input keeps its exact bytes, with the model's numbers and escapes."""
    said = '{"a": 1.50, "b": "\\u00e9", "big": 12345678901234567890123}'
    played = play(turn(tool_use("toolu_1", OURS, said)))
    assert played.calls[0].arguments == said
    assert f'"input":{said}'.encode() in played.reader.message()


def test_citations_are_collected() -> None:
    """The block of a text collects citations, each of which comes in its own delta."""
    cited = [{"type": "char_location", "cited_text": "a"}, {"type": "char_location", "cited_text": "b"}]
    first, *rest = block_events(0, text("So it is."))
    deltas = [
        event(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": c}}
        )
        for c in cited
    ]
    data = b"".join([start(), first, *deltas, *rest, ending(), STOP])
    assert play(data).blocks == [text("So it is.", citations=cited)]


def test_an_empty_text_does_not_go_back() -> None:
    """An empty text is not sent back, because no upstream accepts it."""
    assert play(turn(text(""), tool_use("toolu_1", OURS))).blocks == [tool_use("toolu_1", OURS)]


def test_parallel_calls_that_overlap_are_two() -> None:
    """Two calls stay separate even if a server starts the second before it stops the first."""
    one, two = tool_use("a", OURS, {"n": 1}), tool_use("b", OURS, {"n": 2})
    (open_1, *said_1, stop_1), (open_2, *said_2, stop_2) = block_events(0, one), block_events(1, two)
    data = b"".join([start(), open_1, *said_1, open_2, *said_2, stop_1, stop_2, ending("tool_use"), STOP])
    assert calls(data) == [("a", OURS, '{"n": 1}'), ("b", OURS, '{"n": 2}')]


def raw_call(opened: dict[str, Any], *pieces: str, stop: bool = True) -> bytes:
    """Return a turn with one call, as a server may write it."""
    return b"".join(
        [
            start(),
            event(
                {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", **opened}}
            ),
            *[
                event(
                    {
                        "type": "content_block_delta",
                        "index": 0,
                        "delta": {"type": "input_json_delta", "partial_json": piece},
                    }
                )
                for piece in pieces
            ],
            *([event({"type": "content_block_stop", "index": 0})] if stop else []),
            ending("tool_use"),
            STOP,
        ]
    )


@pytest.mark.parametrize(
    ("data", "arguments"),
    [
        (raw_call({"id": "a", "name": OURS}), "{}"),
        (raw_call({"id": "a", "name": OURS, "input": None}), "{}"),
        (raw_call({"id": "a", "name": OURS, "input": {}}, ""), "{}"),
        (raw_call({"id": "a", "name": OURS, "input": {}}, "{}"), "{}"),
        (raw_call({"id": "a", "name": OURS, "input": {"x": 1}}), '{"x":1}'),
        (raw_call({"id": "a", "name": OURS, "input": {"x": 1}}, stop=False), '{"x":1}'),
        (raw_call({"id": "a", "name": OURS, "input": {"x": 1}}, '{"x":', "2}"), '{"x":2}'),
        (raw_call({"id": "a", "name": OURS, "input": {}}, '{"x":', "2}", stop=False), '{"x":2}'),
        (raw_call({"id": "a", "name": OURS, "input": {}}, '{"x":'), '{"x":'),
    ],
)
def test_arguments_come_in_many_ways(data: bytes, arguments: str) -> None:
    """Arguments may be missing, in pieces, complete at the start, or both; then the pieces count."""
    assert calls(data) == [("a", OURS, arguments)]


def test_a_name_that_begins_another_is_certain_at_once() -> None:
    """Names are complete on this wire, so a call is never undecided."""
    reader = reader_of("get", "get_all")
    first = block_events(0, tool_use("a", "get", {"n": 1}))[0]
    frames = reader.feed(start() + first)
    assert [one.name for frame in frames for one in frame.events if isinstance(one, ToolCallStarted)] == [
        "get"
    ]
    assert not any(frame.undecided for frame in frames)


@pytest.mark.parametrize("odd", ["", None, " "])
def test_ids_that_are_blank_or_repeated_are_repaired(odd: Any) -> None:
    """Rule W8: each call has an id of its own, and goes back under it."""
    one = raw_call({"id": odd, "name": OURS, "input": {}}, "{}")
    (made,) = calls(one)
    assert made[0]
    assert play(turn(tool_use("a", OURS, {"n": 1}), tool_use("a", OURS, {"n": 2}))).blocks[0]["id"] == "a"
    twice = play(turn(tool_use("a", OURS, {"n": 1}), tool_use("a", OURS, {"n": 2})))
    assert len({call.call_id for call in twice.calls}) == 2
    assert [block["id"] for block in twice.blocks] == [call.call_id for call in twice.calls]


def test_a_place_that_is_used_again_holds_another_call() -> None:
    """Two blocks with the same index are two calls, as some servers give every block 0."""
    data = b"".join(
        [start(), *block_events(0, tool_use("a", OURS, {"n": 1})), *block_events(0, tool_use("b", OURS)),
         ending("tool_use"), STOP]
    )  # fmt: skip
    assert calls(data) == [("a", OURS, '{"n": 1}'), ("b", OURS, "{}")]


def test_a_call_without_a_name_is_none() -> None:
    """The reader drops a call without a name, because nobody can answer it."""
    played = play(raw_call({"id": "a", "name": "", "input": {}}, '{"x":1}'))
    assert (played.calls, played.blocks) == ([], [])


def test_arguments_that_are_no_object_go_back_as_none() -> None:
    """Rule W8: arguments that are no object go back as ``{}``, which the API requires."""
    played = play(
        turn(tool_use("a", OURS, "[1]"), tool_use("b", "mine", '{"cut'), reason="tool_use"), None, "mine"
    )
    assert [call.arguments for call in played.calls] == ["[1]", '{"cut']
    assert [block["input"] for block in played.blocks] == [{}, {}]


def test_a_native_call_has_what_came() -> None:
    """The record keeps every field of a call, with masked arguments."""
    played = play(turn(tool_use("toolu_1", OURS, {"zone": "UTC"}, caller={"type": "direct"})))
    said = played.reader.native(played.calls[0], lambda name, arguments: '{"zone":"•"}')
    assert json.loads(said) == tool_use("toolu_1", OURS, {"zone": "•"}, caller={"type": "direct"})
    assert json.loads(played.reader.native(played.calls[0], lambda name, arguments: "cut"))["input"] == "cut"


@pytest.mark.parametrize(
    "data",
    [
        start(),
        start() + b"".join(block_events(0, text("It is"))),
        start() + b"".join(block_events(0, tool_use("a", OURS, {"n": 1}))[:-2]),
        b"",
    ],
)
def test_a_stream_that_merely_ends_has_failed(data: bytes) -> None:
    """A truncated stream fails, since clients would take it for a complete answer."""
    (failed,) = play(data).of(TurnFailed)
    assert failed.error["code"] == "upstream_broken"


def test_a_stream_without_its_last_event_is_whole() -> None:
    """A stream that gave its stop reason is complete without ``message_stop``."""
    assert not play(turn(text("x")).removesuffix(STOP)).of(TurnFailed)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (error_event(), "Overloaded"),
        (b'data: {"type":"error","error":{"type":"api_error","message":"Bad"}}\n\n', "Bad"),
        (b'data: {"error":{"code":500,"message":"Bad","type":"server_error"}}\n\n', "Bad"),
        (b'event: error\ndata: {"type":"error"}\n\n', "It failed."),
        (b'data: {"type":"error","error":"Bad"}\n\n', "Bad"),
    ],
)
def test_an_error_in_a_stream_is_read(said: bytes, message: str) -> None:
    """The reader reads an error once, in every form in which servers write it."""
    (failed,) = play(start() + said).of(TurnFailed)
    assert failed.error["message"] == message


def test_another_message_within_the_first_is_a_fault() -> None:
    """The reader stops if a second message starts within the first, since their calls could be mixed up."""
    reader = reader_of()
    reader.feed(start("msg_1") + block_events(0, tool_use("a", OURS, {"n": 1}))[0] + start("msg_2"))
    assert isinstance(reader.fault, Unreadable)


def test_what_follows_the_end_is_no_part_of_the_turn() -> None:
    """An end mark of another dialect passes; a second message that calls does not (rule W5)."""
    done = b"data: [DONE]\n\n"
    played = play(turn(text("x")) + done)
    assert played.out.endswith(STOP + done)
    two = play(turn(text("x")) + turn(tool_use("a", OURS, {"n": 1}), id="msg_2"))
    assert not two.calls
    assert b"tool_use" not in two.out


@pytest.mark.parametrize("bad", [b"{", b'event: x\ndata: {"type":"content_block_start","tool_use\n\n'])
def test_a_call_that_cannot_be_read_is_a_fault(bad: bytes) -> None:
    """Rule W5: the reader stops at an invalid event that may contain a call."""
    reader = reader_of()
    reader.feed(
        start() + b'data: {"type":"content_block_start","content_block":{"type":"tool_use",' + bad + b"\n\n"
    )
    assert isinstance(reader.fault, Unreadable)


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"<html>"])
def test_what_is_no_reply_is_said(body: bytes) -> None:
    """A body that is no JSON object raises an error of the wire."""
    with pytest.raises(WireError):
        reader_of().read_reply(body)


def test_a_reply_is_read() -> None:
    """A reply gives the same events as a stream, and keeps the bytes of its blocks."""
    body = (
        b'{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"So"},'
        b'{"type":"tool_use","id":"a","name":"core__now","input":{"n": 1.50}}],"stop_reason":"tool_use",'
        b'"usage":{"input_tokens":3,"cache_creation_input_tokens":4,"output_tokens":5}}'
    )
    reader = reader_of()
    frame = reader.read_reply(body)
    found: dict[type[Any], Any] = {type(one): one for one in frame.events}
    assert found[TurnFinished] == TurnFinished(FinishReason.TOOL_CALLS)
    assert found[UsageReported].usage.input_tokens == 7
    assert b'{"type":"tool_use","id":"a","name":"core__now","input":{"n": 1.50}}' in reader.message()
    assert reader.text == "So"
    assert TurnFailed not in found


def test_an_error_under_a_200_is_one() -> None:
    """An error in a reply with status 200 fails the turn, in the form of either API."""
    for body in (b'{"type":"error","error":{"message":"No"}}', b'{"error":{"message":"No","code":1}}'):
        (failed,) = [one for one in reader_of().read_reply(body).events if isinstance(one, TurnFailed)]
        assert failed.error["message"] == "No"


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
BLOCKS = st.lists(
    st.one_of(
        ANY_TEXT.map(text),
        st.tuples(ANY_TEXT, st.sampled_from(["c2ln", ""])).map(lambda pair: thinking(*pair)),
        st.just(REDACTED),
        st.just(SERVER),
        st.just(FOUND),
        st.dictionaries(st.sampled_from(["a", "b"]), ANY_TEXT, max_size=2).map(
            lambda arguments: tool_use("?", OURS, arguments)
        ),
    ),
    min_size=1,
    max_size=6,
)


@given(blocks=BLOCKS, seed=st.integers(0, 2**16))
def test_no_cut_changes_what_is_read(blocks: list[Block], seed: int) -> None:
    """Rule W6: events, message and bytes are the same, wherever the network cuts the stream."""
    named = [{**block, "id": f"toolu_{at}"} if "id" in block else block for at, block in enumerate(blocks)]
    data = turn(*named)
    at = random.Random(seed).sample(range(1, len(data)), 20)
    whole, pieces = play(data), play(data, at=at)
    assert pieces.out == whole.out == data
    assert pieces.blocks == whole.blocks == named
    assert joined(pieces.events, TextDelta) == joined(whole.events, TextDelta)
    assert pieces.calls == whole.calls
    taken_unread = reader_of()
    assert isinstance(taken_unread, FastReader)
    told: list[Any] = []
    raw = b""
    for piece in data.split(b"\n\n")[:-1]:
        for frame in taken_unread.feed(piece + b"\n\n", together=True):
            told += frame.events
            raw += frame.raw
    told += [one for frame in taken_unread.close() for one in frame.events]
    assert raw == data
    assert joined(told, TextDelta) == joined(whole.events, TextDelta)
    assert json.loads(taken_unread.message())["content"] == named


def test_a_long_text_is_taken_unread() -> None:
    """On the fast path, one frame holds many events that differ only in their text."""
    said = "word " * 200
    reader = reader_of()
    assert isinstance(reader, FastReader)
    frames = reader.feed(turn(text(said)), together=True)
    assert any(frame.count > 10 for frame in frames)
    assert reader.text == said


def test_a_hidden_call_that_is_too_large_goes_back_empty() -> None:
    """Rule W8: a server call that is refused for its size goes back with empty arguments."""
    reader = reader_of(bound=64)
    for _ in reader.feed(turn(tool_use("a", OURS, {"x": "y" * 500}))):
        pass
    frames = reader.close()
    assert [type(one) for frame in frames for one in frame.events][-1] is not TurnFailed
    assert json.loads(reader.message())["content"][0]["input"] == {}


def test_a_call_is_the_runners_as_it_came() -> None:
    """The runner gets the call with its id, name, arguments and index."""
    (call,) = play(turn(text("x"), tool_use("toolu_1", OURS, {"n": 1}))).calls
    assert call == ToolCall("toolu_1", OURS, '{"n": 1}', 0)
