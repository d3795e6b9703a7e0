"""Builds the assistant message of one turn, as the upstream sent it.

Every block goes back with every field that came, known or not: thoughts with their signatures, tools that the
provider ran itself, citations.  A block with only an empty text is left out, because no upstream takes it
back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from proxy.base.errors import WireError
from proxy.base.events import ToolCall
from proxy.json.splice import elements, join_array, join_object, members
from proxy.wires.anthropic.blocks import Block, tool_use
from proxy.wires.turn.assembler import is_object

__all__ = ["MessageBuilder", "assistant_message", "native_block", "reply_blocks"]

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
        found = []
        for block in self._blocks:
            if block.call is not None:
                found.append(_as_called(block.raw_fields(), calls[block.call]))
            elif block.fields.get("type") == "tool_use" or (
                block.fields.get("type") == "text" and not block.text
            ):
                continue  # Nobody can answer a call without a name.
            else:
                found.append(join_object(block.raw_fields()))
        return assistant_message(found)


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
    found: list[bytes] = []
    left = iter(calls)
    for raw in elements(content):
        block = orjson.loads(raw)
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            if (call := next(left, None) if block.get("name") else None) is None:
                continue
            same = (block.get("id"), block["name"]) == (call.call_id, call.name)
            same = same and _means(call.arguments, block.get("input"))
            found.append(raw if same else _as_called(members(raw), call))
        elif kind != "text" or block.get("text"):
            found.append(raw)
    return found


def _means(arguments: str, given: Any) -> bool:
    """Return whether two forms of a call's arguments mean the same."""
    return is_object(arguments) and bool(orjson.loads(arguments) == given)


def native_block(fields: Mapping[str, bytes], arguments: str) -> str:
    """Return a call as it came, but with masked arguments; arguments that are no JSON object stay a text."""
    raw = arguments.encode() if is_object(arguments) else orjson.dumps(arguments)
    return join_object({**fields, "input": raw}).decode()
