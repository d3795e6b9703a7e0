"""Chat Completions: lists the quirks of a server that its streams show, for people who examine it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_REASONING = ("reasoning_content", "reasoning", "reasoning_details")


def stream_quirks(payloads: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the quirks in the chunks of a whole stream; none if it is as OpenAI sends it."""
    return frozenset({*_of_heads(payloads), *_of_deltas(payloads), *_of_calls(payloads), *_of_end(payloads)})


def _choices(payloads: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for payload in payloads:
        choices = payload.get("choices")
        yield from (one for one in choices if isinstance(one, dict)) if isinstance(choices, list) else ()


def _deltas(payloads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [delta for choice in _choices(payloads) if isinstance(delta := choice.get("delta"), dict)]


def _of_heads(payloads: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if payloads and payloads[0].get("choices") == []:
        yield "empty_first_chunk"
    if any(not payload.get("id") for payload in payloads[1:]):
        yield "no_chunk_id"
    if any(payload.get("usage") and payload.get("choices") for payload in payloads):
        yield "usage_beside_choices"


def _of_deltas(payloads: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    deltas = _deltas(payloads)
    roles = sum(bool(delta.get("role")) for delta in deltas)
    if deltas and not roles:
        yield "role_missing"
    if roles > 1:
        yield "role_repeated"
    yield from (f"says_{name}" for name in _REASONING if any(delta.get(name) for delta in deltas))


def _of_calls(payloads: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Find faults of calls. A fragment opens a call if it has a name and an index that is new."""
    ids: list[Any] = []
    names: list[Any] = []
    for delta in _deltas(payloads):
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if not isinstance(call, dict):
                continue
            inner = call.get("function")
            inner = inner if isinstance(inner, dict) else {}
            if not isinstance(inner.get("arguments", ""), str | None):
                yield "object_arguments"
            index = call.get("index")
            opens = bool(inner.get("name")) and (type(index) is not int or not 0 <= index < len(ids))
            if type(index) is not int or not 0 <= index <= len(ids):
                yield "bad_index"
            if opens:
                yield from _opening(call, ids)
                ids.append(call.get("id"))
                names.append(inner.get("name"))
            elif call.get("id") or inner.get("name") in names:
                yield "said_again"


def _opening(call: Mapping[str, Any], ids: Sequence[Any]) -> Iterator[str]:
    if not call.get("id"):
        yield "blank_call_id"
    elif call["id"] in ids:
        yield "repeated_call_id"
    if not call.get("type"):
        yield "no_call_type"


def _of_end(payloads: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    reasons = [choice["finish_reason"] for choice in _choices(payloads) if choice.get("finish_reason")]
    called = any(delta.get("tool_calls") for delta in _deltas(payloads))
    if not reasons:
        yield "no_finish_reason"
    elif called and reasons[-1] == "stop":
        yield "stop_with_calls"
