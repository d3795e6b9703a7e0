"""Reads and writes citations of Messages, each of which belongs to a whole block of text.

Source: Anthropic's API reference, "Citations" and "Web search tool".
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.base.events import CitationAdded
from proxy.wires.anthropic.blocks import OUR_SIGNATURE, Block
from proxy.wires.turn.citations import page_address

__all__ = ["Citations", "cited_blocks", "web_citation"]

_MOST_PLACED: Final = 1000
"""The number of citations for which the text of one reply is cut; no search returns as many."""


class Citations:
    """The citations of a turn, which are returned at the end of the block of text that they belong to.

    ``length`` is the length of the text so far, in characters.
    """

    def __init__(self) -> None:
        self.length = 0
        self._start = 0
        self._found: list[Any] = []

    def begin(self, citations: Any) -> list[CitationAdded]:
        """Begin a block of text with these ``citations``; return those of the last block if it was open."""
        told = self.end()
        self._start = self.length
        if isinstance(citations, list):
            self._found += citations
        return told

    def add(self, citation: Any) -> None:
        """Add a citation of the open block."""
        self._found.append(citation)

    def end(self) -> list[CitationAdded]:
        """End the block, and return its citations."""
        if not self._found:
            return []
        found, self._found = self._found, []
        return [self._read(citation) for citation in found]

    def _read(self, citation: Any) -> CitationAdded:
        said: Mapping[str, Any] = citation if isinstance(citation, dict) else {}
        kind = said.get("type")
        # A search result may have a name instead of a URL as its source.
        name = {"web_search_result_location": "url", "search_result_location": "source"}.get(str(kind), "")
        title, cited = said.get("title"), said.get("cited_text")
        return CitationAdded(
            self._start,
            self.length,
            page_address(said.get(name)),
            title if isinstance(title, str) else "",
            cited if isinstance(cited, str) else "",
        )


def web_citation(citation: CitationAdded) -> dict[str, Any]:
    """Return a citation of a page that another provider's search found.

    Only Anthropic's own search makes an ``encrypted_index``.  In its place stands a word of the proxy, by
    which it recognizes the citation when it comes back, and removes it.
    """
    return {
        "type": "web_search_result_location",
        "url": citation.url,
        "title": citation.title or None,
        "cited_text": citation.cited,
        "encrypted_index": OUR_SIGNATURE,
    }


def cited_blocks(content: Sequence[Block], citations: Sequence[CitationAdded]) -> list[Block] | None:
    """Return the blocks of a whole reply, with texts cut so that each citation belongs to its own text.

    A citation without a certain position belongs to the last text.  Returns ``None`` if there is no text.
    """
    texts = [block for block in content if block["type"] == "text"]
    if not any(block["text"] for block in texts):
        return None
    whole = sum(len(block["text"]) for block in texts)
    placed: list[CitationAdded] = []
    rest: list[CitationAdded] = []
    for one in citations:
        fits = one.start < one.end <= whole and len(placed) < _MOST_PLACED
        (placed if fits else rest).append(one)
    blocks: list[Block] = []
    start = 0
    for block in content:
        if block["type"] != "text":
            blocks.append(block)
            continue
        blocks += _cut(block["text"], start, placed)
        start += len(block["text"])
    last = next(block for block in reversed(blocks) if block["type"] == "text")
    if rest:
        last["citations"] = [*last.get("citations", ()), *map(web_citation, rest)]
    return blocks


def _cut(text: str, start: int, citations: Sequence[CitationAdded]) -> list[Block]:
    """Cut a text that begins at ``start`` into blocks: one for each piece with other sources."""
    end = start + len(text)
    inside = [one for one in citations if one.start < end and start < one.end]
    bounds = {start, end, *(max(start, one.start) for one in inside), *(min(end, one.end) for one in inside)}
    blocks: list[Block] = []
    places = sorted(bounds)
    for at, until in itertools.pairwise(places):
        piece = text[at - start : until - start]
        sources = [web_citation(one) for one in inside if one.start <= at and until <= one.end]
        if blocks and not piece.strip():
            # No upstream accepts a block of white space in a later request.
            blocks[-1]["text"] += piece
            continue
        blocks.append({"type": "text", "text": piece, **({"citations": sources} if sources else {})})
    return blocks
