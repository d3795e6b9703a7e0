"""Reads and writes content blocks of Messages, and recognizes the proxy's own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.events import FinishReason, FinishWords, ToolCall
from proxy.json.splice import elements, join_array, join_object, members

__all__ = [
    "FINISH_WORDS",
    "OUR_SIGNATURE",
    "TRANSLATED_SIGNATURE",
    "Block",
    "blocks_of",
    "blocks_text",
    "called_blocks",
    "has_ours",
    "is_ours",
    "tool_use",
    "without_ours",
    "without_thoughts",
    "without_translated",
]

Block = dict[str, Any]

OUR_SIGNATURE: Final = "toolrelay"
"""The signature of a thought by which the proxy shows a server tool's call.

No model signed it, and an upstream refuses what it did not sign.  So the proxy recognizes such a thought by
this word when a client sends it back, and removes it.
"""

TRANSLATED_SIGNATURE: Final = "toolrelay-translated"
"""The signature of a thought that another dialect's upstream had, and that has none there.

Clients send back a thought with a signature only: Pydantic AI makes the user say one without.
"""

_THOUGHTS: Final = ("thinking", "redacted_thinking")
FINISH_WORDS: Final = FinishWords(
    {
        FinishReason.STOP: "end_turn",
        FinishReason.TOOL_CALLS: "tool_use",
        FinishReason.LENGTH: "max_tokens",
        FinishReason.CONTENT_FILTER: "refusal",
        FinishReason.PAUSE: "pause_turn",
    },
    others=frozenset({"stop_sequence", "model_context_window_exceeded"}),
)
"""Source: Anthropic's API reference, ``stop_reason`` of a message."""


def blocks_of(content: Any) -> Sequence[Block]:
    """Return the blocks of a message's content; a text is one block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def blocks_text(blocks: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of all text blocks, joined."""
    texts = [block.get("text") for block in blocks if block.get("type") == "text"]
    return "".join([text for text in texts if isinstance(text, str)])


def called_blocks(content: Any) -> Sequence[Block]:
    """Return the calls of a message that its client, or this proxy, has to answer."""
    return [
        block
        for block in blocks_of(content)
        if block.get("type") == "tool_use" and isinstance(block.get("id"), str)
    ]


def tool_use(fields: Mapping[str, bytes], call: ToolCall) -> bytes:
    """Return a ``tool_use`` block with ``fields``, and with the id, name and input of the call."""
    own = {
        "type": b'"tool_use"',
        "id": orjson.dumps(call.call_id),
        "name": orjson.dumps(call.name),
        "input": call.arguments.encode(),
    }
    return join_object({**fields, **own})


def is_ours(block: Mapping[str, Any]) -> bool:
    """Return whether a block shows a server tool's call, which no upstream knows."""
    return block.get("type") == "thinking" and block.get("signature") == OUR_SIGNATURE


def _is_translated(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "thinking" and block.get("signature") == TRANSLATED_SIGNATURE


def has_ours(block: Mapping[str, Any]) -> bool:
    """Return whether a block is ours or has what no upstream knows: our signature or our citations."""
    return is_ours(block) or _is_translated(block) or _cites_ours(block)


def _cites_ours(block: Mapping[str, Any]) -> bool:
    citations = block.get("citations")
    return isinstance(citations, list) and any(map(_is_our_citation, citations))


def _is_our_citation(citation: Any) -> bool:
    return isinstance(citation, dict) and citation.get("encrypted_index") == OUR_SIGNATURE


def without_ours(message: bytes) -> bytes:
    """Remove the proxy's blocks and citations from a message; returns the same bytes if there are none."""
    if OUR_SIGNATURE.encode() not in message:
        return message
    return _without_our_citations(_without(message, is_ours))


def _without_our_citations(message: bytes) -> bytes:
    parts = members(message)
    content = parts.get("content", b"")
    if content[:1] != b"[":
        return message
    blocks = elements(content)
    kept = [_uncited(raw) for raw in blocks]
    return message if kept == blocks else join_object({**parts, "content": join_array(kept)})


def _uncited(raw: bytes) -> bytes:
    block = orjson.loads(raw)
    if not isinstance(block, dict) or not _cites_ours(block):
        return raw
    fields = members(raw)
    kept = [one for one in elements(fields.pop("citations")) if not _is_our_citation(orjson.loads(one))]
    return join_object({**fields, **({"citations": join_array(kept)} if kept else {})})


def without_thoughts(message: bytes) -> bytes:
    """Remove the model's thoughts from a message; returns the same bytes if there are none."""
    return _without(message, lambda block: block.get("type") in _THOUGHTS)


def without_translated(message: bytes) -> bytes:
    """Remove thoughts of other dialects' upstreams; returns the same bytes if there are none."""
    return _without(message, _is_translated) if TRANSLATED_SIGNATURE.encode() in message else message


def _without(message: bytes, leaves: Callable[[Block], bool]) -> bytes:
    parts = members(message)
    content = parts.get("content", b"")
    if content[:1] != b"[":
        return message
    blocks = elements(content)
    kept = [raw for raw in blocks if not (isinstance(block := orjson.loads(raw), dict) and leaves(block))]
    return message if len(kept) == len(blocks) else join_object({**parts, "content": join_array(kept)})
