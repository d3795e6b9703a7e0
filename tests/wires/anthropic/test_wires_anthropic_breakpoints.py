"""Breakpoints of the prompt cache: at most four, only where allowed, and none after a refusal."""

import json
from typing import Any

from proxy.json.splice import members
from proxy.wires.anthropic.body import with_breakpoints
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.upstream_port import BodyEditor

WIRE = AnthropicWire()
MARK = {"cache_control": {"type": "ephemeral"}}
HI: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    "tools": [{"name": "x", "input_schema": {}}, {"name": "y", "input_schema": {}}],
    "messages": [HI],
}


def editor_of(body: dict[str, Any]) -> Any:
    """Return an editor of a translated request, which marks the cache."""
    raw = json.dumps(body).encode()
    return BodyEditor(WIRE.body(raw, WIRE.parse(body), translated=True))


def test_the_prefix_is_kept() -> None:
    """The editor marks the last tool, the end of the system prompt and the user's message."""
    sent = json.loads(editor_of(BODY).render())
    assert sent["tools"] == [BODY["tools"][0], {**BODY["tools"][1], **MARK}]
    assert sent["system"] == [BODY["system"][0], {**BODY["system"][1], **MARK}]
    assert sent["messages"] == [{"role": "user", "content": [{**HI["content"][0], **MARK}]}]


def test_history_is_kept_from_turn_to_turn() -> None:
    """The newest results and the end of the turn before are marked, with never more than four marks."""
    editor = editor_of(BODY)
    for turn in ("1", "2", "3"):
        call: dict[str, Any] = {"type": "tool_use", "id": turn, "name": "x", "input": {}}
        result = {"type": "tool_result", "tool_use_id": turn, "content": "r"}
        editor.append_turn(
            json.dumps({"role": "assistant", "content": [call]}).encode(), [json.dumps(result).encode()]
        )
        raw = editor.render()
        marked = [
            at
            for at, message in enumerate(json.loads(raw)["messages"])
            if any("cache_control" in block for block in message["content"])
        ]
        newest = 2 * int(turn)
        assert marked == [newest - 2, newest]
        assert raw.count(b'"cache_control"') == 4


def test_nothing_is_marked_that_may_not_be() -> None:
    """An empty text, a content that is no list, and an empty list are not marked."""
    for content in ([{"type": "text", "text": ""}], "hi", []):
        raw = json.dumps({"tools": [], "messages": [{"role": "user", "content": content}]}).encode()
        assert b"cache_control" not in b"".join(with_breakpoints(members(raw)).values())


def test_a_body_that_says_it_itself_is_left_alone() -> None:
    """The editor adds no breakpoints to a body that has its own."""
    own = {**BODY, "messages": [{"role": "user", "content": [{**HI["content"][0], **MARK}]}]}
    assert json.loads(editor_of(own).render()) == own


def test_a_refused_breakpoint_is_left_out() -> None:
    """After a refusal the editor removes its breakpoints, since some servers have no cache."""
    editor = editor_of(BODY)
    assert editor.recover("tools.1.cache_control: Extra inputs are not permitted", None)
    assert json.loads(editor.render()) == BODY
    assert not editor.recover("tools.1.cache_control: Extra inputs are not permitted", None)
