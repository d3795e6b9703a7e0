"""The conversation of a run as its page shows it: messages with parts, in one form for all dialects.

A dialect's own codec reads the client's request and the recorded turns. What it cannot read is shown as JSON.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.base.conversation import (
    Audio,
    File,
    Image,
    Inline,
    Message,
    NativePart,
    Part,
    Reasoning,
    Refusal,
    Remote,
    Source,
    Stored,
    Text,
    ToolCallPart,
    ToolResultPart,
)
from proxy.base.errors import RequestError
from proxy.records.rows import MessageRecord, ToolInvocationRecord, recorded_call_id
from proxy.store.base import RunDetail
from proxy.wires.crossing.codec import ConversationCodec, read_exactly

_NOT_KEPT: Final = (
    "The client’s request was not kept. To keep the requests of later runs, set store.content to “all”."
)
_NOTHING_KEPT: Final = (
    "No message of this run was kept. store.content decides what is kept of conversations, and "
    "store.keep_days how long."
)
_UNREADABLE: Final = "The request does not have the form of its dialect, so it is shown as it came."
_PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
_REQUEST: Final = "request"
_NOT_READ: Final = (RequestError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What a codec raises for a recorded value that does not have the form of its dialect."""
FAILURE: Final = "error"
"""The role of the recorded message that says why a run failed."""

Shown = dict[str, Any]


class Reading(Struct):
    """What one run's messages are read with. ``missing`` collects what the page says about gaps."""

    codec: ConversationCodec | None
    missing: list[str] = []


def conversation_of(detail: RunDetail, codec: ConversationCodec | None) -> dict[str, Any]:
    """Return the conversation of a run.

    ``messages`` are what the client sent and what the model and the tools added, in order, each with
    ``role``, ``turn`` (0 for what the client sent) and ``parts``. ``system`` is what came before them,
    ``failure`` the text with which the run failed. ``notes`` say what is missing.
    """
    reading = Reading(codec)
    request = next((row.content_json for row in detail.messages if row.role == _REQUEST), None)
    asked, system = _asked(reading, request)
    added = list(_added(reading, detail))
    if not detail.messages:
        reading.missing.append(_NOTHING_KEPT)
    elif request is None and not any(row.role == "program" for row in detail.messages):
        reading.missing.append(_NOT_KEPT)
    return {
        "object": "ui.conversation",
        "run_id": detail.run.id,
        "system": system,
        "messages": [*asked, *added],
        "failure": next((row.content for row in detail.messages if row.role == FAILURE), None),
        "notes": reading.missing,
    }


def request_messages(request: str, codec: ConversationCodec | None) -> list[Shown]:
    """Return the messages of a client's request, without the system messages before them."""
    return _asked(Reading(codec), request)[0]


def _asked(reading: Reading, request: str | None) -> tuple[list[Shown], list[Shown]]:
    """Return the messages of the client's request, and its system messages."""
    if request is None:
        return [], []
    if reading.codec is not None:
        try:
            conversation = read_exactly(reading.codec, request.encode("utf-8", "surrogatepass"))
            system = [_message(one, 0) for one in conversation.system]
            return _with_results([_message(one, 0) for one in conversation.messages]), system
        except _NOT_READ:
            reading.missing.append(_UNREADABLE)
    part = {"kind": "native", "type": "request", "value": _parsed(request)}
    return [{"role": "user", "turn": 0, "parts": [part]}], []


def _added(reading: Reading, detail: RunDetail) -> Iterator[Shown]:
    """Yield the turns of the model with their calls and results; calls without a message come from their
    rows."""
    rows = [row for row in detail.messages if row.turn and row.role not in (_REQUEST, FAILURE)]
    kept = {turn: list(group) for turn, group in groupby(rows, key=lambda row: row.turn)}
    ran = {turn: [row for row in detail.invocations if row.turn == turn] for turn in _turns(detail)}
    for row in detail.messages:
        if row.role == "program":
            part = {"kind": "code", "text": row.content or "", "language": "python"}
            yield {"role": "assistant", "turn": 0, "parts": [part]}
    for turn in sorted(kept.keys() | ran.keys()):
        parts = _turn_parts(reading, kept.get(turn, ()), ran.get(turn, ()))
        if parts:
            yield {"role": "assistant", "turn": turn, "parts": parts}


def _turns(detail: RunDetail) -> set[int]:
    return {turn.number for turn in detail.turns} | {row.turn for row in detail.invocations}


def _turn_parts(
    reading: Reading, rows: Iterable[MessageRecord], ran: Sequence[ToolInvocationRecord]
) -> list[Shown]:
    """Return the parts of one turn: the calls have their results, and the ids of their executions."""
    messages = [message for row in rows for message in _recorded(reading, row)]
    joined = _with_results(
        [{"role": "assistant", "turn": 0, "parts": [part for m in messages for part in m["parts"]]}]
    )
    parts: list[Shown] = joined[0]["parts"] if joined else []
    left = {recorded_call_id(row.call_id): row for row in ran}
    for part in parts:
        if part["kind"] == "call":
            row = left.pop(recorded_call_id(part["call_id"]), None)
            part["invocation"] = None if row is None else row.id
    parts += [_call_of_row(row) for row in left.values()]
    return parts


def _call_of_row(row: ToolInvocationRecord) -> Shown:
    return {
        "kind": "call", "call_id": row.call_id, "name": row.tool,
        "arguments": None, "result": None, "invocation": row.id,
    }  # fmt: skip


def _recorded(reading: Reading, row: MessageRecord) -> Iterator[Shown]:
    """Yield what a row of the record holds, as messages."""
    if row.role in ("tool", "function"):
        result = {
            "kind": "result",
            "call_id": row.tool_call_id or "",
            "parts": _text(row.content),
            "is_error": False,
        }
        yield {"role": "tool", "parts": [result]}
        return
    if row.role == "output":
        yield {"role": row.role, "parts": [{"kind": "code", "text": row.content or "", "language": "output"}]}
        return
    read = _read_again(reading, row) if row.content_json else None
    parts = [*_text(row.content)] if read is None else read
    if not any(part["kind"] == "call" for part in parts):
        calls = _parsed(row.tool_calls) if row.tool_calls else []
        legacy = _parsed(row.function_call) if row.function_call else None
        if not isinstance(calls, list):
            calls = [calls]
        parts += [_call_of_chat(call) for call in [*calls, legacy and {"function": legacy}] if call]
    yield {"role": row.role, "parts": parts}


def _read_again(reading: Reading, row: MessageRecord) -> list[Shown] | None:
    """Return the parts of a row's content in its dialect; ``None`` if there is text beside unread content.

    A list is the content of a message, a mapping with a ``type`` is an item of Responses, and any other
    mapping has further members of a message, as Ollama's ``thinking``.
    """
    value = _parsed(row.content_json or "null")
    if isinstance(value, list):
        body: Shown = {"messages": [{"role": row.role, "content": value}]}
    elif isinstance(value, dict) and "type" in value:
        body = {"input": [value]}
    elif isinstance(value, dict):
        body = {"messages": [{**value, "role": row.role, "content": row.content or ""}]}
    else:
        return None
    if reading.codec is not None:
        with contextlib.suppress(*_NOT_READ):
            read = reading.codec.read({"model": "m", "max_tokens": 1, **body})
            return [part for one in (*read.system, *read.messages) for part in map(_part, one.parts) if part]
    kind = str(value.get("type", "")) if isinstance(value, dict) else ""
    return [*_text(row.content), {"kind": "native", "type": kind, "value": value}]


def _call_of_chat(call: Any) -> Shown:
    """Return a call as a turn of the upstream had it; what is no call is shown as it is."""
    function = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return {"kind": "native", "type": "tool_calls", "value": call}
    return {
        "kind": "call", "call_id": str(call.get("id") or ""), "name": str(function.get("name") or ""),
        "arguments": function.get("arguments", function.get("input")), "result": None, "invocation": None,
    }  # fmt: skip


def _with_results(messages: Sequence[Shown]) -> list[Shown]:
    """Return the messages with each result in the call that it belongs to; empty messages are left out."""
    calls: dict[str, Shown] = {}
    shown = []
    for message in messages:
        parts = []
        for part in message["parts"]:
            call = calls.get(part["call_id"]) if part["kind"] == "result" else None
            if call is not None and call["result"] is None:
                call["result"] = {"parts": part["parts"], "is_error": part["is_error"]}
                continue
            if part["kind"] == "call":
                calls[part["call_id"]] = part
            parts.append(part)
        if parts:
            shown.append({**message, "parts": parts})
    return shown


def _message(message: Message, turn: int) -> Shown:
    parts = [part for part in map(_part, message.parts) if part is not None]
    return {"role": message.role, "turn": turn, "parts": parts}


def _part(part: Part) -> Shown | None:
    match part:
        case Text() | Refusal():
            more = {"sources": sources} if (sources := _sources(part)) else {}
            return {"kind": "refusal" if isinstance(part, Refusal) else "text", "text": part.text, **more}
        case Reasoning():
            text = part.text or "\n\n".join(part.summary)
            return {"kind": "reasoning", "text": text, "hidden": not text}
        case Image():
            return {"kind": "image", **_source(part.source)}
        case File():
            return {"kind": "file", "name": part.name, **_source(part.source)}
        case Audio():
            return {
                "kind": "file",
                "name": "",
                "media_type": f"audio/{part.format}",
                "bytes": _size(part.data),
            }
        case ToolCallPart():
            return {
                "kind": "call", "call_id": part.call_id, "name": part.name, "arguments": part.arguments,
                "result": None, "invocation": None,
            }  # fmt: skip
        case ToolResultPart():
            parts = [one for one in map(_part, part.parts) if one is not None]
            return {"kind": "result", "call_id": part.call_id, "parts": parts, "is_error": part.is_error}
        case NativePart():
            value = orjson.loads(part.native[0].value) if part.native else None
            return {"kind": "native", "type": part.kind, "value": value}


def _sources(part: Text | Refusal) -> list[Shown]:
    """Return the citations of a text, which only its own dialect can express: each with a URL and a title."""
    found: list[Shown] = []
    for native in part.native:
        if native.keys[-1:] in (("annotations",), ("citations",)):
            value = _parsed(native.value.decode("utf-8", "replace"))
            found += [source for one in value if (source := _cited(one))] if isinstance(value, list) else []
    return found


def _cited(value: Any) -> Shown | None:
    inner = value.get("url_citation", value) if isinstance(value, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("url"), str):
        return None
    title = inner.get("title")
    return {"url": inner["url"], "title": title if isinstance(title, str) else ""}


def _source(source: Source) -> Shown:
    match source:
        case Inline():
            known = {
                "media_type": source.media_type,
                "bytes": len(source.data) if source.is_text else _size(source.data),
            }
            return {**known, "data": source.data} if source.media_type in _PICTURES else known
        case Remote():
            return {"url": source.url}
        case Stored():
            return {"file_id": source.file_id, "keeper": source.keeper}


def _size(data: str) -> int:
    return len(data) * 3 // 4 - data[-2:].count("=")


def _text(text: str | None) -> list[Shown]:
    return [{"kind": "text", "text": text}] if text else []


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
