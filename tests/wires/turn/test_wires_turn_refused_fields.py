"""Fields that an upstream's error message refuses, and the history that is sent without them."""

import json
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from proxy.wires.chat.body import ChatBody
from proxy.wires.chat.request import parse_chat_request
from proxy.wires.turn.edits import Edits
from proxy.wires.turn.refused_fields import MESSAGE_FIELDS, RefusedFields
from proxy.wires.upstream_port import BodyEditor, SuspendedCall

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}, "extra_content": {}}
OURS = {
    "role": "assistant", "content": None, "reasoning": "r", "reasoning_content": "rc", "annotations": [],
    "tool_calls": [CALL],
}  # fmt: skip
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "noon"}


def by_model(message: Mapping[str, Any]) -> bool:
    """Return whether the message is the model's."""
    return bool(message["role"] == "assistant")


def learned(said: str) -> frozenset[str]:
    """Return the fields that the proxy learns; the second message of the history is its own."""
    messages = [orjson.dumps(each) for each in (USER, OURS, RESULT)]
    fields = RefusedFields("messages", MESSAGE_FIELDS, by_model)
    learned = fields.learn(Edits(), said, messages, messages[:1])
    assert learned is None or learned.fields_refused == learned.fields_left_out
    return learned.fields_refused if learned is not None else frozenset()


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("('messages.1' : property 'reasoning' is unsupported)", {"reasoning"}),
        ("property 'reasoning_content' is unsupported, or is it 'role'?", {"reasoning_content"}),
        ("body.messages.1.assistant.reasoning: Extra inputs are not permitted", {"reasoning"}),
        ("messages.1.tool_calls.0.extra_content: Extra inputs are not permitted", {"extra_content"}),
        ("Unknown parameter: 'messages[1].annotations'.", {"annotations"}),
        ("Additional properties are not allowed ('reasoning' was unexpected) - 'messages.1'", {"reasoning"}),
        ("Unknown name \"reasoning\" at 'messages[1]': Cannot find field.", {"reasoning"}),
        ("Extra inputs are not permitted, field: 'messages[1].reasoning', value: 'r'", {"reasoning"}),
        # These are about another message, or about the request.
        ("('messages.0' : property 'reasoning' is unsupported)", set()),
        ("Unknown parameter: 'reasoning_effort'.", set()),
        # These are not refusals, or refuse a field that cannot be left out.
        ("The `reasoning_content` in the thinking mode must be passed back to the API.", set()),
        ("messages.1: property 'tool_calls' is unsupported", set()),
        ("messages.1.content: Extra inputs are not permitted", set()),
        # Here the name is only a word of the text, or far from the refusal.
        ("This reasoning is not supported by messages.1", set()),
        ("Unknown thing. " + "x " * 200 + "'reasoning'", set()),
        ("", set()),
    ],
)  # fmt: skip
def test_what_words_refuse(said: str, names: set[str]) -> None:
    """The proxy learns only a field that is in its own message and that the error message clearly refuses."""
    assert learned(said) == names


def body_with_restored() -> BodyEditor:
    """A request whose second message stands for the proxy's hidden turns; the fourth is the client's."""
    shown = {"role": "assistant", "content": "It is noon."}
    theirs = {"role": "assistant", "content": "x", "reasoning": "theirs"}
    raw = {"model": "m", "messages": [USER, shown, USER, theirs, USER]}
    editor = BodyEditor(ChatBody(orjson.dumps(raw), parse_chat_request(raw)))
    last = {**shown, "reasoning": "r2"}
    before = BodyEditor(ChatBody(orjson.dumps(raw), parse_chat_request(raw)))
    before.append_turn(orjson.dumps(OURS), [orjson.dumps(RESULT)])
    held = before.suspend(orjson.dumps(last), list[SuspendedCall](), lambda name, arguments: arguments)
    editor.restore(1, held, needed=False)
    return editor


def test_restored_turns_are_sent_without_it() -> None:
    """Restored turns are sent without the refused field; the client's own message stays unchanged."""
    editor = body_with_restored()
    before = json.loads(editor.render())["messages"]
    assert [m.get("reasoning") for m in before if m["role"] == "assistant"] == ["r", "r2", "theirs"]
    assert editor.recover("('messages.1' : property 'reasoning' is unsupported)", None)
    after = json.loads(editor.render())["messages"]
    assert [m.get("reasoning") for m in after if m["role"] == "assistant"] == [None, None, "theirs"]
    assert [{k: v for k, v in m.items() if k != "reasoning"} for m in before] == [
        {k: v for k, v in m.items() if k != "reasoning"} for m in after
    ]
    assert editor.edits.fields_refused == {"reasoning"}
    assert not editor.recover("('messages.1' : property 'reasoning' is unsupported)", None)


def test_the_record_keeps_what_is_not_sent() -> None:
    """A held turn keeps a field that is not sent, because another upstream may need it."""
    editor = body_with_restored()
    editor.leave_out_fields({"reasoning"})
    editor.append_turn(orjson.dumps(OURS), [orjson.dumps(RESULT)])
    held = editor.suspend(orjson.dumps(OURS), [], lambda name, arguments: arguments)
    assert held.count(b'\\"reasoning\\"') == 2
    assert editor.render().count(b'"reasoning"') == 1
    assert editor.edits.fields_refused == set()


def test_one_request_is_tried_again_four_times_at_most() -> None:
    """The proxy retries a request without refused fields at most four times."""
    message = {"role": "assistant", "content": "x", **{f"f{n}": n for n in range(9)}}
    fields = RefusedFields("messages", MESSAGE_FIELDS, by_model)
    edits, tried = Edits(), []
    for n in range(9):
        learned = fields.learn(edits, f"Unknown parameter: 'f{n}'", [orjson.dumps(message)], [])
        edits = learned or edits
        tried.append(learned is not None)
    assert tried == [True] * 4 + [False] * 5
