"""A client of one dialect on an upstream of another: bodies, turns, and what is kept of them."""

import json
from typing import Any

import pytest
from toy_dialect import ToyWire, event

from proxy.base.events import TextDelta, ToolCall, ToolCallFinished, ToolCallStarted, ToolDefinition
from proxy.wires.chat.wire import ChatWire
from proxy.wires.crossed import Crossing
from proxy.wires.upstream_port import BodyEditor, SuspendedCall

CHAT, TOY = ChatWire(), ToyWire()
CHAT_ASK: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What time is it?"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "mine", "description": "d", "parameters": {"type": "object"}},
        }
    ],
}
TOY_ASK: dict[str, Any] = {
    "model": "m",
    "live": True,
    "turns": [{"by": "user", "text": "What time is it?"}],
    "kit": [{"tool": "mine", "about": "d", "takes": {"type": "object"}}],
}
NOW = ToolDefinition("now", "The time.", {"type": "object", "properties": {}})
CALL = ToolCall("call_1", "now", "{}", 0)


def same(name: str, arguments: str) -> str:
    """Nothing is private."""
    return arguments


def crossing(client: Any, upstream: Any, ask: dict[str, Any]) -> tuple[Crossing, BodyEditor]:
    """Both sides of one request."""
    request = client.parse(ask)
    port = Crossing(client, upstream, request)
    return port, port.editor(json.dumps(ask).encode(), request)


def test_a_chat_request_for_a_toy() -> None:
    """The upstream gets a body of its own dialect, with the tools of both sides."""
    _, editor = crossing(CHAT, TOY, CHAT_ASK)
    editor.offer([NOW], [])
    body = json.loads(editor.render())
    assert [turn["text"] for turn in body["turns"]] == ["Be brief.", "What time is it?"]
    assert [tool["tool"] for tool in body["kit"]] == ["mine", "now"]
    assert body["live"] is True


def test_a_toy_request_for_chat() -> None:
    """And the other way round, with everything that Chat's editor does to a body."""
    _, editor = crossing(TOY, CHAT, TOY_ASK)
    editor.offer([NOW], [])
    editor.edit(asks_usage=True)
    editor.edit(model="other")
    body = json.loads(editor.render())
    assert body["messages"] == [{"role": "user", "content": "What time is it?"}]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["mine", "now"]
    assert body["stream_options"] == {"include_usage": True}
    assert body["model"] == "other"


def test_turns_are_appended_in_the_dialect_of_the_upstream() -> None:
    """The loop is the upstream's own: its message goes back as it came."""
    port, editor = crossing(CHAT, TOY, CHAT_ASK)
    editor.offer([NOW], [])
    reader = port.reader({"mine", "now"}, lambda name: name == "now", 8192)
    reader.feed(event({"call": {"ref": "call_1", "tool": "now", "input": "{}"}}) + event({"why": "called"}))
    reader.close()
    result = editor.result_message(CALL, "noon")
    editor.append_turn(reader.message(), [result])
    *_, made, answered = json.loads(editor.render())["turns"]
    assert made["calls"] == [{"ref": "call_1", "tool": "now", "input": "{}"}]
    assert answered == {"by": "tool", "ref": "call_1", "text": "noon"}


def held_turn(client: Any, upstream: Any, ask: dict[str, Any]) -> bytes:
    """What is kept of a turn with a call of ours and one of the client's."""
    _, editor = crossing(client, upstream, ask)
    editor.offer([NOW], [])
    calls = [("call_1", "now"), ("call_2", "mine")]
    if upstream is TOY:
        made = [{"ref": ref, "tool": name, "input": "{}"} for ref, name in calls]
        message = json.dumps({"by": "model", "text": "Wait.", "calls": made})
    else:
        functions = [
            {"id": ref, "type": "function", "function": {"name": name, "arguments": "{}"}}
            for ref, name in calls
        ]
        message = json.dumps({"role": "assistant", "content": "Wait.", "tool_calls": functions})
    result = editor.result_message(CALL, "noon")
    held = [SuspendedCall("call_1", None, result), SuspendedCall("call_2", "call_2", None)]
    return editor.suspend(message.encode(), held, same)


CHAT_RETURN: dict[str, Any] = {
    **CHAT_ASK,
    "messages": [
        *CHAT_ASK["messages"],
        {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [
                {"id": "call_2", "type": "function", "function": {"name": "mine", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_2", "content": "mine too"},
    ],
}
TOY_RETURN: dict[str, Any] = {
    **TOY_ASK,
    "turns": [
        *TOY_ASK["turns"],
        {"by": "model", "text": "Wait.", "calls": [{"ref": "call_2", "tool": "mine", "input": "{}"}]},
        {"by": "tool", "ref": "call_2", "text": "mine too"},
    ],
}


def chat_turns(body: bytes) -> list[Any]:
    """The calls and results of a Chat body, in order."""
    return [
        (message.get("tool_call_id"), message["content"])
        if message["role"] == "tool"
        else [call["function"]["name"] for call in message["tool_calls"]]
        for message in json.loads(body)["messages"]
        if message["role"] == "tool" or message.get("tool_calls")
    ]


def toy_turns(body: bytes) -> list[Any]:
    """The same of a toy's body."""
    return [
        (turn["ref"], turn["text"]) if turn["by"] == "tool" else [call["tool"] for call in turn["calls"]]
        for turn in json.loads(body)["turns"]
        if turn["by"] == "tool" or turn.get("calls")
    ]


WHOLE = [["now", "mine"], ("call_1", "noon"), ("call_2", "mine too")]


@pytest.mark.parametrize("made_by", [CHAT, TOY], ids=["chat", "toy"])
@pytest.mark.parametrize("returns_to", [CHAT, TOY], ids=["chat", "toy"])
@pytest.mark.parametrize("client", [CHAT, TOY], ids=["chat", "toy"])
def test_a_held_turn_is_put_back_whatever_the_upstream(made_by: Any, returns_to: Any, client: Any) -> None:
    """Rule R4: a turn that was held while one upstream answered goes on at an upstream of any dialect."""
    ask, back = (CHAT_ASK, CHAT_RETURN) if client is CHAT else (TOY_ASK, TOY_RETURN)
    position = 2 if client is CHAT else 1
    payload = held_turn(client, made_by, ask)
    request = client.parse(back)
    assert request.fits(position, json.loads(payload), lambda text: text == "Wait.")
    if returns_to is client:
        editor = client.editor(json.dumps(back).encode(), request)
    else:
        _, editor = crossing(client, returns_to, back)
    editor.offer([NOW], [])
    editor.restore(position, payload)
    assert editor.restored[0] == 1
    turns = chat_turns if returns_to is CHAT else toy_turns
    assert turns(editor.render()) == WHOLE


def test_what_was_changed_is_changed_again_when_a_turn_is_put_back() -> None:
    """The body is translated anew, and nothing that was done to it before is lost."""
    _, editor = crossing(TOY, CHAT, TOY_RETURN)
    editor.offer([NOW], [])
    editor.edit(withheld=["now"])
    editor.edit(model="other")
    before = json.loads(editor.render())
    editor.restore(1, held_turn(TOY, CHAT, TOY_ASK))
    after = json.loads(editor.render())
    assert [tool["function"]["name"] for tool in after["tools"]] == ["mine"]
    assert (before["tools"], before["model"]) == (after["tools"], after["model"])
    assert len(after["messages"]) == len(before["messages"]) + 1


def test_a_conversation_that_is_too_long_goes_without_what_was_put_back() -> None:
    """What the conversation can do without is taken out again, in the client's form."""
    _, editor = crossing(CHAT, TOY, CHAT_RETURN)
    editor.restore(2, held_turn(CHAT, TOY, CHAT_ASK), needed=False)
    assert toy_turns(editor.render()) == WHOLE
    assert editor.recover("no such model", None), "the turn in the upstream's own form is given up once"
    assert toy_turns(editor.render()) == WHOLE
    assert not editor.recover("no such model", None)
    assert editor.recover("prompt is too long", None)
    assert toy_turns(editor.render()) == [["mine"], ("call_2", "mine too")]
    assert not editor.recover("prompt is too long", None)


def test_names_that_the_upstream_does_not_take_are_shortened_and_back() -> None:
    """The client never sees the other name, neither in events nor in bytes."""
    name = "a" * 80
    ask = {**TOY_ASK, "kit": [{"tool": name, "about": "d", "takes": {"type": "object"}}]}
    port, editor = crossing(TOY, CHAT, ask)
    (written,) = [tool["function"]["name"] for tool in json.loads(editor.render())["tools"]]
    assert len(written) <= 64
    asked: list[str] = []

    def is_hidden(name: str) -> bool:
        asked.append(name)
        return False

    reader = port.reader({name}, is_hidden, 8192)
    call = {"index": 0, "id": "call_1", "function": {"name": written, "arguments": "{}"}}
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
    frames = [*reader.feed(event(chunk)), *reader.close()]
    events = [one for frame in frames for one in frame.events]
    assert [one.name for one in events if isinstance(one, ToolCallStarted)] == [name]
    assert [one.call.name for one in events if isinstance(one, ToolCallFinished)] == [name]
    assert set(asked) <= {name}


def test_a_stream_of_the_upstream_has_the_clients_frames() -> None:
    """What the run reads in the events, the client reads in the bytes."""
    port, _ = crossing(CHAT, TOY, CHAT_ASK)
    reader = port.reader({"mine"}, lambda name: False, 8192)
    frames = reader.feed(
        event({"text": "It is noon."}) + event({"why": "done", "spent": [3, 4]}) + b"data: bye\n\n"
    )
    frames += reader.close()
    events = [one for frame in frames for one in frame.events]
    assert [one.text for one in events if isinstance(one, TextDelta)] == ["It is noon."]
    raw = b"".join(frame.raw for frame in frames)
    assert b'"content":"It is noon."' in raw
    assert b'"finish_reason":"stop"' in raw
    assert raw.endswith(b"data: [DONE]\n\n")
    assert frames[-1].is_end_mark or frames[-2].is_end_mark
