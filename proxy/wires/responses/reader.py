"""Reads the events of a Responses upstream one by one.

``output_index`` identifies an item: some gateways change item ids with every event, and llama-server sends
neither indices nor sequence numbers. ``output_item.done`` has the final state of an item. Source: OpenAI's
API reference, "Streaming events".
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import orjson

from proxy.base.errors import Unreadable, WireError
from proxy.base.events import (
    FinishReason,
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    UsageReported,
    finished,
    read_finish,
)
from proxy.json.lenient import loads
from proxy.json.objects import objects_in
from proxy.wires.responses.items import item_text
from proxy.wires.stream.reader import StreamReader
from proxy.wires.stream.sse import SSEEvent
from proxy.wires.turn.assembler import Fragment, mint_call_id
from proxy.wires.turn.citations import read_annotations, read_url_citation
from proxy.wires.turn.usage import read_usage
from proxy.wires.upstream_port import Mask

OPENING = frozenset({"response.created", "response.queued", "response.in_progress"})
CLOSING = frozenset(
    {
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
        "response.done",
    }
)
_KEPT = OPENING | CLOSING | {"response.output_item.added", "response.output_item.done"}
_UNSAID = ("sequence_number", "obfuscation")
"""Members of a text event that say nothing about the text."""
_CALL_TYPES = ("function_call", "custom_tool_call")
_MISPLACED = (
    "The upstream sent a call of a server tool where function calls do not belong: as a custom tool call, "
    "in the response that opens the stream, or in an event of another kind."
)
_MAX_ITEMS = 4096
_MAX_TURN_BYTES = 64 * 1024 * 1024
"""The most bytes of deltas and items kept of one response. No model produces that much."""
_PIECE = 64
"""The memory, in bytes, of a kept piece in addition to its text."""


class ItemKeys:
    """Maps each event to its item, as a number that counts the items in order of first sight."""

    def __init__(self) -> None:
        self._by_index: dict[int, int] = {}
        self._by_id: dict[str, int] = {}
        self._unfinished: dict[int, object] = {}
        self._count = 0
        self._latest = 0

    def __len__(self) -> int:
        return self._count

    def opened(self, payload: Mapping[str, Any]) -> int:
        """Return the key of the item that an ``output_item.added`` event opens."""
        if self._count >= _MAX_ITEMS:
            raise WireError(f"more than {_MAX_ITEMS} items in one response")
        key = self._count
        self._count += 1
        self._latest = key
        index = payload.get("output_index")
        if type(index) is int:
            self._by_index[index] = key
        item = payload.get("item")
        if isinstance(item, dict):
            self._unfinished[key] = item.get("type")
            if isinstance(item.get("id"), str):
                self._by_id[item["id"]] = key
        return key

    def of(self, payload: Mapping[str, Any]) -> int:
        """Return the key of the item of any other event; a new one for an item that was never opened."""
        key = self._known(payload)
        item = payload.get("item")
        if key is None:
            key = self.opened(payload) if item is not None or not self._count else self._latest
        if item is not None:
            self._unfinished.pop(key, None)
        return key

    def _known(self, payload: Mapping[str, Any]) -> int | None:
        index = payload.get("output_index")
        if type(index) is int:
            return self._by_index[index] if index in self._by_index else self.opened(payload)
        item = payload.get("item")
        item_id = payload.get("item_id") or (item.get("id") if isinstance(item, dict) else None)
        if isinstance(item_id, str) and item_id in self._by_id:
            return self._by_id[item_id]
        if isinstance(item, dict):
            # Neither index nor known id: take the newest open item of its type.
            kind = item.get("type")
            return next((key for key in reversed(self._unfinished) if self._unfinished[key] == kind), None)
        return None


class ResponsesTurnReader(StreamReader[SSEEvent]):
    """Reads one response of a Responses upstream."""

    def __init__(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> None:
        super().__init__(declared, is_hidden, max_argument_bytes)
        self._keys = ItemKeys()
        self._call_keys: set[int] = set()
        self._call_ids: dict[int, str] = {}
        self._sent_ids: dict[int, Any] = {}
        self._opened: dict[int, dict[str, Any]] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._seqs: dict[int, int] = {}
        self._started = False
        self._ended = False
        self._placed: dict[int, Any] = {}
        self._id = ""
        self._final: Mapping[str, Any] = {}
        self._text: list[str] = []
        self._length = self._before = 0
        self._size = 0

    @property
    def text(self) -> str:
        return "".join(self._text) or "".join(map(item_text, self._output()))

    def _take_reply(self, payload: dict[str, Any], body: bytes) -> tuple[dict[str, Any], list[TurnEvent]]:
        events: list[TurnEvent] = []
        if error := payload.get("error"):
            events.append(TurnFailed(error if isinstance(error, dict) else {"message": str(error)}))
        else:
            output = payload.get("output")
            for position, item in enumerate(output if isinstance(output, list) else ()):
                if isinstance(item, dict):
                    events += self._said_in(item)
                    self._item(position, item, events)
            self._closed(payload, events)
        self._check_placed(payload)
        return payload, events

    def _said_in(self, item: Mapping[str, Any]) -> Iterator[TurnEvent]:
        """Yield the texts of a whole item, as a stream would have reported them."""
        reasoning = item.get("type") == "reasoning"
        for name in ("summary", "content"):
            parts = item.get(name)
            for part in parts if isinstance(parts, list) else ():
                fields = part if isinstance(part, dict) else {}
                text, refusal = fields.get("text"), fields.get("refusal")
                if isinstance(text, str) and text:
                    yield ReasoningDelta(text) if reasoning else TextDelta(text)
                    if not reasoning:
                        yield from read_annotations(fields.get("annotations"), self._length)
                        self._length += len(text)
                elif isinstance(refusal, str) and refusal:
                    yield RefusalDelta(refusal)

    def message(self) -> bytes:
        """Return the turn as the next request needs it: its id, whether it was stored, and its items."""
        return orjson.dumps(
            {"id": self._id, "store": self._final.get("store"), "output": self._repaired_output()}
        )

    def native(self, call: ToolCall, mask: Mask) -> str:
        seq = self._finished[call.index].seq
        key = next(key for key, at in self._seqs.items() if at == seq)
        _, name, arguments = self._calls.upstream_fields(seq)
        item = self._items.get(key) or self._opened[key]
        return orjson.dumps(
            {**item, "call_id": self._sent_ids[key], "arguments": mask(name, arguments)}
        ).decode()

    def _output(self) -> list[dict[str, Any]]:
        """Return the turn's items in order: as streamed, else from the terminal event."""
        if self._items:
            return [self._items[key] for key in sorted(self._items)]
        output = self._final.get("output")
        return [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []

    def _repaired_output(self) -> list[dict[str, Any]]:
        calls = {finished.seq: finished.call for finished in self._finished}
        repaired = []
        for key in sorted(self._items.keys() | self._call_keys):
            item = self._items[key] if key in self._items else self._opened[key]
            if key in self._call_keys and item.get("type") == "function_call":
                call = calls.get(self._seqs[key])
                if call is None:
                    continue  # a call without a name cannot be answered
                call = self._repaired(call)
                item = {**item, "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
                item["status"] = "completed"
            repaired.append(item)
        return repaired

    def _read(self, event: SSEEvent, *, cut: bool = False) -> Frame:
        if self._ended:
            # The turn is over. No client needs anything else, and it could hold a call (rule W5).
            kept = event.is_end_mark or event.is_comment
            return Frame(event.raw if kept else b"", is_end_mark=event.is_end_mark, undecided=self._undecided)
        payload = loads(event.data, halves=self._halves) if event.data else None
        if not isinstance(payload, dict):
            return self._unread(event, cut=cut)
        kind = payload.get("type")
        if not isinstance(kind, str):
            # Some gateways name the event only in its SSE field.
            kind = event.event.decode("ascii", "replace")
            payload = {**payload, "type": kind}
        events: list[TurnEvent] = []
        if kind in _KEPT:
            self._keep(len(event.data))
        self._event(kind, payload, events)
        if b"_call" in event.data or b"\\u00" in event.data:
            self._check_placed(payload)
        ended = kind in CLOSING
        self._ended = ended and isinstance(payload.get("response"), dict)
        return Frame(event.raw, payload, tuple(events), is_end_mark=ended, undecided=self._calls.undecided)

    def _free_names(self, frame: Frame) -> tuple[Sequence[str], Sequence[str]] | None:
        payload = frame.payload or {}
        if "item" in payload:
            # Each event may concern another item.
            return None
        return ("delta",), [name for name in _UNSAID if name in payload]

    def _keep(self, size: int) -> None:
        """Count the bytes that stay in memory until the turn has ended."""
        self._size += size + _PIECE
        if self._size > _MAX_TURN_BYTES:
            raise WireError(f"one response is larger than {_MAX_TURN_BYTES} bytes")

    def _event(self, kind: str, payload: dict[str, Any], events: list[TurnEvent]) -> None:
        if kind.endswith(".delta"):
            self._delta(kind, payload, events)
        elif kind == "response.output_item.added":
            key = self._keys.opened(payload)
            if isinstance(item := payload.get("item"), dict):
                self._item(key, item, events, whole=False)
        elif kind == "response.function_call_arguments.done":
            if isinstance(arguments := payload.get("arguments"), str):
                self._arguments(self._keys.of(payload), arguments)
        elif kind == "response.output_item.done":
            key = self._keys.of(payload)
            if isinstance(item := payload.get("item"), dict):
                self._item(key, item, events)
        elif kind in OPENING or kind in CLOSING:
            self._lifecycle(kind, payload, events)
        elif kind == "error" or payload.get("error"):
            nested = payload.get("error")
            events.append(TurnFailed(nested if isinstance(nested, dict) else payload))
        elif kind == "response.content_part.added":
            self._before = self._length
        elif kind == "response.output_text.annotation.added":
            events.append(read_url_citation(payload.get("annotation"), self._before))

    def _delta(self, kind: str, payload: dict[str, Any], events: list[TurnEvent]) -> None:
        delta = payload.get("delta")
        if not isinstance(delta, str) or not delta:
            return
        self._keep(len(delta))
        if kind == "response.output_text.delta":
            self._text.append(delta)
            self._length += len(delta)
            events.append(TextDelta(delta))
        elif kind == "response.function_call_arguments.delta":
            key = self._keys.of(payload)
            if key in self._call_keys:
                events += self._calls.add(Fragment(index=key, arguments=delta))
        elif kind.startswith("response.reasoning"):
            events.append(ReasoningDelta(delta))
        elif kind == "response.refusal.delta":
            events.append(RefusalDelta(delta))

    def _item(self, key: int, item: dict[str, Any], events: list[TurnEvent], *, whole: bool = True) -> None:
        """Take an item as it opens or, if ``whole``, in its final state."""
        if whole:
            self._items[key] = item
        else:
            self._opened[key] = item
        name = _text(item.get("name"))
        # The provider itself runs an undeclared custom tool, as xAI does.
        custom = (
            item.get("type") == "custom_tool_call"
            and name in self._declared
            and not self._is_hidden(name or "")
        )
        if item.get("type") != "function_call" and not custom:
            if self._is_ours(item):
                self._stop(Unreadable(_MISPLACED))
            return
        self._placed[id(item)] = item
        self._sent_ids.setdefault(key, item.get("call_id"))
        call_id = item["call_id"] = self._call_id(key, _text(item.get("call_id")))
        arguments = item.get("input" if custom else "arguments")
        text = arguments if isinstance(arguments, str) else ""
        if arguments is not None and not isinstance(arguments, str):
            text = orjson.dumps(arguments).decode()
        if key not in self._call_keys:
            self._call_keys.add(key)
            self._seqs[key] = len(self._seqs)
            item_id = _text(item.get("id")) or ""
            events += self._calls.add(Fragment(key, call_id, name, text, item_id=item_id))
        elif whole:
            self._arguments(key, text)
            if name:
                events += self._calls.set_name(key, name)

    def _call_id(self, key: int, call_id: str | None) -> str:
        """Return the id for a call: the upstream's, or a new one if that is blank or taken (rule W8)."""
        if key not in self._call_ids:
            taken = self._call_ids.values()
            self._call_ids[key] = call_id if call_id and call_id not in taken else mint_call_id()
        return self._call_ids[key]

    def _arguments(self, key: int, arguments: str) -> None:
        """Set the final arguments of a call. Blank ones are ignored, so that arguments from deltas stay."""
        if key in self._call_keys and arguments:
            self._calls.set_arguments(key, arguments)

    def _lifecycle(self, kind: str, payload: dict[str, Any], events: list[TurnEvent]) -> None:
        response = payload.get("response")
        if not isinstance(response, dict):
            response = {}
        if not self._started and _text(response.get("id")):
            self._started = True
            self._id = str(response["id"])
            events.append(TurnStarted(self._id, str(response.get("model") or "")))
        output = response.get("output")
        if kind in CLOSING:
            self._closed(response, events, kind)
        elif isinstance(output, list) and any(map(self._is_ours, output)):
            self._stop(Unreadable(_MISPLACED))

    def _check_placed(self, payload: Mapping[str, Any]) -> None:
        """Stop if an event or a reply has a server call where no client must find one (rule W5)."""
        placed, self._placed = self._placed, {}
        if any(id(item) not in placed and self._is_ours(item) for item in objects_in(payload)):
            self._stop(Unreadable(_MISPLACED))

    def _take_final(self, events: list[TurnEvent]) -> None:
        """Take the items of the terminal event that were not streamed to their end."""
        streamed = bool(self._opened or self._items)
        output = self._final.get("output")
        for position, item in enumerate(output if isinstance(output, list) else ()):
            if not isinstance(item, dict):
                continue
            if item.get("type") in _CALL_TYPES:
                self._placed[id(item)] = item
            if not streamed:
                self._item(position, item, events)
                continue
            open_keys = (key for key in self._opened if key not in self._items)
            key = next((key for key in open_keys if _same(self._opened[key], item)), None)
            if key is not None:
                self._item(key, item, events)
        if streamed and isinstance(output, list):
            for item in self._only_final(output):
                self._item(self._keys.opened({}), item, events)

    def _only_final(self, output: Sequence[Any]) -> list[dict[str, Any]]:
        """Return server calls that only the terminal event has, because a client could read them there.

        Some gateways change an item's ids at the end. So only an additional call with the same name counts.
        """
        names = {
            key: _text((self._items.get(key) or self._opened[key]).get("name")) for key in self._call_keys
        }
        left = Counter(names.values())
        sent = [(names[key], self._sent_ids[key]) for key in self._call_keys]
        added = []
        for item in output:
            if not self._is_ours(item):
                continue
            left[item["name"]] -= 1
            if left[item["name"]] < 0 and (item["name"], item.get("call_id")) not in sent:
                added.append(item)
        return added

    def _is_ours(self, item: Any) -> bool:
        """Return whether an item is a call of a server tool."""
        if not isinstance(item, dict) or item.get("type") not in _CALL_TYPES:
            return False
        name = item.get("name")
        return isinstance(name, str) and name in self._declared and self._is_hidden(name)

    def _closed(self, response: dict[str, Any], events: list[TurnEvent], kind: str = "") -> None:
        """Handle the end of the response: its usage, and its finish reason."""
        self._final = response
        self._id = self._id or str(response.get("id") or "")
        if not self._started and self._id:
            self._started = True
            events.append(TurnStarted(self._id, str(response.get("model") or "")))
        self._take_final(events)
        if isinstance(native := response.get("usage"), dict):
            events.append(UsageReported(read_usage(native)))
        status = response.get("status")
        if status in ("failed", "cancelled") or kind in ("response.failed", "response.cancelled"):
            error = response.get("error")
            events.append(TurnFailed(error if isinstance(error, dict) else {"code": status or "failed"}))
        elif status == "incomplete" or kind == "response.incomplete":
            details = response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, dict) else None
            meant = read_finish(str(reason))
            # Whatever the detail is, the status says that the answer is not whole.
            is_filter = meant is FinishReason.CONTENT_FILTER
            events.append(TurnFinished(FinishReason.CONTENT_FILTER if is_filter else FinishReason.LENGTH))
        elif status not in (None, "completed") and kind != "response.completed":
            events.append(finished(str(status)))
        else:
            events.append(TurnFinished(FinishReason.TOOL_CALLS if self._call_keys else FinishReason.STOP))


def _same(item: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two versions describe the same item."""
    if item.get("type") != other.get("type"):
        return False
    return any(item.get(key) and item.get(key) == other.get(key) for key in ("id", "call_id"))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


# ---------------------------------------------------------------- habits of a server


def stream_quirks(payloads: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the quirks in the events of one whole stream; none if it is like OpenAI's."""
    return frozenset(_quirks(payloads))


def _quirks(payloads: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for payload in payloads:
        if type(payload.get("sequence_number")) is not int:
            yield "unnumbered"
        if ("item" in payload or "item_id" in payload) and type(payload.get("output_index")) is not int:
            yield "no_output_index"
        response = payload.get("response")
        if payload.get("type") in OPENING and isinstance(response, dict) and "model" not in response:
            yield "bare_opening"
