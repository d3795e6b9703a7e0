"""Responses: the stream that the client sees.

Like the Chat writer it begins by passing the upstream's bytes on. Only in lifecycle events it restores the
client's values of fields that the proxy changed. From the first server call on it composes: one response
id, one opening, dense output indices, numbers without a gap, one terminal event that repeats exactly what
was emitted, one end mark.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from proxy.base.chance import epoch_s
from proxy.base.events import (
    FinishReason,
    Frame,
    ToolCall,
    ToolCallStarted,
    ToolProgress,
    ToolResult,
    TurnFailed,
    TurnStarted,
    pauses,
)
from proxy.json.splice import replace_values, value_at
from proxy.wires.chosen import usage_of_call
from proxy.wires.client_port import ClientCall, ClientView, StreamWriter, TurnEnd
from proxy.wires.repairing import CUT_OFF, failure_of
from proxy.wires.responses.dialect import error_event
from proxy.wires.responses.item_events import OpenItem, item_events, own_item_events
from proxy.wires.responses.items import (
    event_response_id,
    is_message_event,
    message_item,
    mint_item_id,
    own_item_id,
)
from proxy.wires.responses.own_items.hosted import OwnCalls, begin_events, end_events
from proxy.wires.responses.own_items.images import with_bounded_images
from proxy.wires.responses.own_items.programs import NO_TOKENS
from proxy.wires.responses.own_items.shown import Item, OwnItems, traced_item
from proxy.wires.responses.own_items.signing import ItemSigner
from proxy.wires.responses.reader import CLOSING, OPENING, ItemKeys
from proxy.wires.responses.request import answer_text
from proxy.wires.responses.resource import ClientTools, complete_resource, ended_as
from proxy.wires.stream.fast_path import FastWriter
from proxy.wires.stream.held import HeldFrames, identity
from proxy.wires.stream.phases import CERTAIN, COMPOSING, HIDDEN, NEXT, OPEN, PASSING, TURN_ENDED, UNCERTAIN
from proxy.wires.stream.sse import END_MARK, KEEP_ALIVE, encode_event, is_comment
from proxy.wires.turn.usage import add_usage

_FACTS = frozenset({"model", "created_at"})


class ResponsesStreamWriter(OwnItems, StreamWriter, FastWriter):
    """Writes one client's stream for all turns of its run.

    ``asked`` is the client's request. ``echo`` are the client's raw values of fields that the resource
    repeats and that the proxy changed for the upstream; ``tools`` provides its tools. With
    ``last_text_only`` the messages of a turn wait for its end, because only the last of several turns may
    contribute JSON output. Calls of ``shown`` tools are shown at every trace level. ``first`` are
    items that come before all others.
    """

    asks_by_items = True

    def __init__(
        self,
        view: ClientView,
        *,
        asked: Mapping[str, Any],
        echo: Mapping[str, bytes],
        tools: ClientTools,
        signer: ItemSigner,
        last_text_only: bool = False,
        first: Sequence[Item] = (),
    ) -> None:
        self._model = view.model
        self._is_hidden = view.is_hidden
        self._trace = view.trace
        self._shown = view.shown
        self._asked = asked
        self._echo = echo
        self._tools = tools
        self._signer = signer
        self._tools_said: Mapping[str, Any] = {}
        self._last_text_only = last_text_only
        self._first = first
        self._phase = COMPOSING if first else PASSING
        self._held = HeldFrames()
        self._done_seen = False
        self._public_id = ""
        self._created_at = 0
        self._sequence = 0
        self._opened: set[str] = set()
        self._output: dict[int, dict[str, Any]] = {}
        self._next_index = 0
        self._item_ids: set[str] = set()
        self._own_calls = OwnCalls(view.shown.forms)
        self._turns_hidden = 0
        self._new_turn()
        self._terminal: Mapping[str, Any] = {}
        self._turn_usage: Mapping[str, Any] = {}
        self._usage: dict[str, Any] | None = None
        self._result: dict[str, Any] | None = None
        self._repairs = self._inspects = self._inspects_items = False
        self._failure: Mapping[str, Any] | None = None

    def repair(self, *, always: bool, begun: bool = False, single_turn: bool = False) -> bool:
        self._repairs = True
        self._inspects = self._inspects_items = not always
        if always:
            self._phase = COMPOSING
        if single_turn:
            self._last_text_only = False
        return True

    def _new_turn(self) -> None:
        self._keys = ItemKeys()
        self._open: dict[int, OpenItem] = {}
        self._client_ids: dict[str, str] = {}

    @property
    def composing(self) -> bool:
        return self._phase is COMPOSING

    @property
    def visible(self) -> str:
        return answer_text(self._output[index] for index in sorted(self._output))

    def client_ids(self) -> Mapping[str, str]:
        return self._client_ids

    def result(self) -> dict[str, Any] | None:
        return with_bounded_images(self._result)

    def transform(self) -> Callable[[bytes], bytes] | None:
        return identity if self._phase is PASSING and not self._last_text_only else None

    def write(self, frame: Frame) -> bytes:
        for event in frame.events:
            if isinstance(event, TurnStarted):
                # An encoder gives the response its own id; the event has the upstream's.
                self._public_id = self._public_id or event_response_id(frame.payload) or event.id
            elif isinstance(event, ToolCallStarted) and not self._is_hidden(event.name):
                self._client_ids[event.call_id] = event.call_id
            elif isinstance(event, TurnFailed):
                self._failure = event.error
        if self._phase is COMPOSING:
            return self._held.put(frame) if self._last_text_only else self._compose(frame)
        is_ours = any(type(one) is ToolCallStarted and self._is_hidden(one.name) for one in frame.events)
        if is_ours or pauses(frame.events) or (self._inspects and self._is_defective(frame)):
            self._phase = NEXT[self._phase, HIDDEN]
            if self._last_text_only:
                return self._held.put(frame)
            return b"".join(map(self._compose, [*self._held.take(), frame]))
        if self._last_text_only and (frame.undecided or is_message_event(frame.payload)):
            sign = OPEN
        else:
            sign = UNCERTAIN if frame.undecided else CERTAIN
        if self._phase is PASSING and sign is CERTAIN:
            return self._forward(frame)
        self._held.put(frame)
        self._phase = NEXT[self._phase, sign]
        return b"".join(map(self._forward, self._held.take())) if self._phase is PASSING else b""

    def _is_defective(self, frame: Frame) -> bool:
        """Return whether a frame of a repaired stream is the first that must not leave unchanged."""
        payload = frame.payload or {}
        kind = payload.get("type")
        response_id = event_response_id(payload)
        if response_id and self._public_id and response_id != self._public_id:
            return True  # openai-python keeps the first id, and later requests need the last one.
        if not self._inspects_items or not kind or kind in CLOSING:
            return False
        if kind not in OPENING:
            return self._has_defective_item(payload)
        known = isinstance(response := payload.get("response"), dict) and not _FACTS.isdisjoint(response)
        return type(payload.get("sequence_number")) is not int or not known

    def _has_defective_item(self, payload: Mapping[str, Any]) -> bool:
        """Return whether an event of the first item lacks its place, or has another id of the item.

        openai-python raises for such an event, and Vercel's SDK loses its text. If the item's second event
        is sound, so are all later ones.
        """
        item, index = payload.get("item"), payload.get("output_index")
        opened = next((begun for begun in self._open.values() if begun.index == index), None)
        self._inspects_items = opened is None and "output_index" in payload
        if opened is None or not opened.item_id:
            return "output_index" not in payload and item is not None
        item_id = item.get("id") if isinstance(item, dict) else payload.get("item_id")
        return isinstance(item_id, str) and item_id not in ("", opened.item_id)

    # The upstream's own bytes.

    def _forward(self, frame: Frame) -> bytes:
        """Pass a frame on, and record what a composed stream would need to continue it."""
        payload = frame.payload
        if payload is None:
            self._done_seen = self._done_seen or frame.is_end_mark
            return frame.raw
        number = payload.get("sequence_number")
        self._sequence = number + 1 if type(number) is int else self._sequence + frame.count
        kind = payload.get("type")
        if kind in OPENING or kind in CLOSING:
            self._note_lifecycle(str(kind), payload)
            return self._with_client_values(frame.raw, payload)
        if kind == "response.output_item.added":
            self._begin(self._keys.opened(payload), payload, self._index_of(payload))
            return frame.raw
        key = self._keys.of(payload) if "item" in payload or "item_id" in payload else None
        if key is None:
            return frame.raw
        if kind == "response.output_item.done" and isinstance(payload["item"], dict):
            opened = self._open.pop(key, None)
            index = opened.index if opened else self._index_of(payload)
            self._next_index = max(self._next_index, index + 1)
            self._output[index] = payload["item"]
        elif (opened := self._open.get(key)) is not None:
            opened.take(payload)
        return frame.raw

    def _index_of(self, payload: Mapping[str, Any]) -> int:
        index = payload.get("output_index")
        return index if type(index) is int else self._next_index

    def _begin(self, key: int, payload: Mapping[str, Any], index: int) -> OpenItem:
        """Give an item its place in the client's output."""
        item = payload.get("item")
        item = item if isinstance(item, dict) else {}
        opened = OpenItem(index, self._item_id(item), item)
        self._open[key] = opened
        self._next_index = max(self._next_index, index + 1)
        return opened

    def _item_id(self, item: Mapping[str, Any]) -> str:
        """Return the upstream's id of an item; in a composed stream a new id if that is missing or taken."""
        item_id = item.get("id")
        if not isinstance(item_id, str) or not item_id or item_id in self._item_ids:
            item_id = mint_item_id(item.get("type")) if self.composing else str(item_id or "")
        self._item_ids.add(item_id)
        return item_id

    def _note_lifecycle(self, kind: str, payload: Mapping[str, Any]) -> None:
        response = payload.get("response")
        response = response if isinstance(response, dict) else {}
        if "tools" in response:
            self._tools_said = {"tools": response["tools"]}
        self._public_id = self._public_id or event_response_id(payload)
        created = response.get("created_at")
        if not self._created_at and isinstance(created, int | float):
            self._created_at = int(created)
        if kind in CLOSING:
            self._terminal = payload
            if isinstance(usage := response.get("usage"), dict):
                self._turn_usage = usage
            echoed = {key: orjson.loads(raw) for key, raw in self._echo.items()}
            self._result = {**response, **echoed, "tools": self._tools.listed(response)}
            if not response.get("output"):
                # Some gateways omit at the end what they have streamed.
                self._result["output"] = [self._output[index] for index in sorted(self._output)]
        else:
            self._opened.add(kind)

    def _with_client_values(self, raw: bytes, payload: Mapping[str, Any]) -> bytes:
        """Return a lifecycle event with the client's values in place of the proxy's changes (rule W2)."""
        response = payload.get("response")
        if not isinstance(response, dict):
            return raw
        echo = {key: value for key, value in self._echo.items() if key in response}
        if not echo and "tools" not in response:
            return raw
        start = raw.find(b"{", raw.find(b"data:"))
        end = raw.rfind(b"}") + 1
        data = raw[start:end]
        if b"\n" in data or b"\r" in data:
            # Data on several lines is written anew, on one.
            patched = {**response, **{key: orjson.loads(value) for key, value in echo.items()}}
            if "tools" in response:
                patched["tools"] = self._tools.listed(response)
            return self._encode({**payload, "response": patched})
        if "tools" in response:
            echo["tools"] = self._tools.raw(response, value_at(data, "response", "tools") or b"[]")
        return raw[:start] + replace_values(data, echo, "response") + raw[end:]

    # The composed stream.

    def _compose(self, frame: Frame) -> bytes:
        payload = frame.payload
        if payload is None:
            return frame.raw if frame.raw[:1] == b":" and is_comment(frame.raw) else b""
        kind = payload.get("type")
        if kind in CLOSING:
            self._note_lifecycle(str(kind), payload)
            return self._show_first() + self._compose_closing()
        if kind in OPENING:
            return self._compose_opening(str(kind), payload)
        if not kind or kind == "error" or payload.get("error"):
            return b""
        return self._show_first() + self._compose_next(str(kind), payload)

    def _compose_next(self, kind: str, payload: dict[str, Any]) -> bytes:
        """Compose what comes after the opening and before the end."""
        if "output_index" in payload or "item_id" in payload or "item" in payload:
            return self._compose_item(kind, payload)
        return self._emit(payload)

    def _show_first(self) -> bytes:
        """Show the items that come before all others, once."""
        first, self._first = self._first, ()
        return b"".join(map(self._show, first))

    def _compose_opening(self, kind: str, payload: dict[str, Any]) -> bytes:
        """Open the response, only for the first turn."""
        if kind in self._opened or self._turns_hidden:
            return b""
        self._note_lifecycle(kind, payload)
        response = payload.get("response")
        whole = self._whole(response if isinstance(response, dict) else {}, status="in_progress")
        return self._emit({**payload, "response": whole})

    def _compose_closing(self) -> bytes:
        """Write the items of the terminal event that were not streamed, or not to their end."""
        response = self._terminal.get("response")
        output = response.get("output") if isinstance(response, dict) else None
        items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
        out = []
        if not len(self._keys):
            out = [self._tell(item) for item in items if not self._hides(item)]
        for key, opened in list(self._open.items()):
            known = next((item for item in items if item.get("id") == opened.item_id), None)
            out.append(self._end(key, known or opened.so_far()))
        return b"".join(out)

    def _compose_item(self, kind: str, payload: dict[str, Any]) -> bytes:
        item = payload.get("item")
        if kind == "response.output_item.added":
            key = self._keys.opened(payload)
            if isinstance(item, dict) and self._hides(item):
                return b""
            self._begin(key, payload, self._next_index)
        else:
            key = self._keys.of(payload)
        opened = self._open.get(key)
        if opened is None:
            # Hidden, never opened, or still without a name: it is written when complete, or never.
            whole = kind == "response.output_item.done" and isinstance(item, dict) and not self._hides(item)
            return self._tell(item) if whole and item else b""
        if kind == "response.output_item.done" and isinstance(item, dict):
            return self._end(key, item, payload)
        out = {**payload, "output_index": opened.index}
        if isinstance(item, dict):
            out["item"] = {**item, "id": opened.item_id}
        before = opened.unopened(out) if self._repairs else None
        events = [out] if before is None else [{**before, "output_index": opened.index}, out]
        return b"".join([self._compose_event(opened, event) for event in events])

    def _compose_event(self, opened: OpenItem, event: dict[str, Any]) -> bytes:
        """Write an event of an open item, with all fields that clients need."""
        opened.complete(event)
        opened.take(event)
        return self._emit(event)

    def _end(self, key: int, item: Mapping[str, Any], payload: Mapping[str, Any] | None = None) -> bytes:
        """Close an open item."""
        opened = self._open.pop(key)
        whole = {**item, "id": opened.item_id}
        self._output[opened.index] = whole
        event = {**(payload or {"type": "response.output_item.done"}), "output_index": opened.index}
        return self._emit({**event, "item": whole})

    def _tell(self, item: Mapping[str, Any]) -> bytes:
        """Write a whole item that had no events of its own."""
        whole = {**item, "id": self._item_id(item)}
        index, self._next_index = self._next_index, self._next_index + 1
        self._output[index] = whole
        return b"".join(map(self._emit, item_events(whole, index)))

    def _hides(self, item: Mapping[str, Any]) -> bool:
        """Return whether an item is a call that the client must not see, or not before its name is known."""
        name = item.get("name")
        return item.get("type") == "function_call" and (not name or self._is_hidden(str(name)))

    def _emit(self, payload: Mapping[str, Any]) -> bytes:
        """Write one event of the composed stream, with the next number."""
        number, self._sequence = self._sequence, self._sequence + 1
        return self._encode({**payload, "sequence_number": number})

    @staticmethod
    def _encode(payload: Mapping[str, Any]) -> bytes:
        return encode_event(orjson.dumps(payload), str(payload["type"]).encode())

    def _show(self, item: Item) -> bytes:
        """Write an item of the proxy's own at the next place."""
        index, self._next_index = self._next_index, self._next_index + 1
        self._output[index] = item
        return b"".join([self._emit({**event, "output_index": index}) for event in own_item_events(item)])

    def _whole(self, response: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
        self._created_at = self._created_at or epoch_s()
        return complete_resource(
            {**response, **changes},
            self._asked,
            public_id=self._public_id or mint_item_id("response"),
            created_at=self._created_at,
            model=str(response.get("model") or self._model),
            output=[self._output[index] for index in sorted(self._output)],
            usage=self._usage,
            tools=self._tools.completed(self._tools_said),
            used=self._own_calls.used,
        )

    # Events of the run.

    def turn_ended(self, end: TurnEnd) -> bytes:
        frames = self._held.take()
        if self._phase is not COMPOSING:
            out = b"".join(map(self._forward, frames))
        else:
            if end == "hidden" and self._last_text_only:
                frames = [frame for frame in frames if not is_message_event(frame.payload)]
            out = b"".join(map(self._compose, frames))
        self._sum_usage()
        self._phase = NEXT[self._phase, HIDDEN if end == "hidden" else TURN_ENDED]
        if end == "hidden":
            self._turns_hidden += 1
            self._new_turn()
        return out

    def _sum_usage(self) -> None:
        if self._turn_usage:
            self._usage = add_usage(self._usage or {}, self._turn_usage)
            self._turn_usage = {}

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        if (item := self._own_calls.begin(call, arguments, self._next_index)) is None:
            return b""
        if self._own_calls.is_whole(call):
            return self._show(item)
        self._next_index += 1
        return b"".join(map(self._emit, begin_events(item, self._next_index - 1)))

    def tool_progressed(self, call: ToolCall, progress: ToolProgress) -> bytes:
        return b"".join(map(self._emit, self._own_calls.progress(call, progress)))

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes:
        if usage := usage_of_call(self._shown, result):
            self._usage = add_usage(self._usage or {}, usage)
        if (ended := self._own_calls.end(call, result)) is not None:
            index, items = ended
            out = b"" if index < 0 else self._finish(index, items.pop(0))
            return out + b"".join(map(self._show, items))
        served, texts = self._shown.called(call.name), not self._last_text_only
        traced = traced_item(self._trace, call, result, self._signer, served=served, texts=texts)
        return b"" if traced is None else self._show(traced)

    def _finish(self, index: int, item: Item) -> bytes:
        self._output[index] = item
        return b"".join(map(self._emit, end_events(item, index)))

    def note(self, text: str) -> bytes:
        item = message_item(own_item_id("msg"), text, status="completed")
        return b"" if self._last_text_only else self._show(item)

    def client_called(self, name: str, calls: Sequence[ClientCall]) -> bytes:
        self._usage = add_usage(self._usage or {}, NO_TOKENS)
        return super().client_called(name, calls)

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def finish(self, reason: FinishReason | None) -> bytes:
        if self._phase is not COMPOSING:
            return b"" if self._done_seen else END_MARK
        if self._repairs and reason is None and not self._terminal:
            if self._failure is not None:
                return self.fail(**failure_of(self._failure))
            return self.fail(CUT_OFF, type="upstream_error", code="upstream_broken")
        response = self._terminal.get("response")
        self._result = whole = self._whole(ended_as(response if isinstance(response, dict) else {}, reason))
        # llama-server puts its timings beside the response.
        beside = self._terminal if self._repairs else {}
        return self._emit({**beside, "type": f"response.{whole['status']}", "response": whole}) + END_MARK

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        """Return an error event, ``response.failed`` with the output so far, and the end mark."""
        self._held.take()
        if self._done_seen or (self._terminal and not self.composing):
            return b"" if self._done_seen else END_MARK
        self._sum_usage()
        out = b"".join(self._end(key, opened.so_far()) for key, opened in list(self._open.items()))
        for index, item in self._own_calls.broken():
            out += self._finish(index, item)
        out += error_event(message, type=type, code=code, sequence_number=self._sequence)
        self._sequence += 1
        whole = self._whole({}, status="failed", error={"code": code or type, "message": message})
        return out + self._emit({"type": "response.failed", "response": whole}) + END_MARK
