"""Messages without streaming: the single object that the client gets."""

import json
from typing import Any

import pytest
from messages_rig import ASK, OURS, WIRE, hides, reader_of
from messages_script import Block, text, thinking, tool, tool_use

from proxy.base.events import FinishReason, ToolResult
from proxy.wires.client_port import ClientView, StreamWriter, Trace

RESULT = ToolResult("toolu_s", True, "noon", redacted="noon", arguments_redacted={"z": 1}, milliseconds=3)


def writer_of(trace: Trace = "silent", **ask: Any) -> StreamWriter:
    """Return a writer for a request that does not stream."""
    asked = WIRE.parse({**ASK, "stream": False, "tools": [tool("mine")], **ask})
    return WIRE.writer(asked, ClientView("m", hides("mine"), trace=trace))


def body(*blocks: Block, reason: str = "end_turn", id: str = "msg_1") -> bytes:
    """Return an upstream's reply with unusual spaces."""
    message = {
        "id": id, "type": "message", "role": "assistant", "model": "m", "content": list(blocks),
        "stop_reason": reason, "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 4},
        "container": {"id": "c_1"},
    }  # fmt: skip
    return json.dumps(message, indent=1).encode()


def take(writer: StreamWriter, data: bytes) -> None:
    """Give a writer a reply."""
    writer.write(reader_of("mine").read_reply(data))


HIDDEN = body(thinking("Hm.", "s1"), text("Wait. "), tool_use("toolu_s", OURS, {"z": 1}), reason="tool_use")


def test_what_calls_nothing_of_ours_keeps_its_bytes() -> None:
    """Rule W2: a reply without a server call keeps its exact bytes."""
    data = body(text("x"), tool_use("toolu_c", "mine"), reason="tool_use")
    writer = writer_of()
    take(writer, data)
    assert writer.turn_ended("final") + writer.finish(None) == data
    assert writer.client_ids() == {"toolu_c": "toolu_c"}
    assert not writer.composing


def run(trace: Trace = "silent", **ask: Any) -> dict[str, Any]:
    """Return the message that the client gets of a run with two turns."""
    writer = writer_of(trace, **ask)
    take(writer, HIDDEN)
    writer.turn_ended("hidden")
    writer.tool_started(_call(), {"z": 1})
    writer.tool_finished(_call(), RESULT)
    take(writer, body(text('{"a":1}'), id="msg_2"))
    writer.turn_ended("final")
    return dict(json.loads(writer.finish(None)))


def _call() -> Any:
    reader = reader_of("mine")
    events = reader.read_reply(HIDDEN).events
    return next(one.call for one in events if hasattr(one, "call"))


def test_two_turns_are_one_message() -> None:
    """The message has the first id, the last turn's end, and the usage and blocks of both turns."""
    message = run()
    assert (message["id"], message["stop_reason"], message["container"]) == (
        "msg_1",
        "end_turn",
        {"id": "c_1"},
    )
    assert message["content"] == [thinking("Hm.", "s1"), text("Wait. "), text('{"a":1}')]
    assert message["usage"] == {"input_tokens": 6, "output_tokens": 8}


@pytest.mark.parametrize("trace", ["silent", "reasoning", "status", "events"])
def test_traces(trace: Trace) -> None:
    """Each trace mode puts server calls into the content or a field, and ``silent`` hides them."""
    message = run(trace)
    said = json.dumps(message["content"])
    assert (OURS in said) == (trace in ("reasoning", "status"))
    assert ("x_toolrelay" in message) == (trace == "events")
    if trace == "reasoning":
        assert message["content"][2]["signature"] == "toolrelay"


def test_json_is_given_once() -> None:
    """For JSON output the client gets only the last turn's text, without status lines."""
    for trace in ("silent", "status"):
        message = run(trace, output_config={"format": {"type": "json_schema"}})
        assert [block["text"] for block in message["content"] if block["type"] == "text"] == ['{"a":1}']


def test_a_mixed_turn_shows_the_clients_calls_alone() -> None:
    """The client gets only its own call, under an id that its history does not have."""
    history = [{"role": "assistant", "content": [tool_use("toolu_c", "mine")]}]
    writer = writer_of(messages=history)
    calls = [tool_use("toolu_s", OURS), tool_use("toolu_c", "mine", {"a": 1})]
    take(writer, body(*calls, reason="tool_use"))
    writer.turn_ended("suspended")
    message = json.loads(writer.finish(FinishReason.TOOL_CALLS))
    (shown,) = message["content"]
    assert (shown["name"], shown["input"], message["stop_reason"]) == ("mine", {"a": 1}, "tool_use")
    assert shown["id"] != "toolu_c"
    assert writer.client_ids() == {"toolu_c": shown["id"]}


def test_a_spent_budget_is_an_end() -> None:
    """When a budget is spent, the message ends with the proxy's note and reason."""
    writer = writer_of()
    take(writer, HIDDEN)
    writer.turn_ended("final")
    writer.note("Spent.")
    message = json.loads(writer.finish(FinishReason.STOP))
    assert (message["stop_reason"], message["content"][-1]) == ("end_turn", text("Spent."))
    assert writer.visible == "Wait. Spent."


def test_an_error_is_this_dialects() -> None:
    """A failure becomes an error with a type that Anthropic clients know."""
    failed = json.loads(writer_of().fail("No", type="server_error", code="draining"))
    assert failed == {"type": "error", "error": {"type": "overloaded_error", "message": "No"}}
    assert (writer_of().result(), writer_of().keep_alive()) == (None, b"")
