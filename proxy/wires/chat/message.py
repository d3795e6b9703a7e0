"""Builds the assistant message of one turn, as the upstream sent it.

Every field of every delta is merged, known or not: providers refuse a follow-up that lacks their
``reasoning_content``, ``reasoning_details`` or thought signature.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.errors import WireError
from proxy.base.events import FinishReason, FinishWords, ToolCall

FINISH_WORDS: Final = FinishWords(
    {
        FinishReason.STOP: "stop",
        FinishReason.TOOL_CALLS: "tool_calls",
        FinishReason.LENGTH: "length",
        FinishReason.CONTENT_FILTER: "content_filter",
        FinishReason.PAUSE: "stop",
    },
    others=frozenset({"function_call"}),
)
"""Source: OpenAI's API reference, ``finish_reason`` of a chunk."""
# Fields with names rather than text: if they are repeated, they are not joined.
_LABELS = frozenset({"type", "id", "index", "format", "role", "name", "object", "signature"})
_CALLS = frozenset({"role", "tool_calls", "function_call"})
_MAX_TURN_BYTES = 64 * 1024 * 1024
_PIECE = 64


class MessageBuilder:
    """A builder of one message from deltas."""

    __slots__ = ("_fields", "_size", "_texts")

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._fields: dict[str, Any] = {}
        self._size = 0

    @property
    def text(self) -> str:
        """The text of the answer, with its parts joined."""
        content = self._fields.get("content")
        if isinstance(content, list):
            return "".join(map(part_text, content))
        return "".join(self._texts.get("content", ()))

    def add(self, delta: Mapping[str, Any]) -> None:
        """Merge one delta, without its role and its calls, which are assembled elsewhere.

        Raises :class:`WireError` for a turn larger than any model makes.
        """
        for key, value in delta.items():
            if key in _CALLS or value is None:
                continue
            if type(value) is str and key not in self._fields and key not in _LABELS:
                self._size += len(value) + _PIECE
                self._texts.setdefault(key, []).append(value)
                continue
            self._size += len(orjson.dumps(value)) + _PIECE
            if key == "content":
                self._add_content(value)
            else:
                known = "".join(self._texts.pop(key)) if key in self._texts else self._fields.get(key)
                self._fields[key] = _merge(known, value, key)
        if self._size > _MAX_TURN_BYTES:
            raise WireError(f"the message of one turn is larger than {_MAX_TURN_BYTES} bytes")

    def _add_content(self, value: Any) -> None:
        """Merge content as a list of parts; text before or after becomes a part."""
        if isinstance(value, str):
            value = [{"type": "text", "text": value}] if value else []
        if not isinstance(value, list):
            return
        if "content" not in self._fields:
            text = "".join(self._texts.pop("content", ()))
            self._fields["content"] = [{"type": "text", "text": text}] if text else []
        parts: list[Any] = self._fields["content"]
        for part in value:
            if parts and _is_text(part) and _is_text(parts[-1]):
                parts[-1] = {**parts[-1], "text": parts[-1]["text"] + part["text"]}
            elif parts and part_thought(part) and part_thought(parts[-1]):
                said = part_thought(parts[-1]) + part_thought(part)
                parts[-1] = {**parts[-1], **part, "thinking": [{"type": "text", "text": said}]}
            else:
                parts.append(part)

    def build(self, calls: Sequence[ToolCall], extras: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the message as JSON. ``extras`` are the unknown fields of each call."""
        texts = {key: "".join(pieces) for key, pieces in self._texts.items()}
        message: dict[str, Any] = {"role": "assistant", "content": None, **texts, **self._fields}
        return orjson.dumps(message | _call_fields(calls, extras))


def _call_fields(calls: Sequence[ToolCall], extras: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the calls as ``tool_calls``, or as ``function_call`` if they came in that form."""
    if not calls:
        return {}
    if calls[0].legacy:
        return {"function_call": {"name": calls[0].name, "arguments": calls[0].arguments}}
    return {"tool_calls": [call_object(call, extra) for call, extra in zip(calls, extras, strict=True)]}


def call_object(call: ToolCall, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return one entry of ``tool_calls``, with its unknown fields."""
    rest = dict(extra)
    inner = rest.pop("function", None)
    if rest.pop("type", "function") == "custom":
        return {
            "id": call.call_id,
            "type": "custom",
            "custom": {"name": call.name, "input": call.arguments},
            **rest,
        }
    function = {
        "name": call.name,
        "arguments": call.arguments,
        **(inner if isinstance(inner, dict) else {}),
    }
    return {"id": call.call_id, "type": "function", "function": function, **rest}


def native_call(
    call_id: str | None, name: str, arguments: str, extra: Mapping[str, Any], *, legacy: bool
) -> str:
    """Join the fragments of one call as it came: a ``tool_calls`` entry or ``function_call``."""
    if legacy:
        return orjson.dumps({"name": name, "arguments": arguments}).decode()
    sent = call_object(ToolCall(call_id or "", name, arguments, 0), extra)
    if call_id is None:
        del sent["id"]
    return orjson.dumps(sent).decode()


def reply_message(
    message: Mapping[str, Any], calls: Sequence[ToolCall], extras: Sequence[Mapping[str, Any]]
) -> bytes:
    """Return the message of a response that was not streamed, with its calls repaired."""
    repaired = {key: value for key, value in message.items() if key not in ("tool_calls", "function_call")}
    repaired.setdefault("role", "assistant")
    repaired.setdefault("content", None)
    return orjson.dumps(repaired | _call_fields(calls, extras))


def part_text(part: Any) -> str:
    """Return the text of one content part; empty for any other kind."""
    return part["text"] if _is_text(part) else ""


def part_thought(part: Any) -> str:
    """Return the reasoning in one content part, as Magistral writes it; empty for any other kind.

    Source: Mistral's documentation, "Reasoning": ``{"type": "thinking", "thinking": [{"type": "text", …}]}``.
    """
    if not isinstance(part, dict) or part.get("type") != "thinking":
        return ""
    said = part.get("thinking")
    return "".join(map(part_text, said)) if isinstance(said, list) else said if isinstance(said, str) else ""


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _merge(known: Any, new: Any, key: str) -> Any:
    """Merge ``new`` into ``known``: texts are joined, lists grow, objects merge, the rest is replaced."""
    if isinstance(known, str) and isinstance(new, str):
        return new if key in _LABELS else known + new
    if isinstance(known, dict) and isinstance(new, dict):
        for name, value in new.items():
            if value is not None:
                known[name] = _merge(known.get(name), value, name)
        return known
    if isinstance(known, list) and isinstance(new, list):
        for item in new:
            _merge_item(known, item)
        return known
    return _copy(new)


def _merge_item(items: list[Any], item: Any) -> None:
    """Add a list element, or merge it into the element with the same ``index`` and ``type``.

    OpenRouter streams every block under index 0: another ``id`` means another block, and an encrypted block
    comes complete.
    """
    if isinstance(item, dict) and isinstance(item.get("index"), int) and "data" not in item:
        for known in reversed(items):
            if (
                isinstance(known, dict)
                and known.get("index") == item["index"]
                and known.get("type") == item.get("type")
                and (not known.get("id") or item.get("id") in (None, "", known["id"]))
            ):
                _merge(known, item, "")
                return
    items.append(_copy(item))


def _copy(value: Any) -> Any:
    """Return a copy whose containers may be changed."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value
