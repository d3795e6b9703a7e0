"""Breakpoints of the prompt cache stand where they may, four at most, and are left out when refused."""

import json
from typing import Any

from proxy.wires.anthropic import AnthropicWire
from proxy.wires.anthropic.breakpoints import with_breakpoints
from proxy.wires.json.splice import members
from proxy.wires.upstream_port import CachingEditor

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
    """An editor that was told to mark the cache."""
    raw = json.dumps(body).encode()
    editor = WIRE.editor(raw, WIRE.parse(body))
    assert isinstance(editor, CachingEditor)
    editor.mark_cache()
    return editor


def test_the_prefix_is_kept() -> None:
    """Behind the last tool, the system prompt and the user's message."""
    sent = json.loads(editor_of(BODY).render())
    assert sent["tools"] == [BODY["tools"][0], {**BODY["tools"][1], **MARK}]
    assert sent["system"] == [BODY["system"][0], {**BODY["system"][1], **MARK}]
    assert sent["messages"] == [{"role": "user", "content": [{**HI["content"][0], **MARK}]}]


def test_history_is_kept_from_turn_to_turn() -> None:
    """The newest results are marked, and what the turn before ended with; never more than four are."""
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
    """Neither an empty text nor a content that is no list, nor a list without elements."""
    for content in ([{"type": "text", "text": ""}], "hi", []):
        raw = json.dumps({"tools": [], "messages": [{"role": "user", "content": content}]}).encode()
        assert b"cache_control" not in b"".join(with_breakpoints(members(raw)).values())


def test_a_body_that_says_it_itself_is_left_alone() -> None:
    """Whoever places breakpoints has a reason; there may be four of them already."""
    own = {**BODY, "messages": [{"role": "user", "content": [{**HI["content"][0], **MARK}]}]}
    assert json.loads(editor_of(own).render()) == own


def test_a_refused_breakpoint_is_left_out() -> None:
    """Some servers speak the dialect and know no cache."""
    editor = editor_of(BODY)
    assert editor.recover("tools.1.cache_control: Extra inputs are not permitted", None)
    assert json.loads(editor.render()) == BODY
    assert not editor.recover("tools.1.cache_control: Extra inputs are not permitted", None)
