"""Content blocks of Messages: reads and writes them, recognizes the proxy's own, and builds a turn's message.

In that message every block goes back with every field that came, known or not: thoughts with their
signatures, tools that the provider ran itself, citations. A block with only an empty text is left out,
because no upstream takes it back.

Source for citations, each of which belongs to a whole block of text: Anthropic's API reference, "Citations"
and "Web search tool".
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from proxy.base.errors import WireError
from proxy.base.events import CitationAdded, FinishReason, FinishWords, ToolCall
from proxy.json.splice import elements, join_array, join_object, members
from proxy.wires.turn.assembler import is_object
from proxy.wires.turn.citations import page_address

Block = dict[str, Any]

OUR_SIGNATURE: Final = "toolrelay"
"""The signature of a thought by which the proxy shows a server tool's call.

No model signed it, and an upstream refuses what it did not sign. So the proxy recognizes such a thought by
this word when a client sends it back, and removes it.
"""

OUR_CALL: Final = f"srvtoolu_{OUR_SIGNATURE}"
"""The beginning of the ids of calls that the proxy shows as the provider's."""

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
    kind = block.get("type")
    if kind == "thinking":
        return block.get("signature") == OUR_SIGNATURE
    call_id = block.get("id") if kind == "server_tool_use" else block.get("tool_use_id")
    return isinstance(call_id, str) and call_id.startswith(OUR_CALL)


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
    kept = [
        citation
        for citation in elements(fields.pop("citations"))
        if not _is_our_citation(orjson.loads(citation))
    ]
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


# ---------------------------------------------------------------- citations


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
        events = self.end()
        self._start = self.length
        if isinstance(citations, list):
            self._found += citations
        return events

    def add(self, citation: Any) -> None:
        """Add a citation of the open block."""
        self._found.append(citation)

    def end(self) -> list[CitationAdded]:
        """End the block, and return its citations."""
        if not self._found:
            return []
        added, self._found = self._found, []
        return [self._read(citation) for citation in added]

    def _read(self, citation: Any) -> CitationAdded:
        fields: Mapping[str, Any] = citation if isinstance(citation, dict) else {}
        kind = fields.get("type")
        # A search result may have a name instead of a URL as its source.
        name = {"web_search_result_location": "url", "search_result_location": "source"}.get(str(kind), "")
        title, cited = fields.get("title"), fields.get("cited_text")
        return CitationAdded(
            self._start,
            self.length,
            page_address(fields.get(name)),
            title if isinstance(title, str) else "",
            cited if isinstance(cited, str) else "",
        )


def web_citation(citation: CitationAdded) -> dict[str, Any]:
    """Return a citation of a page that another provider's search found.

    Only Anthropic's own search makes an ``encrypted_index``. In its place stands a word of the proxy, by
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

    A citation without a certain position belongs to the last text. Returns ``None`` if there is no text.
    """
    texts = [block for block in content if block["type"] == "text"]
    if not any(block["text"] for block in texts):
        return None
    whole = sum(len(block["text"]) for block in texts)
    placed: list[CitationAdded] = []
    rest: list[CitationAdded] = []
    for citation in citations:
        fits = citation.start < citation.end <= whole and len(placed) < _MOST_PLACED
        (placed if fits else rest).append(citation)
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
    inside = [citation for citation in citations if citation.start < end and start < citation.end]
    bounds = {
        start,
        end,
        *(max(start, citation.start) for citation in inside),
        *(min(end, citation.end) for citation in inside),
    }
    blocks: list[Block] = []
    places = sorted(bounds)
    for at, until in itertools.pairwise(places):
        piece = text[at - start : until - start]
        sources = [
            web_citation(citation) for citation in inside if citation.start <= at and until <= citation.end
        ]
        if blocks and not piece.strip():
            # No upstream accepts a block of white space in a later request.
            blocks[-1]["text"] += piece
            continue
        blocks.append({"type": "text", "text": piece, **({"citations": sources} if sources else {})})
    return blocks


# ---------------------------------------------------------------- the message of a turn


_MAX_TURN_BYTES: Final = 64 * 1024 * 1024
_PIECE: Final = 64


class _Built:
    """A block that is being built: its start, and the pieces that came since."""

    __slots__ = ("call", "fields", "json", "texts")

    def __init__(self, fields: Block, call: int | None) -> None:
        self.fields = dict(fields)
        self.call = call
        self.texts: dict[str, list[str]] = {}
        self.json: list[str] = []

    @property
    def text(self) -> str:
        start = self.fields.get("text")
        return (start if isinstance(start, str) else "") + "".join(self.texts.get("text", ()))

    def raw_fields(self) -> dict[str, bytes]:
        """Return the fields of the complete block; a field that came as JSON text keeps its bytes."""
        whole = dict(self.fields)
        for key, pieces in self.texts.items():
            start = whole.get(key)
            whole[key] = (start if isinstance(start, str) else "") + "".join(pieces)
        raw = {key: orjson.dumps(value) for key, value in whole.items()}
        if self.json and is_object(text := "".join(self.json)):
            raw["input"] = text.encode()
        return raw


class MessageBuilder:
    """A builder of one message from blocks and their deltas."""

    def __init__(self) -> None:
        self._blocks: list[_Built] = []
        self._open: dict[int, _Built] = {}
        self._size = 0

    @property
    def text(self) -> str:
        """The text of the answer, with its blocks joined."""
        return "".join([block.text for block in self._blocks if block.fields.get("type") == "text"])

    def kind_at(self, index: int) -> Any:
        """Return the type of the newest block at an index; ``None`` if there is none."""
        block = self._open.get(index)
        return block.fields.get("type") if block is not None else None

    def start(self, index: int, block: Block, call: int | None = None) -> None:
        """Begin a block; ``call`` is its number among the calls, if it is a call that must be answered.

        Raises :class:`WireError` for a turn larger than any model makes, as :meth:`add` does.
        """
        self._count(len(orjson.dumps(block)))
        self._open[index] = built = _Built(block, call)
        self._blocks.append(built)

    def add(self, index: int, delta: Mapping[str, Any]) -> None:
        """Merge one delta; the arguments of calls are assembled elsewhere."""
        block = self._open.get(index)
        if block is None:
            return
        for key, value in delta.items():
            if key == "type" or value is None:
                continue
            if key == "partial_json":
                if block.call is None and isinstance(value, str):
                    self._count(len(value))
                    block.json.append(value)
            elif key == "citation":
                self._count(len(orjson.dumps(value)))
                block.fields["citations"] = [*(block.fields.get("citations") or ()), value]
            elif isinstance(value, str) and key != "signature":
                self._count(len(value))
                block.texts.setdefault(key, []).append(value)
            else:
                self._count(len(orjson.dumps(value)))
                block.fields[key] = value

    def _count(self, size: int) -> None:
        self._size += size + _PIECE
        if self._size > _MAX_TURN_BYTES:
            raise WireError(f"the message of one turn is larger than {_MAX_TURN_BYTES} bytes")

    def fields_of(self, call: int) -> Mapping[str, bytes]:
        """Return the raw fields of the block of a call."""
        return next(block.raw_fields() for block in self._blocks if block.call == call)

    def build(self, calls: Mapping[int, ToolCall]) -> bytes:
        """Return the message as JSON; ``calls`` are its complete calls by their numbers."""
        written = []
        for block in self._blocks:
            if block.call is not None:
                written.append(_as_called(block.raw_fields(), calls[block.call]))
            elif block.fields.get("type") == "tool_use" or (
                block.fields.get("type") == "text" and not block.text
            ):
                continue  # Nobody can answer a call without a name.
            else:
                written.append(join_object(block.raw_fields()))
        return assistant_message(written)


def _as_called(fields: Mapping[str, bytes], call: ToolCall) -> bytes:
    """Return a call in the form that goes back; arguments that are no object become ``{}``."""
    return tool_use(fields, call if is_object(call.arguments) else replace(call, arguments="{}"))


def assistant_message(blocks: Sequence[bytes]) -> bytes:
    """Return an assistant message of raw blocks."""
    return b'{"role":"assistant","content":' + join_array(blocks) + b"}"


def reply_blocks(content: bytes, calls: Sequence[ToolCall]) -> list[bytes]:
    """Return the raw blocks of a message that was not streamed; repaired calls are written anew.

    ``calls`` are those of its calls that have a name, in order.
    """
    kept: list[bytes] = []
    left = iter(calls)
    for raw in elements(content):
        block = orjson.loads(raw)
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            if (call := next(left, None) if block.get("name") else None) is None:
                continue
            same = (block.get("id"), block["name"]) == (call.call_id, call.name)
            same = same and is_object(call.arguments) and orjson.loads(call.arguments) == block.get("input")
            kept.append(raw if same else _as_called(members(raw), call))
        elif kind != "text" or block.get("text"):
            kept.append(raw)
    return kept


def native_block(fields: Mapping[str, bytes], arguments: str) -> str:
    """Return a call as it came, but with masked arguments; arguments that are no JSON object stay a text."""
    raw = arguments.encode() if is_object(arguments) else orjson.dumps(arguments)
    return join_object({**fields, "input": raw}).decode()
