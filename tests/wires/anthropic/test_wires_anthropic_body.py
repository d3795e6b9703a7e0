"""The Messages request that goes upstream: the edits, and that everything else keeps its bytes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages_rig import WIRE
from messages_script import text, thinking, tool, tool_use, user

from proxy.base.events import ResultImage, ToolCall, ToolDefinition
from proxy.wires.upstream_port import BodyEditor, SuspendedCall

NOW = ToolDefinition("core__now", "The time.", {"type": "object", "properties": {}}, strict=True)
MINE = ToolDefinition("mine", "Ours.", {"type": "object", "properties": {"x": {"type": "string"}}})
RAW = b'{"model":"m","max_tokens":1e2,  "messages":[ {"role":"user","content":"hi \\u00e9"} ],"top_p":1.0}'
CALL = ToolCall("toolu_1", "core__now", "{}", 0)
IMAGE = ResultImage("data:image/png;base64,aGk=", "image/png", 2, "Map")
TURN = json.dumps(
    {"role": "assistant", "content": [thinking("Hm."), tool_use("toolu_1", "core__now")]}
).encode()


def editor_of(raw: bytes | dict[str, Any], **fields: Any) -> BodyEditor:
    """Return an editor of a request."""
    whole = raw if isinstance(raw, bytes) else json.dumps({"model": "m", "messages": [], **raw}).encode()
    return WIRE.editor(whole, WIRE.parse(json.loads(whole)))


def rendered(editor: BodyEditor) -> dict[str, Any]:
    """Return the body as an upstream reads it."""
    return dict(json.loads(editor.render()))


def no_mask(name: str, arguments: str) -> str:
    """A mask that hides no argument."""
    return arguments


def test_what_is_not_edited_keeps_its_bytes() -> None:
    """An unedited body keeps its exact bytes, and an offer only adds ``tools``."""
    assert editor_of(RAW).render() == RAW
    editor = editor_of(RAW)
    editor.offer([NOW], [])
    assert editor.render().startswith(RAW[:-1])
    assert rendered(editor)["tools"] == [
        {"name": "core__now", "description": "The time.", "input_schema": NOW.parameters}
    ]
    editor.withdraw()
    assert editor.render() == RAW


def test_tools_stand_behind_the_clients_own() -> None:
    """Server tools follow the client's own, so that the cached prefix and its breakpoint stay."""
    own = [
        tool("a", cache_control={"type": "ephemeral"}),
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    editor = editor_of({"tools": own})
    editor.offer([NOW], [])
    assert rendered(editor)["tools"][:2] == own
    editor.withdraw()
    assert rendered(editor)["tools"] == own


def test_a_replaced_tool_keeps_its_breakpoint() -> None:
    """A server's schema replaces the client's declaration and keeps its cache breakpoint."""
    editor = editor_of({"tools": [tool("mine", cache_control={"type": "ephemeral"}), tool("a")]})
    editor.offer([], [MINE])
    assert rendered(editor)["tools"] == [
        {"name": "mine", "description": "Ours.", "input_schema": MINE.parameters,
         "cache_control": {"type": "ephemeral"}},
        tool("a"),
    ]  # fmt: skip


def test_a_turn_and_its_results_are_two_messages() -> None:
    """All results of a turn are in one message, in order, and a failed one has ``is_error``."""
    editor = editor_of({"messages": [user(text="hi")]})
    failed = editor.result_message(
        ToolCall("toolu_2", "x", "{}", 1), '{"ok":false,"error_code":"timeout","message":"."}'
    )
    editor.append_turn(TURN, [editor.result_message(CALL, "noon"), failed])
    messages = rendered(editor)["messages"]
    assert messages[:2] == [user(text="hi"), json.loads(TURN)]
    assert messages[2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "noon"},
            {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True,
             "content": '{"ok":false,"error_code":"timeout","message":"."}'},
        ],
    }  # fmt: skip


def test_what_one_turn_sent_is_the_beginning_of_the_next() -> None:
    """Each turn's messages begin with those of the turn before, for the provider's cache."""
    editor = editor_of(RAW)
    editor.offer([NOW], [])
    editor.append_turn(TURN, [editor.result_message(CALL, "noon")])
    first = json.loads(editor.render())["messages"]
    editor.append_turn(TURN.replace(b"toolu_1", b"toolu_9"), [editor.result_message(CALL, "one")])
    assert json.loads(editor.render())["messages"][: len(first)] == first


def test_a_paused_turn_has_no_results() -> None:
    """A paused turn is appended without a message of results."""
    editor = editor_of({"messages": [user(text="hi")]})
    editor.append_turn(b'{"role":"assistant","content":[]}', [])
    assert [message["role"] for message in rendered(editor)["messages"]] == ["user", "assistant"]


def test_an_empty_result_has_no_text() -> None:
    """A result without text has no content, because no upstream accepts an empty text."""
    editor = editor_of({})
    for empty in ("", " "):
        assert json.loads(editor.result_message(CALL, empty)) == {
            "type": "tool_result",
            "tool_use_id": "toolu_1",
        }


def test_images_are_blocks() -> None:
    """An image follows its label as a block; after a refusal a note replaces it."""
    editor = editor_of({"messages": [user(text="hi")]})
    public = ResultImage("https://example.com/a.png", "", 0)
    made = json.loads(editor.result_message(CALL, "Here.", [IMAGE, public]))
    label, png, _, url = made["content"][1:]
    assert label == text('[toolrelay: image "Map" (image/png, 2 bytes)]')
    assert png["source"] == {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert url["source"] == {"type": "url", "url": "https://example.com/a.png"}
    editor.append_turn(TURN, [editor.result_message(CALL, "Here.", [IMAGE])])
    assert editor.recover("this model does not support image input", None)
    assert editor.edits.images_refused
    (result,) = rendered(editor)["messages"][-1]["content"]
    assert [part["type"] for part in result["content"]] == ["text", "text"]
    assert "was left out" in result["content"][1]["text"]
    assert not editor.recover("this model does not support image input", None)
    editor.edit(images_left_out=True)
    assert "was left out" in json.loads(editor.result_message(CALL, "Here.", [IMAGE]))["content"]


def test_one_image_that_cannot_be_used_says_nothing_of_others() -> None:
    """A refusal of a single image does not mean that the upstream takes no images."""
    editor = editor_of({})
    editor.append_turn(TURN, [editor.result_message(CALL, "", [IMAGE])])
    assert editor.recover("Could not process image", None)
    assert not editor.edits.images_refused


def test_images_beyond_a_requests_size_are_words() -> None:
    """A note replaces an image that would exceed the size limit of a request."""
    editor = editor_of({})
    large = ResultImage("data:image/png;base64," + "A" * (11 << 20), "image/png", 8 << 20)
    first, second = (json.loads(editor.result_message(CALL, "x", [large]))["content"] for _ in range(2))
    assert isinstance(first, list)
    assert "was left out" in second


@pytest.mark.parametrize(
    ("choice", "own", "called", "left"),
    [
        ({"type": "any"}, [], "core__now", {"type": "auto"}),
        ({"type": "any", "disable_parallel_tool_use": True}, [], "core__now",
         {"type": "auto", "disable_parallel_tool_use": True}),
        ({"type": "any"}, [tool("mine")], "core__now", {"type": "any"}),
        ({"type": "tool", "name": "core__now"}, [], "core__now", {"type": "auto"}),
        ({"type": "tool", "name": "mine"}, [tool("mine")], "core__now", {"type": "tool", "name": "mine"}),
        ({"type": "auto"}, [], "core__now", {"type": "auto"}),
        ({"type": "any"}, [], "", {"type": "any"}),
        (None, [], "core__now", None),
    ],
)  # fmt: skip
def test_a_forced_choice_holds_until_it_is_satisfied(
    choice: Any, own: list[Any], called: str, left: Any
) -> None:
    """Rule W9: a forced choice becomes ``auto`` only after a call that satisfies it."""
    editor = editor_of({"tools": own, **({"tool_choice": choice} if choice else {})})
    editor.offer([NOW], [])
    editor.relax_tool_choice([called] if called else [])
    assert rendered(editor).get("tool_choice") == left


def test_a_last_turn_calls_nothing() -> None:
    """The last turn forbids tools, unless the client forces its own: then it omits only server tools."""
    editor = editor_of({"tool_choice": {"type": "auto"}})
    editor.offer([NOW], [])
    assert not editor.forbid_tools()
    assert rendered(editor)["tool_choice"] == {"type": "none"}
    forced = editor_of({"tools": [tool("mine")], "tool_choice": {"type": "any"}})
    forced.offer([NOW], [])
    assert forced.forbid_tools()
    body = rendered(forced)
    assert (body["tools"], body["tool_choice"]) == ([tool("mine")], {"type": "any"})
    bare = editor_of({})
    assert not bare.forbid_tools()
    assert "tool_choice" not in rendered(bare)


def test_what_is_withheld_is_in_no_request() -> None:
    """A withheld tool disappears from tools and choice, and without tools the choice disappears."""
    editor = editor_of({"tools": [tool("mine")], "tool_choice": {"type": "tool", "name": "core__now"}})
    editor.offer([NOW], [])
    editor.edit(withheld=["core__now"])
    body = rendered(editor)
    assert (body["tools"], body["tool_choice"]) == ([tool("mine")], {"type": "auto"})
    alone = editor_of({"tool_choice": {"type": "any"}})
    alone.offer([NOW], [])
    alone.edit(withheld=["core__now"])
    assert not {"tools", "tool_choice"} & set(rendered(alone))


@pytest.mark.parametrize(
    ("fields", "used", "left"),
    [
        ({"max_tokens": 1000}, 300, 700),
        ({"max_tokens": 1000}, 3000, 16),
        ({"max_tokens": 8}, 300, 8),
        ({"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}, 1500, 1040),
        ({"max_tokens": "x"}, 5, "x"),
        ({}, 5, None),
    ],
)
def test_tokens_are_spent(fields: dict[str, Any], used: int, left: Any) -> None:
    """The client's token limit covers all turns; with thinking it stays above the thinking budget."""
    editor = editor_of(fields)
    editor.edit(used_tokens=used)
    assert rendered(editor).get("max_tokens") == left


def suspended(*, client: str = "toolu_c") -> bytes:
    """A held turn with a hidden call, its result, and a call of the client's."""
    editor = editor_of({"messages": [user(text="hi")]})
    turn = {
        "role": "assistant",
        "content": [thinking("Hm."), tool_use("s", "core__now"), tool_use("c", "mine")],
    }
    held = [SuspendedCall("s", None, editor.result_message(CALL, "noon")), SuspendedCall("c", client, None)]
    return editor.suspend(json.dumps(turn).encode(), held, no_mask)


def test_a_held_turn_is_put_back() -> None:
    """A restored turn has one message of results, with the upstream's ids, before the client's text."""
    mine = {"type": "tool_result", "tool_use_id": "toolu_c", "content": "ok", "is_error": False}
    shown = {"role": "assistant", "content": [thinking("Hm."), tool_use("toolu_c", "mine")]}
    raw = json.dumps({"model": "m", "messages": [user(text="hi"), shown, user(text("And?"), mine)]}).encode()
    editor = editor_of(raw)
    editor.restore(1, suspended())
    messages = rendered(editor)["messages"]
    assert [block.get("id") for block in messages[1]["content"]] == [None, "s", "c"]
    results = messages[2]["content"]
    assert [block.get("tool_use_id") for block in results] == ["toolu_1", "c", None]
    assert (results[1]["is_error"], results[2]) == (False, text("And?"))
    assert editor.restored[0] == 1
    assert len(messages) == 3


def test_an_answer_is_put_back_without_results() -> None:
    """The hidden turns before an answer are restored, and dropped if the prompt is too long."""
    before = editor_of({"messages": [user(text="hi")]})
    before.append_turn(TURN, [before.result_message(CALL, "noon")])
    payload = before.suspend(b'{"role":"assistant","content":[{"type":"text","text":"It is."}]}', (), no_mask)
    answer = {"role": "assistant", "content": "It is."}
    editor = editor_of({"messages": [user(text="hi"), answer, user(text="And?")]})
    editor.restore(1, payload, needed=False)
    roles = [message["role"] for message in rendered(editor)["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert editor.recover("prompt is too long: 9 tokens", None)
    assert rendered(editor)["messages"][1] == answer


def test_thoughts_of_another_upstream_are_left_out_where_it_refuses_them() -> None:
    """Only restored thoughts are dropped after a refusal, not the client's own."""
    theirs = {"role": "assistant", "content": [thinking("Mine.", "x"), text("So.")]}
    editor = editor_of({"messages": [theirs, user(text="hi"), {"role": "assistant", "content": []}]})
    assert not editor.recover("messages.0: Invalid `signature` in `thinking` block", None)
    editor.restore(2, suspended())
    assert editor.recover("messages.2.content.0: Invalid `signature` in `thinking` block", None)
    messages = rendered(editor)["messages"]
    assert messages[0] == theirs
    assert [block["type"] for block in messages[2]["content"]] == ["tool_use", "tool_use"]
    assert not editor.recover("Invalid `signature` in `thinking` block", None)


def test_fields_that_are_refused_are_left_out() -> None:
    """A refused field is dropped only from the model's messages of this run."""
    theirs = {"role": "assistant", "content": [tool_use("a", "mine", caller={"type": "direct"})]}
    editor = editor_of({"messages": [theirs]})
    message = {"role": "assistant", "content": [tool_use("s", "core__now", caller={"type": "direct"})]}
    editor.append_turn(json.dumps(message).encode(), [])
    assert editor.recover(
        "messages.1.content.0.caller: Extra inputs are not permitted", "invalid_request_error"
    )
    messages = rendered(editor)["messages"]
    assert ("caller" in messages[0]["content"][0], "caller" in messages[1]["content"][0]) == (True, False)
    assert editor.edits.fields_refused == {"caller"}
    other = editor_of({"messages": []})
    other.leave_out_fields(editor.edits.fields_refused)
    other.append_turn(json.dumps(message).encode(), [])
    assert "caller" not in rendered(other)["messages"][0]["content"][0]


def test_our_thoughts_go_to_no_upstream() -> None:
    """The proxy removes its own thinking blocks, and the other blocks keep their bytes."""
    raw = (
        b'{"model":"m","messages":[{"role":"user","content":"hi \\u00e9"},{"role":"assistant","content":['
        b'{"type":"thinking","thinking":"core__now: done","signature":"toolrelay"},'
        b'{"type":"text","text":"S\\u00f6"}]}]}'
    )
    out = editor_of(raw).render()
    assert b"toolrelay" not in out
    assert b'"hi \\u00e9"' in out
    assert b'{"type":"text","text":"S\\u00f6"}' in out


def test_the_record_has_rows_in_shared_terms() -> None:
    """The record has a row for each message and result, with masked arguments and named images."""
    editor = editor_of({})
    turn = {
        "role": "assistant",
        "content": [thinking("Hm."), text("So."), tool_use("toolu_1", "core__now", {"k": 1})],
    }
    editor.append_turn(json.dumps(turn).encode(), [editor.result_message(CALL, "noon", [IMAGE])])
    masked = editor.records("run_1", lambda name, arguments: '{"k":"•"}')
    said, result = masked
    assert (said.role, said.content, said.turn, said.seq) == ("assistant", "So.", 1, 0)
    assert json.loads(said.tool_calls or "")[0]["function"] == {"name": "core__now", "arguments": '{"k":"•"}'}
    assert "Hm." in (said.content_json or "")
    assert (result.role, result.tool_call_id, result.turn, result.seq) == ("tool", "toolu_1", 1, 1)
    assert result.content == 'noon\n[image "Map" (image/png, 2 bytes)]'


def test_masked_arguments_stay_an_object() -> None:
    """Masked arguments that are no object become ``{}``, because an upstream would refuse them."""
    editor = editor_of({})
    kept = json.loads(editor.suspend(TURN, (), lambda name, arguments: "•"))
    assert json.loads(kept["messages"][0])["content"][1]["input"] == {}


def test_a_model_is_renamed_in_place() -> None:
    """A new model name replaces the old one, and every other byte stays."""
    editor = editor_of(b'{"model":"m","max_tokens":1.50,"messages":[]}')
    editor.edit(model="claude")
    editor.edit(asks_usage=True)
    assert editor.render() == b'{"model":"claude","max_tokens":1.50,"messages":[]}'


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ANY_JSON = st.recursive(
    st.one_of(st.integers(-(2**40), 2**40), ANY_TEXT, st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(ANY_TEXT, inner, max_size=3)),
    max_leaves=6,
)
NAMES = st.sampled_from(["system", "temperature", "metadata", "thinking", "stop_sequences"])


@given(values=st.dictionaries(NAMES, ANY_JSON))
def test_any_request_keeps_what_is_not_edited(values: dict[str, Any]) -> None:
    """Fields that the editor does not edit keep their values, whatever they hold."""
    editor = editor_of({**values, "max_tokens": 5, "messages": [user(text="hi")]})
    editor.offer([NOW], [])
    editor.append_turn(TURN, [editor.result_message(CALL, "noon")])
    body = rendered(editor)
    assert {key: body[key] for key in values} == values
    assert body["messages"][0] == user(text="hi")
