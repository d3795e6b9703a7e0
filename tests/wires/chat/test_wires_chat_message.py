"""The assistant message of a turn, with its provider's own fields, which the next request needs."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.errors import WireError
from proxy.base.events import ToolCall
from proxy.wires.chat import message as message_module
from proxy.wires.chat.message import MessageBuilder, call_object, part_text, reply_message


def built(*deltas: dict[str, Any]) -> dict[str, Any]:
    """Return the message that these deltas make."""
    builder = MessageBuilder()
    for delta in deltas:
        builder.add(delta)
    found = json.loads(builder.build([], []))
    assert isinstance(found, dict)
    return found


def test_text_is_joined() -> None:
    """Pieces of text are joined; role and calls do not come from the deltas."""
    assert built(
        {"role": "tool", "content": ""},
        {"content": "Hel", "tool_calls": [{"id": "x"}]},
        {"content": "lo", "function_call": {"name": "y"}},
        {"content": None},
    ) == {"role": "assistant", "content": "Hello"}


def test_nothing_is_null() -> None:
    """Without any text the content is null; after empty text it is an empty text."""
    assert built({}) == {"role": "assistant", "content": None}
    assert built({"content": ""}) == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "refusal", "never_heard_of"])
def test_text_fields_are_joined(key: str) -> None:
    """Text under any key is joined, known or not; null values add nothing."""
    assert built({key: None}, {key: "a"}, {key: ""}, {key: "b"}, {key: None})[key] == "ab"


@pytest.mark.parametrize("key", ["type", "id", "index", "format", "name", "object", "signature"])
def test_labels_are_not_joined(key: str) -> None:
    """A field that names something is replaced and not joined, also inside an object."""
    assert built({key: "a"}, {key: "a"}, {key: "b"})[key] == "b"
    assert built({"x": {key: "a"}}, {"x": {key: "a"}}) == {
        "role": "assistant",
        "content": None,
        "x": {key: "a"},
    }


def test_null_after_something_changes_nothing() -> None:
    """A later null does not change a field, at any depth."""
    assert built({"x": {"a": 1, "b": "t"}}, {"x": None}, {"x": {"a": None, "b": None}})["x"] == {
        "a": 1,
        "b": "t",
    }


def test_what_came_null_inside_stays() -> None:
    """A null inside an object is kept."""
    assert built({"x": {"a": None, "l": [None, {"b": None}]}})["x"] == {"a": None, "l": [None, {"b": None}]}


def test_objects_merge() -> None:
    """Objects of several deltas are merged: text is joined, numbers are replaced."""
    assert built(
        {"audio": {"id": "a1", "data": "AA", "expires_at": None}},
        {"audio": {"data": "BB", "transcript": "hi"}},
        {"audio": {"expires_at": 5}},
        {"audio": {"expires_at": 7}},
    )["audio"] == {"id": "a1", "data": "AABB", "transcript": "hi", "expires_at": 7}


def test_objects_are_not_shared() -> None:
    """Later deltas do not change the objects of earlier ones."""
    first = {"x": {"l": [{"index": 0, "t": "a"}], "d": {"k": "v"}}}
    built(first, {"x": {"l": [{"index": 0, "t": "b"}], "d": {"k": "w"}}})
    assert first == {"x": {"l": [{"index": 0, "t": "a"}], "d": {"k": "v"}}}


def test_lists_grow() -> None:
    """Elements without an index are appended."""
    assert built({"annotations": [{"type": "u"}]}, {"annotations": [{"type": "u"}, 5]})["annotations"] == [
        {"type": "u"},
        {"type": "u"},
        5,
    ]


def test_elements_of_one_index_merge() -> None:
    """An element is merged with the newest one of the same index and type, else appended."""
    assert built(
        {"r": [{"index": 0, "type": "t", "text": "a"}, {"index": 1, "type": "t", "text": "x"}]},
        {"r": [5, {"index": 0, "type": "t", "text": "b"}]},
        {"r": [{"index": 1, "type": "t", "text": "y"}, {"index": "1", "type": "t", "text": "z"}]},
    )["r"] == [
        {"index": 0, "type": "t", "text": "ab"},
        {"index": 1, "type": "t", "text": "xy"},
        5,
        {"index": "1", "type": "t", "text": "z"},
    ]


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [("a", 5, 5), (5, "a", "a"), ("a", True, True), (["a"], "b", "b"), ({"a": 1}, [2], [2]), (1, 2, 2)],
)
def test_another_kind_replaces(first: Any, second: Any, left: Any) -> None:
    """A field that changes its type has its last value."""
    assert built({"x": first}, {"x": second})["x"] == left


def test_text_goes_on_after_a_change_of_kind() -> None:
    """After a value of another type, later pieces of text are still joined."""
    assert built({"x": "a"}, {"x": {"k": "v"}}, {"x": "b"}, {"x": "c"})["x"] == "bc"
    assert built({"x": "a"}, {"x": "b"}, {"x": ["c"]})["x"] == ["c"]


def test_content_in_parts() -> None:
    """Parts of the content stay parts, and neighbouring texts become one text part."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    assert built(
        {"content": "a"},
        {"content": [{"type": "text", "text": "b"}, thinking]},
        {"content": [{"type": "text", "text": "c", "x": 1}]},
        {"content": "d"},
        {"content": ""},
        {"content": 5},
    )["content"] == [
        {"type": "text", "text": "ab"},
        thinking,
        {"type": "text", "text": "cd", "x": 1},
    ]
    assert built({"content": "a"}, {"content": "b"}, {"content": [thinking]})["content"] == [
        {"type": "text", "text": "ab"},
        thinking,
    ]
    assert built({"content": [{"type": "text", "text": "a"}]})["content"] == [{"type": "text", "text": "a"}]
    assert built({"content": []})["content"] == []
    assert built({"content": [thinking]})["content"] == [thinking]


def test_text_of_parts() -> None:
    """The text of a turn is the joined text of all its parts."""
    builder = MessageBuilder()
    assert builder.text == ""
    builder.add({"content": "a"})
    builder.add({"content": "b"})
    assert builder.text == "ab"
    builder.add({"content": [{"type": "image"}, {"type": "text", "text": "c"}]})
    assert builder.text == "abc"


def test_content_of_no_kind_keeps_the_text() -> None:
    """Content that is neither text nor a list does not remove the text."""
    assert built({"content": "a"}, {"content": 5}, {"content": {"x": 1}}, {"content": "b"})["content"] == "ab"


@given(st.lists(st.text(max_size=3), max_size=6), st.lists(st.text(max_size=3), max_size=6))
def test_pieces_join_to_the_whole(texts: list[str], thoughts: list[str]) -> None:
    """Rule W6: the message has the complete text, however it was cut."""
    deltas = [{"content": text} for text in texts] + [{"reasoning_content": text} for text in thoughts]
    message = built(*deltas)
    assert message["content"] == ("".join(texts) if texts else None)
    assert message.get("reasoning_content", "") == "".join(thoughts)


@pytest.mark.parametrize(
    ("delta", "fit"),
    [
        ({"content": "x" * 36}, 10),
        ({"content": ""}, 15),
        ({"x": {"y": "z" * 28}}, 10),
        ({"reasoning": "x" * 36}, 10),
    ],
)
def test_a_message_has_a_bound(monkeypatch: pytest.MonkeyPatch, delta: dict[str, Any], fit: int) -> None:
    """The message of a turn has a size limit, which also counts empty pieces and unknown fields."""
    monkeypatch.setattr(message_module, "_MAX_TURN_BYTES", 1000)
    builder = MessageBuilder()
    for _ in range(fit):
        builder.add(delta)
    with pytest.raises(WireError, match="larger than 1000 bytes"):
        builder.add(delta)


def test_the_bound_is_met_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message may be exactly as large as the limit."""
    monkeypatch.setattr(message_module, "_MAX_TURN_BYTES", 200)
    builder = MessageBuilder()
    builder.add({"content": "x" * 36})
    builder.add({"x": "x" * 36})
    with pytest.raises(WireError):
        builder.add({"content": ""})


CALL = ToolCall("a", "time", '{"x":1}', 0)


def test_calls_stand_in_the_message() -> None:
    """Calls follow the text in the message, with exactly these keys."""
    builder = MessageBuilder()
    builder.add({"content": "x", "reasoning_content": "r"})
    other = ToolCall("b", "book", "{}", 1)
    assert json.loads(builder.build([CALL, other], [{}, {"extra_content": {"s": 1}}])) == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "r",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "time", "arguments": '{"x":1}'}},
            {
                "id": "b",
                "type": "function",
                "function": {"name": "book", "arguments": "{}"},
                "extra_content": {"s": 1},
            },
        ],
    }


def test_the_older_form_stands_in_the_message() -> None:
    """A legacy call goes back as ``function_call`` with exactly these keys."""
    legacy = ToolCall("a", "time", "{}", 0, legacy=True)
    assert json.loads(MessageBuilder().build([legacy], [{"type": "function_call"}])) == {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "time", "arguments": "{}"},
    }


@pytest.mark.parametrize("inner", ["word", None, 5])
def test_unknown_fields_of_a_function(inner: Any) -> None:
    """Unknown fields inside a function go back inside it; a function that is no object is dropped."""
    kept = call_object(CALL, {"function": {"strict": True}, "x": 1})
    assert kept == {
        "id": "a",
        "type": "function",
        "function": {"name": "time", "arguments": '{"x":1}', "strict": True},
        "x": 1,
    }
    assert call_object(CALL, {"function": inner}) == call_object(CALL, {})


def test_a_custom_call() -> None:
    """A custom call has its input as text, and keeps its unknown fields."""
    assert call_object(CALL, {"type": "custom", "x": 1}) == {
        "id": "a",
        "type": "custom",
        "custom": {"name": "time", "input": '{"x":1}'},
        "x": 1,
    }


def test_a_reply_with_repaired_calls() -> None:
    """Rule W8: only the calls of a reply change, and a missing role or content is added."""
    message = {"tool_calls": [{"id": "old"}], "function_call": {"name": "old"}, "x": None, "content": "t"}
    assert json.loads(reply_message(message, [CALL], [{}])) == {
        "x": None,
        "content": "t",
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "time", "arguments": '{"x":1}'}}],
    }
    assert json.loads(reply_message({"role": "model"}, [], [])) == {"role": "model", "content": None}
    blank: dict[str, Any] = {"role": "assistant", "content": "x", "tool_calls": [], "function_call": None}
    assert json.loads(reply_message(blank, [], [])) == {"role": "assistant", "content": "x"}


def test_part_text() -> None:
    """Only a text part with a string has text."""
    assert part_text({"type": "text", "text": "a"}) == "a"
    for part in ({"type": "text"}, {"type": "text", "text": 5}, {"type": "image", "text": "a"}, "a", None):
        assert part_text(part) == ""
