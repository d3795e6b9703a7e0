"""Learns which fields of the model's own messages an upstream does not accept back, and leaves them out.

The proxy sends the assistant message of a turn back as it came (thought signatures, reasoning). Some
providers refuse a field there that they emitted themselves. Only their error text names the field:
``'messages.2' : property 'reasoning' is unsupported`` (Groq), ``Extra inputs are not permitted`` behind a
path (Mistral, vLLM), ``Unknown parameter: 'messages[2].reasoning'`` (OpenAI).
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from proxy.wires.turn.edits import Edits

_FIELDS = frozenset({"type", "id", "role", "content", "name", "arguments", "input", "text"})
MESSAGE_FIELDS = _FIELDS | {"tool_calls", "function_call", "function", "custom"}
"""Fields that a Chat message needs to keep its meaning."""
ITEM_FIELDS = _FIELDS | {"call_id", "output", "summary", "refusal"}
"""The same for an item of Responses."""
BLOCK_FIELDS = _FIELDS | {"data", "signature", "thinking", "tool_use_id"}
"""The same for a block of Messages."""
_NESTED = ("tool_calls", "function", "custom", "content")
_MOST = 4
"""Learn no more fields in a run that has learned this many: some providers name one field at a time."""
_LONGEST_NAME = 64
UNSUPPORTED = re.compile(
    r"(un|not[ _](be[ _])?|n't[ _](be[ _])?)(support|permit|allow|recogni[sz]|expect|known\b)"
    r"|\bextra[_ ](inputs?|fields?|forbidden)|additional propert|cannot find field|no such field"
    r"|does(n't| not) (take|support|accept|exist)",
    re.IGNORECASE,
)
"""Matches the words with which providers say that they do not have a field."""
_NEAR = 160
"""The largest distance of the field from such words, in characters. Farther text may be a quotation."""


class RefusedFields:
    """How fields are left out of the model's messages.

    ``place`` is the member of the request that holds the messages; ``keep`` are fields that are never left
    out. ``is_models`` returns whether a model wrote a message. Methods take the client's own messages as
    ``theirs``: they stay complete, and are recognized by object identity.
    """

    def __init__(
        self, place: str, keep: frozenset[str], is_models: Callable[[Mapping[str, Any]], bool]
    ) -> None:
        self._is_models = is_models
        self._place = place
        self._keep = keep

    def learn(
        self, edits: Edits, said: str, messages: Sequence[bytes], theirs: Sequence[bytes]
    ) -> Edits | None:
        """Return the edits without the fields that the error text ``said`` refuses; ``None`` if none is new.

        If the text names only positions of the client's own messages, learn nothing: that error is the
        client's.
        """
        sent = set(map(id, theirs))
        ours = {
            at: read
            for at, raw in enumerate(messages)
            if id(raw) not in sent and self._is_models(read := orjson.loads(raw))
        }
        if len(edits.fields_refused) >= _MOST or not ours:
            return None
        positions = re.findall(rf"\b{self._place}\W{{1,4}}(\d{{1,6}})", said)
        named = set(map(int, positions))
        if named and named.isdisjoint(ours):
            return None
        near = [said[max(0, m.start() - _NEAR) : m.end() + _NEAR] for m in UNSUPPORTED.finditer(said)]
        held = {name for message in ours.values() for name in _names(message, self._keep)}
        refused = [
            name for name in held - edits.fields_left_out if any(_is_named(name, text) for text in near)
        ]
        if not refused:
            return None
        return replace(
            edits,
            fields_left_out=edits.fields_left_out.union(refused),
            fields_refused=edits.fields_refused.union(refused),
        )

    def strip(
        self, names: Collection[str], messages: Sequence[bytes], theirs: Sequence[bytes] = ()
    ) -> Sequence[bytes]:
        """Return the messages without these fields; a message that has none keeps its bytes."""
        if not names:
            return messages
        sent = set(map(id, theirs))
        return [raw if id(raw) in sent else self._without(names, raw) for raw in messages]

    def _without(self, names: Collection[str], raw: bytes) -> bytes:
        message = orjson.loads(raw)
        changed = self._is_models(message) and _drop(message, names)
        return orjson.dumps(message) if changed else raw


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield a message, and the objects in it whose form the wire defines."""
    if isinstance(value, list):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, dict):
        yield value
        for name in _NESTED:
            yield from _parts(value.get(name))


def _names(message: Any, keep: frozenset[str]) -> set[str]:
    return {
        name for part in _parts(message) for name in part if name not in keep and len(name) <= _LONGEST_NAME
    }


def _is_named(name: str, words: str) -> bool:
    """Return whether ``words`` name a field as such: in quotes, or as a step of a path."""
    return re.search(rf"[\"'`.\[/]{re.escape(name)}(?![\w-])", words) is not None


def _drop(message: Any, names: Collection[str]) -> bool:
    dropped = False
    for part in _parts(message):
        for name in [name for name in part if name in names]:
            del part[name]
            dropped = True
    return dropped
