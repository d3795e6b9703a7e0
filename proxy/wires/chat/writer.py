"""Chat Completions: writes the client's stream.

The writer begins by forwarding the upstream's bytes, and does so to the end of a run without server calls.
From the first server call on it composes (:mod:`proxy.wires.chat.composer`).

A defect of a call makes the writer compose. openai-python puts calls together by their place in a list and
joins repeated ids and names. openai-node throws for a call without ``type`` and for a stream without a
finish reason. Observed with openai-python 3.54 and openai-node 6.49, and in their sources:
``lib/streaming/_deltas.py`` and ``lib/ChatCompletionStream.ts``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from proxy.base.events import (
    FinishReason,
    Frame,
    TextDelta,
    ToolCallStarted,
    TurnFailed,
    UsageReported,
    pauses,
)
from proxy.wires.chat.composer import ChatComposer
from proxy.wires.client_port import ClientView, TurnEnd
from proxy.wires.openai.dialect import error_event
from proxy.wires.repairing import CUT_OFF, failure_of
from proxy.wires.stream.composing import TracingWriter
from proxy.wires.stream.held import identity
from proxy.wires.stream.phases import (
    CERTAIN,
    COMPOSING,
    HIDDEN,
    NEXT,
    OPEN,
    PASSING,
    TURN_ENDED,
    UNCERTAIN,
    Sign,
)
from proxy.wires.stream.sse import END_MARK, KEEP_ALIVE, encode_event
from proxy.wires.turn.usage import without_null_usage


class ChatStreamWriter(TracingWriter):
    """A writer of one client's stream, over all turns of its run.

    ``last_text_only`` holds the text of a turn back until the turn's end, because only the last turn may give
    JSON output. Usage that only the proxy asked for is removed. ``used_ids`` and ``forces_call`` are those
    of the :class:`ChatComposer`.
    """

    _AFTER_STATUS = ""  # The texts become paragraphs.

    def __init__(
        self,
        view: ClientView,
        *,
        wants_usage: bool = False,
        last_text_only: bool = False,
        used_ids: frozenset[str] = frozenset(),
        forces_call: bool = False,
    ) -> None:
        super().__init__(view, last_text_only=last_text_only)
        self._filter_usage = view.usage_was_added and not wants_usage
        self._composer = ChatComposer(
            view, wants_usage=wants_usage, used_ids=used_ids, forces_call=forces_call
        )
        self._forces_call = forces_call
        self._done_seen = False
        self._inspects = False
        self._defects: CallDefects | None = None
        self._end_seen = False
        self._failure: Mapping[str, Any] | None = None

    def repair(self, *, always: bool, begun: bool = False, single_turn: bool = False) -> bool:
        self._composer.repairs = True
        self._composer.role_sent = begun
        self._inspects = not always
        if single_turn:
            self._last_text_only = False
            self._phase = PASSING
        if always:
            self._phase = COMPOSING
        return True

    @property
    def visible(self) -> str:
        return self._composer.visible

    def client_ids(self) -> Mapping[str, str]:
        return self._composer.client_ids

    def transform(self) -> Callable[[bytes], bytes] | None:
        if self._phase is not PASSING:
            return None
        return without_null_usage if self._filter_usage else identity

    def note_plain(self, text: str) -> None:
        self._composer.note_text(text)
        self._done_seen = True

    def write(self, frame: Frame) -> bytes:
        if self._phase is COMPOSING:
            return self._held.put(frame) if self._last_text_only else self._compose(frame)
        started: list[ToolCallStarted] = []
        if ToolCallStarted in map(type, frame.events):
            started = [event for event in frame.events if type(event) is ToolCallStarted]
        for event in started:
            if self._is_hidden(event.name):
                return self._begin_composing(frame)
        if frame.events and pauses(frame.events):
            # The turn continues, and the client gets the whole answer.
            return self._begin_composing(frame)
        if (
            self._inspects
            and (self._defects is not None or frame.raw.find(SIGN) >= 0)
            and self._is_defective(frame)
        ):
            return self._begin_composing(frame)
        if self._phase is PASSING and not (started or frame.undecided):
            return self._forward(frame)
        self._held.put(frame)
        self._phase = NEXT[self._phase, self._sign(frame, started)]
        return b"".join(map(self._forward, self._held.take())) if self._phase is PASSING else b""

    def _sign(self, frame: Frame, started: list[ToolCallStarted]) -> Sign:
        """Return the sign by which a held frame decides what happens next."""
        if not all(map(self._is_shown, started)):
            return OPEN
        return UNCERTAIN if frame.undecided else CERTAIN

    def _is_defective(self, frame: Frame) -> bool:
        """Return whether a frame is the first of its stream that must not go out unchanged."""
        if self._defects is None:
            self._defects = CallDefects(stop_is_right=self._forces_call)
        return self._defects.shown_by(frame)

    def _is_shown(self, call: ToolCallStarted) -> bool:
        """Return whether the upstream's own bytes show a client call under the id that the proxy uses for it.

        A blank or repeated id was repaired. Then those bytes may reach the client only if the turn calls no
        server tool; otherwise the client would answer a call with an unknown id. A legacy call has no id,
        and is the only call of its turn.
        """
        shown = any(call.call_id.encode() in frame.raw for frame in self._held)
        return shown or call.extra.get("type") == "function_call"

    def _begin_composing(self, frame: Frame) -> bytes:
        self._phase = NEXT[self._phase, HIDDEN]
        if self._last_text_only:
            return self._held.put(frame)
        return b"".join(map(self._compose, [*self._held.take(), frame]))

    # A frame on its way out.

    def _forward(self, frame: Frame) -> bytes:
        """Forward a frame unchanged, and remember what a composed stream would need to continue."""
        if frame.is_end_mark:
            self._done_seen = True
            return frame.raw
        payload, composer = frame.payload, self._composer
        if payload is None:
            return without_null_usage(frame.raw) if self._filter_usage and not frame.count else frame.raw
        if not composer.knows_head:
            composer.note_head(payload)
        for event in frame.events:
            if isinstance(event, ToolCallStarted):
                composer.note_call(event, payload)
            elif isinstance(event, TextDelta):
                composer.note_text(event.text)
        if UsageReported in map(type, frame.events):
            composer.note_usage(frame, sent=not self._filter_usage)
        return self._without_usage(frame.raw, payload) if self._filter_usage else frame.raw

    def _without_usage(self, raw: bytes, payload: dict[str, Any]) -> bytes:
        """Remove what only our own ``include_usage`` caused (rule W2)."""
        if "usage" not in payload or not raw:
            return raw
        if payload["usage"] is None:
            less = without_null_usage(raw)
            if less != raw:
                return less
        elif not payload.get("choices"):
            return b""
        return encode_event(orjson.dumps({k: v for k, v in payload.items() if k != "usage"}))

    def _compose(self, frame: Frame) -> bytes:
        if self._composer.repairs and (frame.payload is None or "error" in frame.payload):
            self._note_end(frame)
        return self._composer.compose(frame)

    def _note_end(self, frame: Frame) -> None:
        """Remember how a repaired stream ended: the client learns it only when the end is composed."""
        self._end_seen = self._end_seen or frame.is_end_mark
        for event in frame.events:
            if type(event) is TurnFailed:
                self._failure = event.error

    # What the run reports.

    def turn_ended(self, end: TurnEnd) -> bytes:
        frames, hidden = self._held.take(), end == "hidden"
        if self._phase is not COMPOSING:
            out = b"".join(map(self._forward, frames))
        elif hidden and self._last_text_only:
            # The text of a hidden turn would come before the JSON that the client expects.
            out = b""
            for frame in frames:
                self._composer.count_unsent(frame)
        else:
            out = b"".join(map(self._compose, frames))
        self._composer.turn_ended(hidden=hidden)
        self._phase = NEXT[self._phase, HIDDEN if hidden else TURN_ENDED]
        return out

    def _say(self, text: str) -> bytes:
        return self._composer.text(text)

    def _think(self, text: str) -> bytes:
        return self._composer.chunk({"reasoning_content": text})

    def _tell(self, trace: Mapping[str, Any]) -> bytes:
        return self._composer.chunk({}, rest={"x_toolrelay": trace})

    def _count(self, usage: Mapping[str, Any]) -> None:
        self._composer.add_usage(usage)

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def finish(self, reason: FinishReason | None) -> bytes:
        if self._phase is not COMPOSING:
            return b"" if self._done_seen else END_MARK
        if self._composer.repairs and reason is None:
            if self._failure is not None:
                return self.fail(**failure_of(self._failure))
            if not self._composer.has_reason and not self._end_seen:
                return self.fail(CUT_OFF, type="upstream_error", code="upstream_broken")
        return self._composer.finish(reason) + END_MARK

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        """Write the error event and the end mark; drop held frames, which may name a server call."""
        self._held.take()
        return error_event(message, type=type, code=code) + (b"" if self._done_seen else END_MARK)


# ---------------------------------------------------------------- defects of calls


SIGN: Final = b'"tool_calls"'
"""Text in every event that may hold a call. Before the first such event there can be no defect."""

_KINDS = ("function", "custom")


class CallDefects:
    """A check of the chunks of one stream, up to its first defect.

    With ``stop_is_right`` calls may end with the finish reason ``stop``: OpenAI itself sends it if the
    request forces the call of one function.
    """

    def __init__(self, *, stop_is_right: bool) -> None:
        self._stop_is_right = stop_is_right
        self._ids: list[str] = []
        self._names: list[str] = []
        self._finished = False
        self._failed = False

    @property
    def has_calls(self) -> bool:
        """Whether any call has begun."""
        return bool(self._ids)

    def shown_by(self, frame: Frame) -> bool:
        """Return whether a frame shows a defect of a call, or of the end of a stream that has calls.

        Nothing is repaired behind an error: a finish reason would make calls that broke off look complete.
        """
        self._failed = self._failed or bool(frame.payload and frame.payload.get("error"))
        if self._failed:
            return False
        if frame.payload is None:
            return frame.is_end_mark and self.has_calls and not self._finished
        return self._in_chunk(frame.payload)

    def _in_chunk(self, payload: Mapping[str, Any]) -> bool:
        """Return whether a chunk shows a defect of the calls in its first choice."""
        choices = payload.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return False
        delta = choice.get("delta")
        calls = delta.get("tool_calls") if isinstance(delta, dict) else None
        if calls and not (isinstance(calls, list) and all(map(self._is_sound, calls))):
            return True
        reason = choice.get("finish_reason")
        self._finished = self._finished or bool(reason)
        return reason == "stop" and bool(self._ids) and not self._stop_is_right

    def _is_sound(self, call: Any) -> bool:
        """Return whether one element of ``delta.tool_calls`` is as clients need it."""
        index = call.get("index") if isinstance(call, dict) else None
        if type(index) is not int or not 0 <= index <= len(self._ids):
            return False
        inner = call.get("custom") if call.get("type") == "custom" else call.get("function")
        if inner is not None and not isinstance(inner, dict):
            return False
        if not isinstance((inner or {}).get("arguments", ""), str | None):
            return False
        if index == len(self._ids):
            return self._opens(call, inner or {})
        return self._goes_on(index, call, inner or {})

    def _opens(self, call: Mapping[str, Any], inner: Mapping[str, Any]) -> bool:
        call_id, name = call.get("id"), inner.get("name")
        self._ids.append(str(call_id))
        self._names.append(str(name))
        new = isinstance(call_id, str) and call_id.strip() != "" and call_id not in self._ids[:-1]
        return new and call.get("type") in _KINDS and isinstance(name, str) and name != ""

    def _goes_on(self, index: int, call: Mapping[str, Any], inner: Mapping[str, Any]) -> bool:
        name = inner.get("name")
        if call.get("id") or (isinstance(name, str) and name.startswith(self._names[index])):
            return False
        if isinstance(name, str):
            self._names[index] += name
        return True
