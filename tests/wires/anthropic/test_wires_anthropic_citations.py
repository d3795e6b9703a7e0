"""Citations on Messages: blocks that are split for them, and the proxy's own, which do not go upstream."""

from typing import Any

import orjson

from proxy.base.events import CitationAdded
from proxy.wires.anthropic.blocks import cited_blocks, web_citation, without_ours
from proxy.wires.anthropic.wire import AnthropicWire

THEIRS = {
    "type": "web_search_result_location",
    "url": "https://example.com/b",
    "title": None,
    "cited_text": "b",
    "encrypted_index": "c2VjcmV0",
}
OURS = web_citation(CitationAdded(0, 1, "https://example.com/a"))


def block(text: str, *citations: Any) -> dict[str, Any]:
    """Return a block of text."""
    return {"type": "text", "text": text, **({"citations": list(citations)} if citations else {})}


def body_of(*blocks: dict[str, Any]) -> dict[str, Any]:
    """Return a request that sends these blocks back."""
    said = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": list(blocks)},
        {"role": "user", "content": "go on"},
    ]
    return {"model": "m", "max_tokens": 9, "messages": said}


def test_ours_do_not_go_back() -> None:
    """The proxy removes its own citations, which Anthropic would refuse, and keeps Anthropic's."""
    wire = AnthropicWire()
    body = body_of(block("a", OURS), block("b", OURS, THEIRS), block("c", THEIRS), block("d"))
    request = wire.parse(body)
    assert request.has_proxy_calls
    sent = orjson.loads(wire.editor(orjson.dumps(body), request).render())
    assert sent["messages"][1]["content"] == [block("a"), block("b", THEIRS), block("c", THEIRS), block("d")]


def test_theirs_stay() -> None:
    """A message without the proxy's citations keeps its exact bytes."""
    body = body_of(block("c", THEIRS))
    assert not AnthropicWire().parse(body).has_proxy_calls
    raw = orjson.dumps(body["messages"][1])
    assert without_ours(raw) is raw


def test_overlapping_sources() -> None:
    """A piece of text with two sources has both citations; whitespace gets no block of its own."""
    one = CitationAdded(0, 4, "https://example.com/1")
    two = CitationAdded(2, 6, "https://example.com/2")
    blocks = cited_blocks([block("abcdef "), {"type": "tool_use"}], [one, two])
    assert blocks == [
        block("ab", web_citation(one)),
        block("cd", web_citation(one), web_citation(two)),
        block("ef ", web_citation(two)),
        {"type": "tool_use"},
    ]


def test_a_reply_of_very_many_sources() -> None:
    """A text is split into at most 1001 blocks, and no citation is lost."""
    many = [CitationAdded(at, at + 1, f"https://example.com/{at}") for at in range(1500)]
    blocks = cited_blocks([block("a" * 1500)], many)
    assert blocks is not None
    assert len(blocks) == 1001
    assert sum(len(one.get("citations", ())) for one in blocks) == 1500


def test_citations_of_no_text_have_no_place() -> None:
    """Citations of an empty text move to the next text, or have no block at all."""
    found = [CitationAdded(0, 0, "https://example.com/a")]
    assert cited_blocks([block("")], found) is None
    assert cited_blocks([block(""), block("x")], found) == [block("x", OURS)]
