"""Encodes a turn of another dialect's upstream as a server of the Responses API would send it.

Source: OpenAI's API reference, "Streaming events" and "The response object"; the order of the events
follows its recorded streams. Items do not overlap: a call that begins while another is open waits for its
end, because clients expect one item after the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from proxy.base.chance import epoch_s
from proxy.base.events import (
    CitationAdded,
    FinishReason,
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    TurnEvent,
    Usage,
)
from proxy.wires.responses.items import message_item, mint_item_id, reasoning_item, text_part
from proxy.wires.responses.resource import complete_resource, ended_as, with_all_fields
from proxy.wires.stream.encoding import EncodedCall, EventObject, ItemEncoder, TextEvent
from proxy.wires.stream.sse import encode_event
from proxy.wires.stream.template import split_text
from proxy.wires.turn.assembler import is_object
from proxy.wires.turn.citations import url_citation

_PARTS: dict[type[TurnEvent], str] = {
    TextDelta: "output_text",
    RefusalDelta: "refusal",
    ReasoningDelta: "summary_text",
}
_DELTAS = {"output_text": "output_text", "refusal": "refusal", "summary_text": "reasoning_summary_text"}
"""Kinds of parts, and the names of their delta events."""


class _Call(EncodedCall):
    """A call so far; ``item`` is in its opening state."""

    item: dict[str, Any]

    @property
    def is_custom(self) -> bool:
        return bool(self.item["type"] == "custom_tool_call")

    def whole(self, reason: FinishReason) -> dict[str, Any]:
        """Return the item in its final state, if the turn ended for this reason."""
        name, text = "input" if self.is_custom else "arguments", "".join(self.pieces)
        is_whole = reason.is_complete or (not self.is_custom and is_object(text))
        return {**self.item, name: text, "status": "completed" if is_whole else "incomplete"}


class _Text(Struct):
    """An open text item: reasoning, or a message with its parts so far."""

    kind: str
    item_id: str
    parts: list[dict[str, Any]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    around: tuple[bytes, bytes] | None = None
    """The bytes before a piece, and between it and its number, in a delta event of the open part."""


class ResponsesTurnEncoder(ItemEncoder[_Call]):
    """Encodes one turn. ``asked`` is the client's request, which the response repeats.

    ``response_id`` is the id of the response, which all turns of a run share.
    """

    def __init__(self, model: str, asked: Mapping[str, Any], response_id: str = "") -> None:
        super().__init__(model)
        self._asked = asked
        self._id = response_id or mint_item_id("response")
        self._created = epoch_s()
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._text: _Text | None = None
        self._length = self._before = 0

    def _frames(self, event: TurnEvent, undecided: int) -> list[Frame]:
        encoded, translated = list(self._encode(event)), self._translated(event)
        made = [self._frame(payload, undecided) for payload in encoded] or [Frame(b"", undecided=undecided)]
        # The first bytes of an event carry it, because the owner of its call decides about all of them.
        made[0] = Frame(made[0].raw, made[0].payload, (translated,), undecided=undecided)
        return made

    def _translated(self, event: TurnEvent) -> TurnEvent:
        # What else an upstream says of a call belongs to its own dialect.
        if isinstance(event, ToolCallStarted):
            return ToolCallStarted(event.seq, event.call_id, event.name)
        if isinstance(event, ToolCallDelta):
            return ToolCallDelta(event.seq, event.arguments)
        return super()._translated(event)

    def text_is_open(self, kind: type[TurnEvent]) -> bool:
        current = self._text
        return (
            current is not None
            and self._open_call is None
            and bool(current.parts)
            and current.parts[-1]["type"] == _PARTS[kind]
        )

    def write_text(self, kind: type[TurnEvent], pieces: Sequence[bytes]) -> bytes:
        current = self._text
        if current is None:
            raise RuntimeError("no text is open")
        if current.around is None:
            event = self._delta_event(current, "")
            current.around = split_text(orjson.dumps(event)[:-1], "delta")
        before, after = current.around
        name = self._delta_name(current).encode()
        events = []
        for piece in pieces:
            data = b'%b%b%b,"sequence_number":%d}' % (before, piece, after, self._number)
            events.append(encode_event(data, name))
            self._number += 1
        return b"".join(events)

    def report_text(self, event: TextDelta | ReasoningDelta | RefusalDelta, count: int) -> Frame:
        current = self._text
        if current is None:
            raise RuntimeError("no text is open")
        current.pieces.append(event.text)
        if isinstance(event, TextDelta):
            self._length += len(event.text)
        payload = {**self._delta_event(current, event.text), "sequence_number": self._number - 1}
        return Frame(b"", payload, (event,), count=count)

    @staticmethod
    def _delta_name(current: _Text) -> str:
        part = current.parts[-1]["type"]
        return f"response.{_DELTAS[part]}.delta"

    def _delta_event(self, current: _Text, text: str) -> EventObject:
        """Return the event for one piece of the open part."""
        more: dict[str, Any] = {"logprobs": []} if current.parts[-1]["type"] == "output_text" else {}
        return {"type": self._delta_name(current), **self._place(current), "delta": text, **more}

    def note_forwarded(self, frame: Frame, text: str) -> None:
        payload, current = frame.payload or {}, self._text
        self._length += len(text)
        if text and current is not None:
            current.pieces.append(text)
        if (kind := payload.get("type")) is None:
            if payload.get("object") == "response":
                self._take_head(payload)
            return
        number = payload.get("sequence_number")
        self._number = number + 1 if type(number) is int else self._number + 1
        item, part = payload.get("item"), payload.get("part")
        if isinstance(response := payload.get("response"), dict):
            self._take_head(response)
        elif kind == "response.output_item.added" and isinstance(item, dict):
            is_text = item.get("type") in ("message", "reasoning")
            item_id = str(item.get("id") or "") or mint_item_id(item.get("type"))
            self._text = _Text(str(item["type"]), item_id) if is_text else None
        elif kind == "response.output_item.done" and isinstance(item, dict):
            self._output.append(item)
            self._text = None
        elif kind == "response.content_part.added" and isinstance(part, dict) and current is not None:
            self._before = self._length
            current.parts.append(part)
            current.pieces.clear()
            current.around = None

    def _take_head(self, response: Mapping[str, Any]) -> None:
        """Continue the response whose beginning the client has."""
        self._id = str(response.get("id") or self._id)
        self._model = str(response.get("model") or self._model)
        created = response.get("created_at")
        self._created = int(created) if isinstance(created, int | float) else self._created

    def close(self) -> list[Frame]:
        if self._failed:
            return []
        end = ended_as({}, self._reason)
        status = str(end["status"])
        # What is still open was cut off when the model was stopped.
        events = list(self._closed(status))
        response = self._resource(**end)
        events.append({"type": f"response.{status}", "response": response})
        frames = [*map(self._frame, events)]
        last = frames[-1]
        frames[-1] = Frame(last.raw, last.payload, is_end_mark=True)
        return frames

    def encode_reply(self, frame: Frame) -> Frame:
        self._take(frame.events)
        payload = self.close()[-1].payload or {}
        response: dict[str, Any] = payload["response"]
        return Frame(orjson.dumps(response), response, tuple(map(self._translated, frame.events)))

    def _native_usage(self, usage: Usage) -> Usage:
        """Return the same token counts, with a usage object of this dialect."""
        native = {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.all_tokens,
        }
        return replace(usage, total_tokens=usage.all_tokens, native=native)

    def _opening(self) -> Iterator[EventObject]:
        if not self._number:
            response = self._resource(status="in_progress")
            yield {"type": "response.created", "response": response}
            yield {"type": "response.in_progress", "response": response}

    def _error(self, error: Mapping[str, Any]) -> Iterator[EventObject]:
        yield from self._opening()
        yield from self._broken_off()
        shown = {
            "code": str(error.get("code") or error.get("type") or "upstream_error"),
            "message": str(error.get("message") or "The upstream reported an error."),
        }
        # SDKs raise on the error event, and read the response's state from the other one.
        kind = str(error.get("type") or "upstream_error")
        yield {"type": "error", "error": {"type": kind, **shown, "param": None}}
        yield {"type": "response.failed", "response": self._resource(status="failed", error=shown)}

    def _broken_off(self) -> Iterator[EventObject]:
        """Yield the end of the open items, with their content so far."""
        yield from self._closed_text("incomplete")
        if self._open_call is not None:
            whole = self._calls[self._open_call].whole(self._reason)
            yield self._item_done({**whole, "status": "incomplete"})

    # Items of text.

    def _text_delta(self, event: TextEvent) -> Iterator[EventObject]:
        text = event.text
        kind = "reasoning" if isinstance(event, ReasoningDelta) else "message"
        part = "refusal" if isinstance(event, RefusalDelta) else "output_text"
        current = self._text
        if current is None or current.kind != kind:
            yield from self._closed_text()
            current = self._text = _Text(kind, mint_item_id(kind, self._id))
            opened = (
                reasoning_item(current.item_id, None)
                if kind == "reasoning"
                else message_item(current.item_id, None, status="in_progress")
            )
            yield {"type": "response.output_item.added", "output_index": len(self._output), "item": opened}
        if kind == "reasoning":
            yield from self._reasoning_delta(current, text)
            return
        if not current.parts or current.parts[-1]["type"] != part:
            yield from self._closed_part(current)
            empty = text_part("") if part == "output_text" else {"type": "refusal", "refusal": ""}
            current.parts.append(empty)
            self._before = self._length
            current.around = None
            yield {"type": "response.content_part.added", **self._place(current), "part": empty}
        current.pieces.append(text)
        if part == "output_text":
            self._length += len(text)
        yield self._delta_event(current, text)
        if self._early and part == "output_text":
            yield from self._cited_early()

    def _cite(self, citation: CitationAdded) -> Iterator[EventObject]:
        yield from self._opening()
        current = self._text
        if current is None or not current.parts or current.parts[-1]["type"] != "output_text":
            self._early.append(citation)
            return
        place = url_citation(citation, self._before, self._length - self._before)
        annotation = {"type": "url_citation", **place}
        current.annotations.append(annotation)
        yield {
            "type": "response.output_text.annotation.added",
            **self._place(current),
            "annotation_index": len(current.annotations) - 1,
            "annotation": annotation,
        }

    def _reasoning_delta(self, current: _Text, text: str) -> Iterator[EventObject]:
        if not current.parts:
            part = {"type": "summary_text", "text": ""}
            current.parts.append(part)
            yield {"type": "response.reasoning_summary_part.added", **self._place(current), "part": part}
        current.pieces.append(text)
        yield self._delta_event(current, text)

    def _place(self, current: _Text) -> dict[str, Any]:
        index = "summary_index" if current.kind == "reasoning" else "content_index"
        return {
            "item_id": current.item_id,
            "output_index": len(self._output),
            index: max(0, len(current.parts) - 1),
        }

    def _closed_part(self, current: _Text) -> Iterator[EventObject]:
        """Yield the end of the open part, with its whole text."""
        if not current.parts:
            return
        text, current.pieces = "".join(current.pieces), []
        place = self._place(current)
        part = current.parts[-1]
        if current.kind == "reasoning":
            part = current.parts[-1] = {**part, "text": text}
            yield {"type": "response.reasoning_summary_text.done", **place, "text": text}
            yield {"type": "response.reasoning_summary_part.done", **place, "part": part}
            return
        if part["type"] == "refusal":
            part = current.parts[-1] = {**part, "refusal": text}
            yield {"type": "response.refusal.done", **place, "refusal": text}
        else:
            part = current.parts[-1] = {**text_part(text), "annotations": current.annotations}
            current.annotations = []
            yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": part}

    def _closed_text(self, status: str = "completed") -> Iterator[EventObject]:
        """Yield the end of the open text item; ``status`` is for a message."""
        current, self._text = self._text, None
        if current is None:
            return
        # Close the part before the item changes its place.
        yield from self._closed_part(current)
        if current.kind == "reasoning":
            item = {**reasoning_item(current.item_id, None), "summary": current.parts}
        else:
            item = {**message_item(current.item_id, None, status=status), "content": current.parts}
        yield self._item_done(item)

    def _item_done(self, item: dict[str, Any]) -> EventObject:
        index = len(self._output)
        self._output.append(item)
        return {"type": "response.output_item.done", "output_index": index, "item": item}

    # Calls.

    def _new_call(self, event: ToolCallStarted) -> _Call:
        custom = event.extra.get("type") == "custom"
        kind, text = ("custom_tool_call", "input") if custom else ("function_call", "arguments")
        named = {"type": kind, "call_id": event.call_id, "name": event.name}
        return _Call({"id": mint_item_id(kind, self._id), **named, text: "", "status": "in_progress"})

    def _start_of_call(self, call: _Call) -> EventObject:
        return {"type": "response.output_item.added", "output_index": len(self._output), "item": call.item}

    def _arguments_event(self, call: _Call, end: str, **text: str) -> EventObject:
        kind = "custom_tool_call_input" if call.is_custom else "function_call_arguments"
        place = {"item_id": call.item["id"], "output_index": len(self._output)}
        return {"type": f"response.{kind}.{end}", **place, **text}

    def _arguments(self, call: _Call, text: str) -> Iterator[EventObject]:
        yield self._arguments_event(call, "delta", delta=text)

    def _end_of_call(self, call: _Call) -> Iterator[EventObject]:
        whole = call.whole(self._reason)
        name = "input" if call.is_custom else "arguments"
        yield self._arguments_event(call, "done", **{name: whole[name]})
        yield self._item_done(whole)

    # Bytes.

    def _resource(self, **changes: Any) -> dict[str, Any]:
        tools = self._asked.get("tools")
        return complete_resource(
            changes,
            self._asked,
            public_id=self._id,
            created_at=self._created,
            model=self._model,
            output=list(self._output),
            usage=self._usage,
            tools=with_all_fields(tools if isinstance(tools, list) else ()),
        )

    def _frame(self, event: EventObject, undecided: int = 0) -> Frame:
        payload = {**event, "sequence_number": self._number}
        self._number += 1
        return Frame(
            encode_event(orjson.dumps(payload), event["type"].encode()), payload, undecided=undecided
        )
