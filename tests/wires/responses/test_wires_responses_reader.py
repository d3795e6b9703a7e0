"""Turns of a Responses upstream, in every form that was seen."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from responses_rig import OURS, Played, calls_of, play, read, reader_of, writer_of
from responses_script import (
    closing,
    custom,
    encode,
    event,
    function_call,
    item_events,
    message,
    opening,
    reasoning,
    refusal,
    resource,
    turn,
)

from proxy.base.errors import WireError
from proxy.base.events import (
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    UsageReported,
)
from proxy.wires.responses.reader import ItemKeys

CALL = function_call("call_h", OURS, '{"zone":"UTC"}')
GOT = [("call_h", OURS, '{"zone":"UTC"}')]


def of(played: Played, kind: type) -> list[Any]:
    """Return the events of one type."""
    return [one for one in played.events if isinstance(one, kind)]


def reason_of(data: bytes) -> list[str | None]:
    """Return the finish reasons of a turn."""
    return [one.reason for one in of(read(data), TurnFinished)]


# Calls.


def test_a_call_as_openai_sends_it() -> None:
    """A call with all its events is one call."""
    played = read(turn(CALL))
    assert [(c.call_id, c.name, c.arguments) for c in played.calls] == GOT
    assert played.calls[0].item_id == "fc_call_h"
    assert [(s.call_id, s.name) for s in of(played, ToolCallStarted)] == [("call_h", OURS)]
    assert of(played, TurnStarted) == [TurnStarted("resp_1", "m")]
    assert [one.reason for one in of(played, TurnFinished)] == ["tool_calls"]


def without(*kinds: str) -> bytes:
    """Return the call's turn without the events of these types."""
    return turn(CALL, events=[one for one in item_events(CALL, 0) if not one["type"].endswith(kinds)])


@pytest.mark.parametrize(
    "left_out",
    [
        ("arguments.delta",),
        ("arguments.done",),
        ("arguments.delta", "arguments.done"),
        ("item.added",),
        ("item.done",),
        ("item.added", "arguments.delta", "arguments.done"),
        ("item.added", "arguments.done"),
        ("item.added", "arguments.delta", "arguments.done", "item.done"),
        ("arguments.delta", "arguments.done", "item.done"),
        ("arguments.done", "item.done"),
        ("arguments.delta", "item.done"),
    ],
)
def test_any_event_may_be_missing(left_out: tuple[str, ...]) -> None:
    """A call is complete even if some of its events are missing, at worst from the last event alone."""
    assert calls_of(without(*left_out)) == GOT


@pytest.mark.parametrize("terminal", [[], None, "x", [5]])
def test_an_empty_terminal_output_forgets_nothing(terminal: Any) -> None:
    """If the last event has no output, the streamed items count."""
    last = closing(output=terminal)
    played = read(encode([*opening(), *item_events(message("a"), 0), *item_events(CALL, 1), last]))
    assert [(c.call_id, c.name, c.arguments) for c in played.calls] == GOT
    assert [item["type"] for item in played.message["output"]] == ["message", "function_call"]


def test_the_item_that_is_done_has_the_last_word() -> None:
    """If deltas, ``arguments.done`` and the item differ, the later one counts, and the item most."""
    life = item_events(CALL, 0)
    life[-1]["item"] = {**CALL, "arguments": '{"zone":"CET"}'}
    assert calls_of(turn(CALL, events=life)) == [("call_h", OURS, '{"zone":"CET"}')]
    life = [one for one in item_events(CALL, 0) if not one["type"].endswith("item.done")]
    life[-1]["arguments"] = '{"zone":"EET"}'
    assert calls_of(turn(events=life)) == [("call_h", OURS, '{"zone":"EET"}')]


def test_a_blank_last_word_says_nothing() -> None:
    """Empty arguments in ``done`` events do not replace the deltas."""
    life = item_events(CALL, 0)
    life[-1]["item"] = {**CALL, "arguments": ""}
    life[-2]["arguments"] = ""
    assert calls_of(turn(CALL, events=life)) == GOT


def test_rotating_ids_go_by_their_index() -> None:
    """If every event has another id, as with GitHub Copilot, the index identifies the item."""
    items = [function_call("call_1", OURS, '{"a":1}'), function_call("call_2", OURS, '{"a":2}')]
    events = [
        one for pair in zip(*(item_events(i, n) for n, i in enumerate(items)), strict=True) for one in pair
    ]
    for number, one in enumerate(events):
        if "item" in one:
            one["item"] = {**one["item"], "id": f"rotated_{number}"}
        if "item_id" in one:
            one["item_id"] = f"rotated_{number}"
    data = encode([*opening(id="a"), *events, closing(items, id="b")])
    assert calls_of(data) == [("call_1", OURS, '{"a":1}'), ("call_2", OURS, '{"a":2}')]
    assert read(data).message["id"] == "a"


def test_a_stream_without_indices_goes_by_ids() -> None:
    """Without indices, as with llama-server, the ids identify the items."""
    items = [function_call("call_1", OURS, '{"a":1}'), function_call("call_2", OURS, '{"b":2}')]
    events = [
        one for pair in zip(*(item_events(i, n) for n, i in enumerate(items)), strict=True) for one in pair
    ]
    for one in events:
        del one["output_index"]
    data = encode([*opening(), *events, closing(items)], numbered=False)
    assert calls_of(data) == [("call_1", OURS, '{"a":1}'), ("call_2", OURS, '{"b":2}')]


def test_a_stream_with_neither_index_nor_id() -> None:
    """Without index and id, an event belongs to the newest open item of its type."""
    events = [*item_events(message("a"), 0), *item_events(CALL, 1)]
    for one in events:
        one.pop("output_index")
        one.pop("item_id", None)
        if "item" in one:
            one["item"] = {key: value for key, value in one["item"].items() if key != "id"}
    played = read(encode([*opening(), *events, closing([])]))
    assert [(c.call_id, c.name, c.arguments) for c in played.calls] == GOT
    assert len(played.message["output"]) == 2


def test_blank_and_repeated_ids_are_repaired() -> None:
    """Rule W8: each call of a turn has an id of its own, the same in all its events."""
    items = [
        {**function_call("call_1", OURS, '{"a":1}'), "id": "fc_1"},
        {**function_call("call_1", OURS, '{"a":2}'), "id": "fc_2"},
        {**function_call("", OURS, '{"a":3}'), "id": "fc_3"},
        {**function_call("x", OURS, '{"a":4}'), "id": "fc_4", "call_id": None},
    ]
    played = read(turn(*items))
    ids = [call.call_id for call in played.calls]
    assert ids[0] == "call_1"
    assert len({*ids}) == 4
    assert all(ids)
    assert [call.arguments for call in played.calls] == [f'{{"a":{n}}}' for n in range(1, 5)]
    assert [item["call_id"] for item in played.message["output"]] == ids
    assert [one.call_id for one in of(played, ToolCallStarted)] == ids


@pytest.mark.parametrize("call_id", [[], {}, 7])
def test_an_id_of_another_type_is_replaced(call_id: Any) -> None:
    """A call whose id is no text gets a new one; the same call in the terminal event is no second call."""
    played = read(turn({**CALL, "call_id": call_id}))
    assert [(call.name, call.arguments) for call in played.calls] == [(OURS, '{"zone":"UTC"}')]
    assert played.calls[0].call_id.startswith("call_")


def test_a_call_without_a_name_is_none() -> None:
    """The reader drops a call without a name, because it cannot be answered."""
    nameless = {**CALL, "name": None}
    played = read(turn(nameless, message("a")))
    assert played.calls == []
    assert [item["type"] for item in played.message["output"]] == ["message"]


def test_arguments_that_are_an_object() -> None:
    """The reader accepts arguments as an object."""
    item = {**CALL, "arguments": {"zone": "UTC"}}
    assert calls_of(encode([*opening(), closing([item])])) == GOT


@pytest.mark.parametrize("arguments", ["{broken", "[1]", "null", '"x"', "5", "x" * 9000])
def test_arguments_that_cannot_run_go_back_empty(arguments: str) -> None:
    """Rule W8: server arguments that are no object, or too long, go back as ``{}``."""
    played = read(turn(function_call("call_h", OURS, arguments)))
    assert played.message["output"][0]["arguments"] == "{}"
    assert played.message["output"][0]["status"] == "completed"


@pytest.mark.parametrize("letter", ["x", "é"])
def test_arguments_of_just_the_allowed_size_go_back(letter: str) -> None:
    """Arguments of exactly the limit in bytes go back, and with one byte more they do not."""
    for size, whole in ((8192, True), (8193, False)):
        text = letter * ((size - 9) // len(letter.encode()))
        arguments = f'{{"a":"{text:<{len(text) + size - 8 - len(text.encode())}}"}}'
        assert len(arguments.encode()) == size
        (back,) = read(turn(function_call("call_h", OURS, arguments))).message["output"]
        assert back["arguments"] == (arguments if whole else "{}")


def test_the_last_event_may_lack_its_blank_line() -> None:
    """The last event counts even without its blank line."""
    data = turn(CALL)
    played = read(data[:-2])
    assert [(c.call_id, c.name, c.arguments) for c in played.calls] == GOT
    assert [one.reason for one in of(played, TurnFinished)] == ["tool_calls"]
    assert played.out == data


def test_the_clients_arguments_go_back_as_they_came() -> None:
    """A client call's arguments go back unchanged, even if they are no object."""
    data = turn(function_call("call_1", "mine", "[1]"))
    assert read(data, "mine").message["output"][0]["arguments"] == "[1]"


def test_unknown_fields_of_a_call_go_back() -> None:
    """A call goes back with all its unknown fields, as completed."""
    item = {**CALL, "namespace": "n", "caller": {"type": "program"}, "status": "in_progress"}
    (back,) = read(turn(item)).message["output"]
    assert back == {**item, "status": "completed"}


# Other items.


def test_a_custom_tool_of_the_clients_is_a_call() -> None:
    """A declared custom tool's call is the client's, with its input as text."""
    data = turn(custom("call_1", "write", "SELECT 1"))
    assert calls_of(data, "write") == [("call_1", "write", "SELECT 1")]
    assert reason_of(data) == ["stop"]
    assert read(data, "write").message["output"][0]["input"] == "SELECT 1"


def test_a_custom_tool_of_the_providers_is_none_of_ours() -> None:
    """An undeclared custom call, such as xAI's own search, is not a call to answer."""
    played = read(turn(custom("xs_1", "x_semantic_search", "{}"), message("Found.")))
    assert played.calls == []
    assert [one.reason for one in of(played, TurnFinished)] == ["stop"]
    assert [item["type"] for item in played.message["output"]] == ["custom_tool_call", "message"]


def test_a_custom_call_under_a_name_of_ours_is_not_run() -> None:
    """A custom call with a server tool's name does not run."""
    assert calls_of(turn(custom("call_1", OURS, "{}"))) == []


@pytest.mark.parametrize(
    "kind",
    [
        "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call",
        "mcp_list_tools", "mcp_approval_request", "computer_call", "local_shell_call", "shell_call",
        "apply_patch_call", "tool_search_call", "compaction", "program", "program_output", "unheard_of",
    ],
)  # fmt: skip
def test_items_that_the_provider_runs(kind: str) -> None:
    """Items that the provider runs are not calls, and go back unchanged."""
    item = {
        "id": "it_1",
        "type": kind,
        "status": "completed",
        "name": OURS,
        "call_id": "c",
        "arguments": "{}",
    }
    events = [
        event("response.output_item.added", output_index=0, item=item),
        event(f"response.{kind}.in_progress", output_index=0, item_id="it_1"),
        event(f"response.{kind}_arguments.delta", output_index=0, item_id="it_1", delta="{}"),
        event("response.output_item.done", output_index=0, item=item),
    ]
    played = read(turn(item, message("a"), events=[*events, *item_events(message("a"), 1)]))
    assert played.calls == []
    assert played.message["output"] == [item, message("a")]


def test_reasoning_goes_back_as_it_ended() -> None:
    """Reasoning goes back with ``encrypted_content`` of its ``done`` event."""
    item = reasoning("hm", encrypted_content="blob" * 20)
    life = item_events(item, 0)
    life[0]["item"]["encrypted_content"] = "bl"
    played = read(turn(item, events=life))
    assert played.message["output"] == [item]
    assert "".join(one.text for one in of(played, ReasoningDelta)) == "hm"


def test_raw_reasoning_is_reasoning() -> None:
    """Reasoning as text, which open models send, gives reasoning events."""
    data = turn(events=[event("response.reasoning_text.delta", output_index=0, item_id="r", delta="hm")])
    assert of(read(data), ReasoningDelta) == [ReasoningDelta("hm")]


def test_text_and_refusal() -> None:
    """Text and refusals give different events, and the turn's text has no refusal."""
    played = read(turn(message("It is noon."), refusal("I will not.", id="msg_2")))
    assert "".join(one.text for one in of(played, TextDelta)) == "It is noon."
    assert "".join(one.text for one in of(played, RefusalDelta)) == "I will not."
    assert played.reader.text == "It is noon."


@pytest.mark.parametrize(
    "kind", ["mcp_call_arguments", "custom_tool_call_input", "audio", "code_interpreter_call_code"]
)
def test_other_deltas_say_nothing_to_the_run(kind: str) -> None:
    """Other deltas are neither text, reasoning nor refusal."""
    data = turn(events=[event(f"response.{kind}.delta", output_index=0, item_id="x", delta="abc")])
    assert [type(one).__name__ for one in read(data).events] == ["TurnStarted", "TurnFinished"]


@pytest.mark.parametrize("delta", [None, 5, "", [], {"a": 1}])
def test_a_delta_that_is_no_text_says_nothing(delta: Any) -> None:
    """A delta that is not text gives no event."""
    kinds = ("output_text", "reasoning_text", "refusal", "function_call_arguments")
    life = item_events(CALL, 0)
    odd = [event(f"response.{kind}.delta", output_index=0, item_id="x", delta=delta) for kind in kinds]
    played = read(turn(CALL, events=[life[0], *odd, *life[1:]]))
    assert [(c.call_id, c.name, c.arguments) for c in played.calls] == GOT
    assert of(played, TextDelta) == of(played, ReasoningDelta) == of(played, RefusalDelta) == []


def test_text_that_only_the_end_has() -> None:
    """Without deltas the turn's text comes from the items."""
    assert read(encode([*opening(), closing([message("Noon.")])])).reader.text == "Noon."


# How a turn ends.


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"reason": "max_output_tokens"}, "length"),
        ({"reason": "content_filter"}, "content_filter"),
        ({"reason": "steered"}, "length"),
        (None, "length"),
        ("x", "length"),
    ],
)
def test_an_incomplete_response(details: Any, reason: str) -> None:
    """An incomplete response has a known reason, else ``length``, so that half a call does not run."""
    assert reason_of(turn(CALL, status="incomplete", incomplete_details=details)) == [reason]


def test_an_incomplete_response_in_either_word() -> None:
    """The event's type or the status alone makes a response incomplete."""
    for kind, status in (("response.incomplete", None), ("response.done", "incomplete")):
        last = {
            **closing([CALL], status=status, incomplete_details={"reason": "max_output_tokens"}),
            "type": kind,
        }
        assert reason_of(encode([*opening(), *item_events(CALL, 0), last])) == ["length"]


@pytest.mark.parametrize("kind", ["response.completed", "response.done"])
def test_every_ending_is_an_end(kind: str) -> None:
    """``response.completed`` and Codex' ``response.done`` both end the stream."""
    reader = reader_of()
    frames = reader.feed(encode([*opening(), {**closing([message("a")]), "type": kind}]))
    assert [frame.is_end_mark for frame in frames] == [False, False, True]
    assert [frame.is_end_mark for frame in reader.feed(b"data: [DONE]\n\n")] == [True]


def test_a_response_that_failed() -> None:
    """A failed response gives its error, whatever its status field says."""
    error = {"code": "server_error", "message": "No."}
    for status in ("failed", "cancelled"):
        played = read(turn(error=error, status=status))
        assert of(played, TurnFailed) == [TurnFailed(error)]
        assert of(played, TurnFinished) == []
    bare = {**closing(), "type": "response.failed", "response": {"id": "r"}}
    assert of(read(encode([bare])), TurnFailed) == [TurnFailed({"code": "failed"})]


def test_an_error_event_is_read_flat_and_nested() -> None:
    """The reader accepts an error event flat, nested, or without a type."""
    flat = {"type": "error", "code": "c", "message": "m", "param": None, "sequence_number": 0}
    nested = {"type": "error", "error": {"code": "c", "message": "m"}}
    untyped = b'data: {"error":{"code":"c","message":"m"}}\n\n'
    for data in (encode([flat]), encode([nested]), untyped):
        (failed,) = of(read(data), TurnFailed)
        assert (failed.error["code"], failed.error["message"]) == ("c", "m")


def test_the_type_may_stand_in_the_event_line_alone() -> None:
    """The reader takes a missing ``type`` from the SSE field ``event``."""
    text = encode([*opening(), *item_events(CALL, 0), closing([CALL])]).decode()
    bare = "\n".join(
        "data: " + json.dumps({k: v for k, v in json.loads(line[6:]).items() if k != "type"})
        if line.startswith("data: ")
        else line
        for line in text.split("\n")
    )
    played = read(bare.encode())
    assert [(c.call_id, c.name, c.arguments) for c in played.calls] == GOT
    assert [one.reason for one in of(played, TurnFinished)] == ["tool_calls"]


def test_usage_is_read() -> None:
    """Usage has its counts and the native object; an invalid count is 0."""
    native = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 9, "cost": 0.1}
    (one,) = of(read(turn(usage=native)), UsageReported)
    assert (one.usage.input_tokens, one.usage.output_tokens, one.usage.total_tokens) == (3, 4, 9)
    assert one.usage.native == native
    odd = {"input_tokens": True, "output_tokens": -4, "total_tokens": "9"}
    (one,) = of(read(turn(usage=odd)), UsageReported)
    assert (one.usage.input_tokens, one.usage.output_tokens, one.usage.total_tokens) == (0, 0, 0)


def test_a_response_without_created() -> None:
    """Without ``created``, the last event starts the turn."""
    assert of(read(encode([closing([message("a")])])), TurnStarted) == [TurnStarted("resp_1", "m")]


def test_what_was_stored_is_told() -> None:
    """The message says whether the upstream stored the response, which decides how to continue."""
    assert read(turn(message("a"), store=True)).message["store"] is True
    assert read(turn(message("a"), store=False)).message["store"] is False
    assert read(turn(message("a"))).message["store"] is None


# Whole replies.


def reply(*items: dict[str, Any], **more: Any) -> Played:
    """Return a reply that was not streamed, after reading it."""
    reader = reader_of("mine")
    frame = reader.read_reply(json.dumps(resource(items, **more)).encode())
    return Played(reader, list(frame.events), frame.raw)


def test_a_reply_that_is_not_streamed() -> None:
    """A reply gives the same calls, ids, usage and end as a stream."""
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    repeated = {**function_call("call_h", "mine"), "id": "fc_2"}
    played = reply(reasoning("hm"), message("See:"), CALL, repeated, usage=usage, store=True)
    assert [call.name for call in played.calls] == [OURS, "mine"]
    assert len({call.call_id for call in played.calls}) == 2
    assert [one.reason for one in of(played, TurnFinished)] == ["tool_calls"]
    assert of(played, TurnStarted) == [TurnStarted("resp_1", "m")]
    assert len(of(played, UsageReported)) == 1
    assert played.message["store"] is True
    assert [item["type"] for item in played.message["output"]] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    assert played.reader.text == "See:"


def test_an_error_in_a_reply() -> None:
    """An error in a reply with status 200 fails the turn."""
    assert of(reply(error={"code": "c"}), TurnFailed) == [TurnFailed({"code": "c"})]
    assert of(reply(error="words"), TurnFailed) == [TurnFailed({"message": "words"})]


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"<html>", b"5"])
def test_a_reply_that_is_no_object(body: bytes) -> None:
    """A reply that is no JSON object raises an error."""
    with pytest.raises(WireError):
        reader_of().read_reply(body)


# Limits and cuts.


def test_items_are_bounded() -> None:
    """More than 4096 items in one response are an error."""
    events = [event("response.output_item.added", output_index=n, item={"id": str(n)}) for n in range(4097)]
    turn = reader_of()
    turn.feed(encode(events))
    assert "4096 items" in str(turn.fault)


def test_a_huge_index_costs_nothing() -> None:
    """A huge or negative index is allowed."""
    item = function_call("call_h", OURS, "{}")
    data = turn(item, events=item_events(item, 2**31))
    assert calls_of(data) == [("call_h", OURS, "{}")]
    assert calls_of(turn(item, events=item_events(item, -5))) == [("call_h", OURS, "{}")]


def test_keys_are_dense_in_order_of_first_sight() -> None:
    """An event belongs to the item with its index, else its id, else to the latest item."""
    keys = ItemKeys()
    assert keys.opened({"output_index": 7, "item": {"id": "a", "type": "message"}}) == 0
    assert keys.opened({"item": {"id": "b", "type": "message"}}) == 1
    assert keys.of({"output_index": 7, "item_id": "b"}) == 0
    assert keys.of({"item_id": "b"}) == 1
    assert keys.of({"item_id": "unheard"}) == 1
    assert keys.of({"output_index": 9}) == 2
    assert keys.of({"item": {"id": "c", "type": "reasoning"}}) == 3
    assert keys.of({"item": {"type": "message"}}) == 1
    assert keys.of({"item": {"type": "message"}}) == 0
    assert keys.of({"item": {"type": "message"}}) == 4
    assert len(keys) == 5


ALL = turn(
    reasoning("Grüße"), message("It is 🕛."), CALL, function_call("call_1", "mine", '{"a":"é"}'),
    custom("call_2", "write", "x"), usage={"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
)  # fmt: skip


@given(st.lists(st.integers(1, len(ALL)), max_size=30))
@settings(max_examples=80, deadline=None)
def test_every_cut_is_read_alike(at: list[int]) -> None:
    """Rule W6: events, bytes and message do not depend on where the stream was cut."""
    whole, pieces = play(ALL, None, "mine", "write"), play(ALL, None, "mine", "write", at=at)
    assert pieces.out == ALL
    assert pieces.events == whole.events
    assert pieces.message == whole.message


@given(st.permutations(range(len(item_events(CALL, 0)) - 1)))
@settings(max_examples=50, deadline=None)
def test_a_call_is_whole_in_any_order(order: list[int]) -> None:
    """The events of a call may come in any order if its item ends last."""
    life = item_events(CALL, 0)
    events = [*(life[n] for n in order), life[-1]]
    assert calls_of(turn(CALL, events=events)) == GOT


def test_a_call_is_finished_once() -> None:
    """A call whose ``done`` events repeat is one call."""
    life = item_events(CALL, 0)
    played = read(turn(CALL, events=[*life, *life[-2:], life[-1]]))
    assert len(of(played, ToolCallFinished)) == 1
    assert len(played.message["output"]) == 1


# Invalid JSON.


@pytest.mark.parametrize(
    "odd", [b'"\xff"', rb'"\ud83d"', rb'"\\\ude00"', b"NaN", b"1e400", b"123456789012345678901234567890"]
)
def test_a_call_does_not_hide_behind_what_is_no_json(odd: bytes) -> None:
    """The reader finds a call in JSON that only lenient parsers accept, so it stays hidden (rule W5)."""
    item = json.dumps({**CALL, "odd": "@"}).encode().replace(b'"@"', odd)
    done = b'data: {"type":"response.output_item.done","output_index":0,"item":%b}\n\n' % item
    played = play(encode(opening()) + done + encode([closing()]), writer_of())
    assert [(c.call_id, c.name, c.arguments) for c in played.calls] == GOT
    assert OURS.encode() not in played.out


@pytest.mark.parametrize("data", [b'{"type":"response.output_item.done",', b'{"a" 1}', b'{"a":"\0"}'])
def test_an_event_that_cannot_be_read_fails_the_turn(data: bytes) -> None:
    """An unreadable event fails the turn, because a part of it, perhaps a call, is lost."""
    (frame,) = reader_of().feed(b"data: " + data + b"\n\n")
    assert frame.payload is None
    (failed,) = frame.events
    assert isinstance(failed, TurnFailed)
    assert failed.error["code"] == "upstream_malformed"


def test_a_half_event_at_the_end_is_no_fault() -> None:
    """Half an event at the end of a stream gives no event and no error."""
    turn_ = reader_of()
    assert turn_.feed(b'data: {"type":"respo') == []
    assert [frame.events for frame in turn_.close()] == [(), ()]


# Calls with an incomplete name.


@pytest.mark.parametrize("begun", ["", OURS[:4]])
@pytest.mark.parametrize("between", [b"", b": keep-alive\n\n", b"event: ping\n\n", b"data: ping\n\n"])
def test_a_name_that_comes_whole_in_the_end(begun: str, between: bytes) -> None:
    """Rule W5: nothing of a hidden call whose name only its last event completes goes to the client."""
    added = event("response.output_item.added", output_index=0, item={**CALL, "name": begun, "arguments": ""})
    done = event("response.output_item.done", output_index=0, item=CALL)
    data = encode([*opening(), added]) + between + encode([done, closing()])
    played = play(data, writer_of())
    assert [(c.call_id, c.name, c.arguments) for c in played.calls] == GOT
    assert b"call_h" not in played.out
    assert OURS.encode() not in played.out
