"""Builds the assistant message of one turn in the form that the upstream takes back.

Text and thoughts are joined from their pieces.  Calls go back complete, with every field that came.  Thoughts
go back too, because the templates of several models are written for them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.errors import WireError
from proxy.base.events import ToolCall
from proxy.json.splice import elements, join_array, join_object, members, value_at
from proxy.wires.turn.assembler import is_object

__all__ = ["MessageBuilder", "RawCall", "native_call", "raw_calls"]

_MAX_TURN_BYTES: Final = 64 * 1024 * 1024
_PIECE: Final = 64
_OWN: Final = frozenset({"role", "content", "thinking", "tool_calls"})

RawCall = Mapping[str, Mapping[str, bytes]]
"""The raw fields of a call (under ``call``) and of its function (under ``function``)."""


def raw_calls(line: bytes, listed: Sequence[Any]) -> list[RawCall]:
    """Return the calls of a line or a reply in their own bytes; written anew if that is not valid JSON."""
    try:
        orjson.loads(line)
        raw = value_at(line, "message", "tool_calls")
        parts = elements(raw) if raw is not None and raw[:1] == b"[" else []
    except (orjson.JSONDecodeError, ValueError):
        parts = []
    if len(parts) != len(listed):
        parts = [orjson.dumps(call) for call in listed]
    return [_fields(part, call) for part, call in zip(parts, listed, strict=True)]


def _fields(raw: bytes, call: Any) -> RawCall:
    if not isinstance(call, dict):
        return {"call": {}, "function": {}}
    fields = members(raw)
    function = members(fields["function"]) if isinstance(call.get("function"), dict) else {}
    return {"call": fields, "function": function}


def _written(fields: RawCall, call: ToolCall) -> bytes:
    """Return a call in the form that goes back, with the id, name and arguments of the assembled call."""
    arguments = call.arguments.encode() if is_object(call.arguments) else b"{}"
    function = {**fields["function"], "name": orjson.dumps(call.name), "arguments": arguments}
    whole = {"id": orjson.dumps(call.call_id), **fields["call"]}
    whole.update(id=orjson.dumps(call.call_id), function=join_object(function))
    return join_object(whole)


def native_call(fields: RawCall, arguments: str) -> str:
    """Return a call as it came, but with masked arguments; arguments that are no JSON object stay a text."""
    raw = arguments.encode() if is_object(arguments) else orjson.dumps(arguments)
    function = join_object({**fields["function"], "arguments": raw})
    return join_object({**fields["call"], "function": function}).decode()


class MessageBuilder:
    """A builder of one message from the messages of lines."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {"content": [], "thinking": []}
        self._more: dict[str, Any] = {}
        self._calls: dict[int, RawCall] = {}
        self._size = 0

    @property
    def text(self) -> str:
        """The text of the answer."""
        return "".join(self._texts["content"])

    def add(self, message: Mapping[str, Any]) -> None:
        """Take the members of a line's message other than calls.

        Raises :class:`WireError` for a turn larger than any model makes, as :meth:`call` does.
        """
        for key, said in message.items():
            if key in self._texts:
                if isinstance(said, str) and said:
                    self._count(len(said))
                    self._texts[key].append(said)
            elif key not in _OWN and said is not None:
                self._count(len(orjson.dumps(said)))
                self._more[key] = said

    def call(self, number: int, fields: RawCall) -> None:
        """Take a call."""
        self._count(sum(len(value) for part in fields.values() for value in part.values()))
        self._calls[number] = fields

    def _count(self, size: int) -> None:
        self._size += size + _PIECE
        if self._size > _MAX_TURN_BYTES:
            raise WireError(f"the message of one turn is larger than {_MAX_TURN_BYTES} bytes")

    def fields_of(self, call: int) -> RawCall:
        """Return the raw fields of a call."""
        return self._calls[call]

    def build(self, calls: Mapping[int, ToolCall]) -> bytes:
        """Return the message as JSON; ``calls`` are its complete calls by their numbers."""
        parts = {"role": b'"assistant"', "content": orjson.dumps(self.text)}
        if self._texts["thinking"]:
            parts["thinking"] = orjson.dumps("".join(self._texts["thinking"]))
        parts |= {key: orjson.dumps(said) for key, said in self._more.items()}
        if calls:
            written = [_written(self._calls[number], call) for number, call in calls.items()]
            parts["tool_calls"] = join_array(written)
        return join_object(parts)
