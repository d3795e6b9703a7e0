"""Chat without streaming: one object composed of all turns, or the upstream's own bytes."""

import json
import re
from typing import Any

import pytest

from proxy.base.events import FinishReason, Frame, ToolCall, ToolResult
from proxy.wires.chat.reader import ChatTurnReader
from proxy.wires.chat.reply import ChatReplyWriter
from proxy.wires.client_port import ClientView, Trace

SERVER = ("srv_time",)
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "details": {"a": 1}}


def is_hidden(name: str) -> bool:
    """Return whether a call is the server's."""
    return name in SERVER


def call(call_id: str | None, name: str, arguments: str = "{}", **extra: Any) -> dict[str, Any]:
    """One entry of ``tool_calls``."""
    head = {} if call_id is None else {"id": call_id}
    return {**head, "type": "function", "function": {"name": name, "arguments": arguments}, **extra}


def body(content: Any = None, *calls: dict[str, Any], turn: int = 1, **fields: Any) -> dict[str, Any]:
    """Return one upstream reply."""
    message = {"role": "assistant", "content": content, **fields.pop("message", {})}
    if calls:
        message["tool_calls"] = list(calls)
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": fields.pop("finish", "tool_calls" if calls else "stop"),
    }
    choice |= fields.pop("choice", {})
    head = {"id": f"up{turn}", "object": "chat.completion", "created": 1700 + turn, "model": f"m{turn}"}
    return {**head, "choices": [choice], "usage": USAGE, **fields}


def relay(
    *turns: dict[str, Any], reason: str | None = None, note: str = "", finish: str = "tool_calls", **how: Any
) -> tuple[dict[str, Any], ChatReplyWriter, bytes]:
    """Run turns as the relay does; return the reply, the writer, and the reply's bytes."""
    seen = {key: how.pop(key) for key in ("trace",) if key in how}
    writer = ChatReplyWriter(ClientView("asked", is_hidden, **seen), **how)
    for number, turn in enumerate(turns):
        reader = ChatTurnReader({"srv_time", "book"}, is_hidden, 8192)
        frame = reader.read_reply(json.dumps(turn).encode())
        assert writer.write(frame) == b""
        calls = [c.call for c in frame.events if hasattr(c, "call")]
        theirs = any(not is_hidden(c.name) for c in calls)
        if any(is_hidden(c.name) for c in calls) and not (reason and number == len(turns) - 1):
            writer.turn_ended("suspended" if theirs else "hidden")
            for one in calls:
                if is_hidden(one.name):
                    result = ToolResult(
                        one.call_id, True, "secret", redacted={"t": 1}, arguments_redacted={"z": 1}
                    )
                    writer.tool_started(one, {"z": 1})
                    writer.tool_finished(one, result)
        if theirs and writer.composing:
            reason = finish
    if note:
        assert writer.note(note) == b""
    assert writer.turn_ended("final") == b""
    raw = writer.finish(FinishReason(reason) if reason else None)
    found = json.loads(raw)
    assert isinstance(found, dict)
    return found, writer, raw


def message(reply: dict[str, Any]) -> dict[str, Any]:
    """Return the message of a reply."""
    found = reply["choices"][0]["message"]
    assert isinstance(found, dict)
    return found


def test_no_server_call_no_change() -> None:
    """Rule W2: a reply without a server call keeps its exact bytes."""
    for turn in (body("a"), body(None, call("a", "book")), {"odd": 1, "choices": 5}):
        _, writer, raw = relay(turn)
        assert raw == json.dumps(turn).encode()
        assert not writer.composing


def test_two_turns_are_one_reply() -> None:
    """The reply has the first turn's head, the last turn's fields, joined texts and summed usage."""
    reply, writer, _ = relay(
        body("Let me see.", call("a", "srv_time")), body("Noon.", turn=2, service_tier="t")
    )
    assert reply == {
        "id": "up1",
        "object": "chat.completion",
        "created": 1701,
        "model": "m1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Let me see.\n\nNoon."},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10, "details": {"a": 2}},
        "service_tier": "t",
    }
    assert writer.composing


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        (("a", "b"), "a\n\nb"),
        (("a\n", "b"), "a\nb"),
        (("a", " b"), "a b"),
        (("", "b"), "b"),
        (("a", None), "a"),
        ((None, ""), None),
        (("a", [{"type": "text", "text": "b"}, {"type": "x"}]), "a\n\nb"),
        (("a", 5), "a"),
    ],
)
def test_texts_of_turns_are_paragraphs(texts: tuple[Any, Any], joined: str | None) -> None:
    """The texts of turns become paragraphs, unless they already have whitespace between them."""
    assert message(relay(body(texts[0], call("a", "srv_time")), body(texts[1]))[0])["content"] == joined


def test_reasoning_of_turns() -> None:
    """Reasoning of all turns is joined under each name; other fields come from the last turn."""
    first = body(
        None, call("a", "srv_time"), message={"reasoning": "a", "reasoning_content": "x", "other": 1}
    )
    last = body("b", message={"reasoning": "b", "reasoning_content": "", "refusal": None})
    assert message(relay(first, last)[0]) == {
        "role": "assistant",
        "content": "b",
        "reasoning": "ab",
        "reasoning_content": "x",
        "refusal": None,
    }


def test_empty_reasoning_is_none() -> None:
    """Empty reasoning of an earlier turn adds no field to the reply."""
    first = body(None, call("a", "srv_time"), message={"reasoning": "", "reasoning_content": 5})
    assert message(relay(first, body("b"))[0]) == {"role": "assistant", "content": "b"}


def test_what_the_client_sees_so_far() -> None:
    """The visible text is that of all turns, as paragraphs; it is empty at first."""
    writer = ChatReplyWriter(ClientView("m", is_hidden))
    assert (writer.visible, writer.client_ids()) == ("", {})
    assert relay(body("a", call("s", "srv_time")), body("b"))[1].visible == "a\n\nb"


def test_a_hidden_turn_means_composing() -> None:
    """After a hidden turn the writer composes the reply, even from a frame without events."""
    writer = ChatReplyWriter(ClientView("m", is_hidden))
    writer.write(Frame(b"x"))
    composing = [writer.composing]
    writer.turn_ended("hidden")
    assert [*composing, writer.composing] == [False, True]
    assert message(json.loads(writer.finish(None))) == {"role": "assistant", "content": None}


def test_a_mixed_turn() -> None:
    """Rule W5: the client gets only its own calls, with their unknown fields."""
    nameless = {"id": "n", "function": {"arguments": "{}"}}
    turn = body(
        "t", nameless, call("a", "srv_time"), call("b", "book", '{"x":1}', sign="S"), call("c", "book")
    )
    reply, writer, raw = relay(turn)
    assert message(reply)["tool_calls"] == [call("b", "book", '{"x":1}') | {"sign": "S"}, call("c", "book")]
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert writer.client_ids() == {"b": "b", "c": "c"}
    assert b"srv_time" not in raw


def test_ids_are_fresh() -> None:
    """A used or missing call id is replaced, and the writer remembers the new one."""
    reply, writer, _ = relay(
        body(None, call("s", "srv_time")),
        body(None, call("a", "book"), call(None, "book", '{"x":1}'), turn=2),
        used_ids=frozenset({"a"}),
    )
    first, second = (c["id"] for c in message(reply)["tool_calls"])
    assert first != "a"
    assert all(re.fullmatch(r"call_[A-Za-z0-9]{24}", call_id) for call_id in (first, second))
    assert writer.client_ids() == {"a": first, second: second}


def test_the_older_form() -> None:
    """A legacy client call keeps its form and its finish reason."""
    legacy = {"function_call": {"name": "book", "arguments": '{"x":1}'}}
    reply, _, _ = relay(body(None, call("s", "srv_time")), body(None, message=legacy, finish="function_call"))
    assert message(reply) == {"role": "assistant", "content": None, **legacy}
    assert reply["choices"][0]["finish_reason"] == "function_call"
    reply, _, _ = relay(
        body(None, call("s", "srv_time")), body(None, message=legacy, finish="length"), finish="length"
    )
    assert reply["choices"][0]["finish_reason"] == "length"


def test_a_legacy_server_call_on_the_last_turn() -> None:
    """Rule W5: the client does not get a legacy server call that did not run."""
    last = body(None, message={"function_call": {"name": "srv_time", "arguments": "{}"}})
    reply, _, raw = relay(body("a", call("s", "srv_time")), last, reason="stop")
    assert message(reply) == {"role": "assistant", "content": "a"}
    assert b"srv_time" not in raw


def test_a_custom_call() -> None:
    """A custom client call keeps its form."""
    custom = {"id": "c", "type": "custom", "custom": {"name": "book", "input": "x"}}
    reply, _, _ = relay(body(None, call("s", "srv_time")), body(None, custom))
    assert message(reply)["tool_calls"] == [custom]


@pytest.mark.parametrize(
    ("reason", "said", "told"),
    [(None, "length", "length"), ("stop", "tool_calls", "stop"), (None, None, "stop")],
)
def test_the_finish_reason(reason: str | None, said: str | None, told: str) -> None:
    """The finish reason is the relay's, else the upstream's, else ``stop``."""
    reply, _, _ = relay(body(None, call("s", "srv_time")), body("b", finish=said), reason=reason)
    assert reply["choices"][0]["finish_reason"] == told


def test_a_server_call_on_the_last_turn() -> None:
    """The client gets a note instead of a server call that did not run."""
    reply, _, raw = relay(
        body("a", call("s", "srv_time")),
        body(None, call("t", "srv_time"), turn=2),
        reason="stop",
        note="[spent]",
    )
    assert message(reply) == {"role": "assistant", "content": "a\n\n[spent]"}
    assert b"srv_time" not in raw


@pytest.mark.parametrize(
    "odd", [{"choices": []}, {"choices": 5}, {"choices": [5]}, {"choices": [{"message": 5}]}, {}]
)
def test_an_odd_last_turn(odd: dict[str, Any]) -> None:
    """Section 0.1: the reply has id, object, role and finish reason, whatever the upstream answered."""
    reply, _, _ = relay(body("a", call("s", "srv_time")), odd)
    assert message(reply) == {"role": "assistant", "content": "a"}
    assert (reply["object"], reply["id"], reply["choices"][0]["finish_reason"]) == (
        "chat.completion",
        "up1",
        "stop",
    )
    assert reply["choices"][0]["index"] == 0


def test_a_head_that_never_comes() -> None:
    """Section 0.1: a reply without id and model gets a minted id and the requested model."""
    first = {"choices": body(None, call("s", "srv_time"))["choices"]}
    reply, _, _ = relay(first, {"choices": body("b")["choices"], "id": "", "model": None})
    assert re.fullmatch(r"chatcmpl-[A-Za-z0-9]{24}", reply["id"])
    assert (reply["model"], reply["created"]) == ("asked", 0)
    assert "usage" not in reply
    reply, _, _ = relay(first, body("b", turn=2))
    assert (reply["id"], reply["model"], reply["created"]) == ("up2", "m2", 1702)


def test_groq_usage_counts() -> None:
    """Usage in Groq's own field counts."""
    first = body(None, call("s", "srv_time"), x_groq={"usage": {"total_tokens": 1}}, usage=None)
    assert relay(first, body("b"))[0]["usage"]["total_tokens"] == 6


def test_json_is_never_two_texts() -> None:
    """With ``response_format`` the client gets only the last turn's text, without notes and status lines."""
    reply, _, _ = relay(
        body('{"a":1}', call("s", "srv_time")),
        body('{"b":2}'),
        last_text_only=True,
        trace="status",
        note="[spent]",
    )
    assert message(reply)["content"] == '{"b":2}'


@pytest.mark.parametrize("trace", ["silent", "reasoning", "status", "events"])
def test_traces(trace: Trace) -> None:
    """Rule W5: the trace mode decides how a server call is shown; private values are always redacted."""
    reply, _, raw = relay(body("a", call("s", "srv_time", '{"secret":1}')), body("b"), trace=trace)
    assert b"secret" not in raw
    line = "srv_time(z=1): done in 0 ms"
    assert message(reply)["content"] == (f"a\n\n> {line}\n\nb" if trace == "status" else "a\n\nb")
    assert message(reply).get("reasoning_content") == (f"{line}\n" if trace == "reasoning" else None)
    shown = [(t["type"], t["call_id"], t["status"]) for t in reply.get("x_toolrelay", [])]
    told = [("tool_call", "s", "in_progress"), ("tool_result", "s", "completed")]
    assert shown == (told if trace == "events" else [])


def test_nothing_to_keep_alive() -> None:
    """A reply that is not streamed has no keep-alives."""
    writer = ChatReplyWriter(ClientView("m", is_hidden))
    assert writer.keep_alive() == b""
    assert writer.tool_started(ToolCall("a", "srv_time", "{}", 0), None) == b""
    assert writer.write(Frame(b"x")) == b""
    assert writer.finish(None) == b"x"


def test_failing() -> None:
    """E1: a failure becomes OpenAI's error object."""
    raw = ChatReplyWriter(ClientView("m", is_hidden)).fail("no", type="t", code="c")
    assert json.loads(raw) == {"error": {"message": "no", "type": "t", "param": None, "code": "c"}}
