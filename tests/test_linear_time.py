"""Untrusted text takes time and memory in proportion to its size.

Each input here took minutes, or hundreds of megabytes, before. No test measures time: one that hangs shows
the fault.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.mcp.files import _COMMENT
from proxy.relay.run.turn.tool_refusals import _limit
from proxy.tools.access.egress import decode_text
from proxy.tools.mcp.host.stdio import _written_id
from proxy.tools.mcp.masking import is_secret_value
from proxy.ui.runs.aligning import _TOKEN
from proxy.wires.chat.wire import ChatWire
from proxy.wires.hosted.links import LinkFinder
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.past.evidence import _BEFORE, _BEHIND, was_asked
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.turn.digest import canonical_arguments

MANY = 300_000


def history(wire: Any, member: str, messages: list[dict[str, Any]]) -> Any:
    request = wire.parse({"model": "m", member: messages})
    request.check_history(lambda name: False)
    return request.returned_calls()


def called(at: int) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": f"f{at}", "arguments": {}}}],
    }


CASES: dict[str, Callable[[], object]] = {
    "a line of blanks from an MCP server": lambda: _written_id(b" " * MANY),
    "blanks behind a charset": lambda: decode_text(b"", "charset=" + " " * MANY),
    "colons in an address": lambda: is_secret_value("://" + "a:" * MANY),
    "a string without an end": lambda: _COMMENT.sub("", '"' + '\\"' * MANY),
    "comments without an end": lambda: _COMMENT.sub("", "/*" * MANY),
    "a question in a long question": lambda: was_asked("a" * MANY, "a"),
    "blanks around a question": lambda: was_asked("a" + " " * MANY + "a", "a"),
    "long arguments with digits": lambda: canonical_arguments(
        '{"a":"' + '12345678901234567\\"' * MANY + '"}'
    ),
    "answers of Ollama": lambda: history(OllamaWire(), "messages", [called(at) for at in range(20_000)]),
    "answers of Chat": lambda: history(
        ChatWire(), "messages", [{"role": "assistant", "content": "a"} for _ in range(20_000)]
    ),
    "an upstream's words about its maximum": lambda: _limit("max" * MANY),
    "links in an answer": lambda: list(LinkFinder({}).take("[a](https://example.com)" * MANY)),
    "links that do not end": lambda: list(LinkFinder({}).take("[a](b" * MANY)),
    "references": lambda: history(
        ResponsesWire(),
        "input",
        [{"type": "item_reference", "id": "a"}, {"role": "user", "content": "a"}] * 10_000,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_time_is_linear(case: str) -> None:
    """Rule E1: no text holds the event loop for longer than its size allows."""
    CASES[case]()


def test_a_long_string_is_one_piece() -> None:
    """The web UI cuts a body with a long string into pieces without memory for each of its characters."""
    body = b'{"a":"' + b"x" * 4_000_000 + b'\\"","b":"\\'
    assert [found[0][:2] for found in _TOKEN.finditer(body)] == [
        b"{",
        b'"a',
        b":",
        b'"x',
        b",",
        b'"b',
        b":",
        b'"',
        b"\\",
    ]
    assert b"".join(found[0] for found in _TOKEN.finditer(body)) == body


LINES = st.text(st.sampled_from("ab \t\n:\"'>"), max_size=12)


@given(LINES, LINES)
def test_a_question_is_found_as_by_its_parts(kept: str, shown: str) -> None:
    """Rule R4: a question is found in another only as a separate part."""
    whole, part = kept.strip(), shown.strip()
    expected = False
    for at in range(len(whole)):
        if part and whole.startswith(part, at):
            before, behind = whole[:at].rstrip(" \t"), whole[at + len(part) :].lstrip(" \t")
            starts, ends = before[-1:] in _BEFORE, behind[:1] in _BEHIND
            expected = expected or (starts and ends)
    assert was_asked(kept, shown) is expected
