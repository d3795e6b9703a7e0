"""Chat Completions: the stream the client sees.

The writer begins by handing on the upstream's bytes.  It goes on like that to the end of a run in
which no server tool is called.  From the first server call on it composes: same chunks, but with one
id, one role, dense call indices, no server call, one finish reason, the usage of all turns and one
end mark: what openai-python, openai-node and the Vercel AI SDK need.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from proxy.events import (
    Frame,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallStarted,
    ToolResult,
    UsageReported,
)
from proxy.wires.base import Trace, TurnEnd
from proxy.wires.chat.message import part_text
from proxy.wires.dialects.openai import error_event
from proxy.wires.stream.held import HeldFrames, unchanged
from proxy.wires.stream.sse import END_MARK, KEEP_ALIVE, encode_event
from proxy.wires.turn.assembler import mint_call_id
from proxy.wires.turn.trace import reasoning_line, status_line, trace_call, trace_result
from proxy.wires.turn.usage import add_usage, without_null_usage

__all__ = ["ChatStreamWriter"]

_STANDARD = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "error"}
)


class ChatStreamWriter:
    """One client's stream, over all turns of its run.

    ``hold_text`` keeps the text of a turn back until the turn's end: of several turns only the
    last may give JSON output.  ``filter_usage`` takes out the usage that only we asked for.
    ``used_ids`` are call ids that the request's history holds.
    """

    def __init__(
        self,
        *,
        model: str,
        is_hidden: Callable[[str], bool],
        trace: Trace = "silent",
        wants_usage: bool = False,
        filter_usage: bool = False,
        hold_text: bool = False,
        used_ids: frozenset[str] = frozenset(),
    ) -> None:
        self._is_hidden = is_hidden
        self._trace = trace
        self._wants_usage = wants_usage
        self._filter_usage = filter_usage
        self._hold_text = hold_text
        self._composing = False
        self._hold_turn = hold_text
        self._held = HeldFrames()
        self._done_seen = False
        self._head: dict[str, Any] = {
            "id": "",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": model,
        }
        self._role_sent = False
        self._last_text = ""
        self._shown: list[str] = []
        self._join = False
        self._used_ids = used_ids
        self._calls: dict[int, int] = {}
        self._client_ids: dict[str, str] = {}
        self._custom: set[int] = set()
        self._forwarded: set[int] = set()
        self._legacy = False
        self._next_call = 0
        self._finish_chunk: dict[str, Any] | None = None
        self._usage_chunk: dict[str, Any] | None = None
        self._usage: dict[str, Any] = {}
        self._turn_usage: Mapping[str, Any] = {}

    @property
    def composing(self) -> bool:
        return self._composing

    def client_ids(self) -> Mapping[str, str]:
        return self._client_ids

    def result(self) -> dict[str, Any] | None:
        return None

    def passing(self) -> Callable[[bytes], bytes] | None:
        if self._composing or self._held or self._hold_turn:
            return None
        return without_null_usage if self._filter_usage else unchanged

    def write(self, frame: Frame) -> bytes:
        if self._composing:
            return self._held.put(frame) if self._hold_text else self._compose(frame)
        started = [event for event in frame.events if type(event) is ToolCallStarted]
        for event in started:
            if self._is_hidden(event.name):
                return self._begin_composing(frame)
        if not (started or frame.undecided or self._held or self._hold_turn):
            return self._forward(frame)
        self._held.put(frame)
        self._hold_turn = self._hold_turn or not all(map(self._is_shown, started))
        return b"" if frame.undecided or self._hold_turn else self._release()

    @property
    def _knows_head(self) -> bool:
        return self._role_sent and bool(self._head["id"])

    def _is_shown(self, call: ToolCallStarted) -> bool:
        """Whether the upstream's own bytes show a client call under the id that we hold it by.

        A blank or repeated id was repaired.  Those bytes may then reach the client only if the turn
        calls no server tool, or the client would answer a call that nobody knows.  A legacy call has
        no id, and is the only one of its turn.
        """
        shown = any(call.call_id.encode() in frame.raw for frame in self._held)
        return shown or call.extra.get("type") == "function_call"

    def _release(self) -> bytes:
        return b"".join(map(self._forward, self._held.take()))

    def _begin_composing(self, frame: Frame) -> bytes:
        self._composing = True
        if self._hold_text:
            return self._held.put(frame)
        return b"".join(map(self._compose, [*self._held.take(), frame]))

    # The upstream's own bytes.

    def _forward(self, frame: Frame) -> bytes:
        """Hand on a frame as it is, remembering what a composed stream would have to go on with."""
        if frame.is_end_mark:
            self._done_seen = True
            return frame.raw
        payload = frame.payload
        if payload is None:
            return without_null_usage(frame.raw) if self._filter_usage and not frame.count else frame.raw
        if not self._knows_head:
            self._note_head(payload)
            self._role_sent = self._role_sent or _has_role(payload)
        for event in frame.events:
            if isinstance(event, ToolCallStarted):
                self._note_client_call(event, payload)
            elif isinstance(event, TextDelta):
                self._note_shown(event.text)
        self._note_usage(frame)
        return self._without_usage(frame.raw, payload) if self._filter_usage else frame.raw

    def _without_usage(self, raw: bytes, payload: dict[str, Any]) -> bytes:
        """Take out what only our own ``include_usage`` put in (rule W2)."""
        if "usage" not in payload or not raw:
            return raw
        if payload["usage"] is None:
            less = without_null_usage(raw)
            if less != raw:
                return less
        elif not payload.get("choices"):
            return b""
        return encode_event(orjson.dumps({k: v for k, v in payload.items() if k != "usage"}))

    def _note_head(self, payload: Mapping[str, Any]) -> None:
        """Take id, creation time and model from the first chunk that has them."""
        if not self._head["id"] and isinstance(payload.get("id"), str):
            self._head["id"] = payload["id"]
            if type(payload.get("created")) is int and payload["created"] > 0:
                self._head["created"] = payload["created"]
            if isinstance(payload.get("model"), str) and payload["model"]:
                self._head["model"] = payload["model"]

    def _note_client_call(self, event: ToolCallStarted, payload: Mapping[str, Any]) -> None:
        """A client's call went out as it came: later ones go on from its index."""
        self._client_ids[event.call_id] = event.call_id
        self._forwarded.add(event.seq)
        shown = _shown_indices(payload)
        self._calls[event.seq] = shown.get(event.call_id, self._next_call)
        taken = (self._calls[event.seq], *shown.values())
        self._next_call = max(self._next_call, max(taken) + 1)
        if event.extra.get("type") == "custom":
            self._custom.add(event.seq)

    # The composed stream.

    def _compose(self, frame: Frame) -> bytes:
        """A frame as part of the composed stream: less what is hidden, under our ids."""
        payload = frame.payload
        calls = self._client_fragments(frame)
        if payload is None:
            if calls:
                # A call whose name or arguments were certain only when the turn had ended.
                return self._chunk(self._with_calls({}, calls), None)
            return frame.raw if not frame.is_end_mark and frame.raw[:1] == b":" else b""
        self._note_head(payload)
        choice = None
        for each in _choices(payload):
            if not each.get("index"):
                choice = each
                break
        rest = _unknown(payload)
        self._note_usage(frame)
        if choice is None:
            return self._chunk({}, None, rest) if rest and not payload.get("usage") else b""
        delta = self._with_calls(self._visible_delta(choice), calls)
        if choice.get("finish_reason"):
            self._finish_chunk = payload
        for value in delta.values():
            if value not in (None, "", []):
                break
        else:
            return b""
        extra = {k: v for k, v in choice.items() if k not in ("delta", "message", "finish_reason", "index")}
        extra.pop("native_finish_reason", None)
        if self._finish_chunk is payload:
            # Said now, so not once more with the finish reason: clients add logprobs up.
            self._finish_chunk = {**payload, "choices": [{**choice, "logprobs": None}]}
        return self._chunk(delta, None, {**_labels(payload), **rest}, extra)

    def _with_calls(self, delta: dict[str, Any], calls: list[dict[str, Any]]) -> dict[str, Any]:
        if calls and self._legacy:
            delta["function_call"] = calls[0]
        elif calls:
            delta["tool_calls"] = calls
        return delta

    def _visible_delta(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """The delta less role and calls, its text joined to the turns before."""
        delta = choice.get("delta")
        if not delta or type(delta) is not dict:
            delta = choice.get("message")
        if type(delta) is not dict:
            return {}
        visible = {
            key: value for key, value in delta.items() if key not in ("role", "tool_calls", "function_call")
        }
        content = visible.get("content")
        if not content:
            return visible
        if type(content) is str:
            visible["content"] = self._joined(content)
        elif type(content) is list and (text := "".join(map(part_text, content))):
            joined = self._joined(text)
            if joined != text:
                visible["content"] = [{"type": "text", "text": joined.removesuffix(text)}, *content]
        return visible

    def _note_shown(self, text: str) -> None:
        """Remember what the client was given: it will send it back."""
        self._last_text = text
        self._shown.append(text)

    @property
    def visible(self) -> str:
        return "".join(self._shown)

    def _joined(self, text: str) -> str:
        """Two turns' texts are two paragraphs, unless one of them already says so."""
        if self._join:
            self._join = False
            if not self._last_text[-1:].isspace() and not text[:1].isspace():
                text = "\n\n" + text
        self._note_shown(text)
        return text

    def _client_fragments(self, frame: Frame) -> list[dict[str, Any]]:
        """The client's own calls of a frame, canonical: id, type and name once, indices dense."""
        fragments: dict[int, dict[str, Any]] = {}
        for event in frame.events:
            if type(event) is ToolCallStarted:
                if event.seq not in self._calls and not self._is_hidden(event.name):
                    fragments[event.seq] = self._open_call(event)
            elif type(event) is ToolCallDelta and event.seq in self._calls:
                if frame.payload is None and event.seq in self._forwarded:
                    continue  # Its bytes went out when they came.
                known = fragments.get(event.seq)
                if known is None:
                    fragments[event.seq] = self._continue_call(event)
                elif "custom" in known:
                    known["custom"]["input"] += event.arguments
                else:
                    known.get("function", known)["arguments"] += event.arguments
        return list(fragments.values()) if fragments else []

    def _continue_call(self, event: ToolCallDelta) -> dict[str, Any]:
        if self._legacy:
            return {"arguments": event.arguments}
        inner = "custom" if event.seq in self._custom else "function"
        text = {"input" if inner == "custom" else "arguments": event.arguments}
        extra = {key: value for key, value in event.extra.items() if key not in ("type", "function")}
        return {"index": self._calls[event.seq], inner: text, **extra}

    def _open_call(self, event: ToolCallStarted) -> dict[str, Any]:
        call_id = event.call_id if event.call_id not in self._used_ids else mint_call_id()
        self._client_ids[event.call_id] = call_id
        self._calls[event.seq] = self._next_call
        self._next_call += 1
        kind = event.extra.get("type")
        if kind == "function_call":
            self._legacy = True
            return {"name": event.name, "arguments": ""}
        extra = {key: value for key, value in event.extra.items() if key not in ("type", "function")}
        opened: dict[str, Any] = {"index": self._calls[event.seq], "id": call_id}
        if kind == "custom":
            self._custom.add(event.seq)
            return {**opened, "type": "custom", "custom": {"name": event.name, "input": ""}, **extra}
        return {**opened, "type": "function", "function": {"name": event.name, "arguments": ""}, **extra}

    def _note_usage(self, frame: Frame) -> None:
        """Keep the last usage of the turn; providers repeat it, cumulative."""
        for event in frame.events:
            if type(event) is UsageReported:
                self._turn_usage = event.usage.native
                if frame.payload is not None and not frame.payload.get("choices"):
                    self._usage_chunk = frame.payload

    def _chunk(
        self,
        delta: dict[str, Any],
        finish: str | None,
        rest: Mapping[str, Any] | None = None,
        choice: Mapping[str, Any] | None = None,
    ) -> bytes:
        """One chunk of the composed stream; the first one says the role."""
        if not self._role_sent:
            self._role_sent = True
            delta = {"role": "assistant", **delta}
        choices = [{"index": 0, "delta": delta, "finish_reason": finish, **(choice or {})}]
        usage = {"usage": None} if self._wants_usage else {}
        return self._event({**self._complete_head(), "choices": choices, **usage, **(rest or {})})

    def _complete_head(self) -> dict[str, Any]:
        if not self._head["id"]:
            self._head["id"] = "chatcmpl-" + mint_call_id().removeprefix("call_")
        if not self._head["created"]:
            self._head["created"] = int(time.time())
        return self._head

    def _event(self, payload: Mapping[str, Any]) -> bytes:
        return encode_event(orjson.dumps(payload))

    # What the run tells.

    def turn_ended(self, end: TurnEnd) -> bytes:
        frames = self._held.take()
        if not self._composing:
            out = b"".join(map(self._forward, frames))
        elif end == "hidden" and self._hold_text:
            # The text of a hidden turn would stand before the JSON the client waits for.
            out = b""
            for frame in frames:
                if frame.payload is not None:
                    self._note_head(frame.payload)
                    self._note_usage(frame)
        else:
            out = b"".join(map(self._compose, frames))
        if self._turn_usage and self._wants_usage:
            self._usage = add_usage(self._usage, self._turn_usage)
            self._turn_usage = {}
        if end == "hidden":
            self._composing = True
            self._join = bool(self._last_text)
            self._finish_chunk = self._usage_chunk = None
        return out

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        if self._trace != "events":
            return b""
        return self._chunk({}, None, {"x_toolrelay": trace_call(call, arguments)})

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes:
        if self._trace == "events":
            return self._chunk({}, None, {"x_toolrelay": trace_result(call, result)})
        if self._trace == "reasoning":
            return self._chunk({"reasoning_content": reasoning_line(call, result)}, None)
        if self._trace == "status" and not self._hold_text:
            return self._text(status_line(call, result))
        return b""

    def note(self, text: str) -> bytes:
        return b"" if self._hold_text else self._text(text)

    def _text(self, text: str) -> bytes:
        self._join = bool(self._last_text)
        out = self._chunk({"content": self._joined(text)}, None)
        self._join = True
        return out

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def finish(self, reason: str | None) -> bytes:
        if not self._composing:
            return b"" if self._done_seen else END_MARK
        return self._finish_event(reason) + self._usage_event() + END_MARK

    def _finish_event(self, reason: str | None) -> bytes:
        chunk = self._finish_chunk or {}
        choice = next(iter(_choices(chunk)), {})
        said = choice.get("finish_reason")
        final = reason or said or "stop"
        if final == "tool_calls" and self._legacy:
            final = "function_call"
        extra = {k: v for k, v in choice.items() if k not in ("delta", "message", "finish_reason", "index")}
        if final != said:
            extra.pop("native_finish_reason", None)
        rest = _unknown(chunk)
        return self._chunk({}, final, {**_labels(chunk), **rest}, extra)

    def _usage_event(self) -> bytes:
        """All turns' usage, the last chunk of the stream, only for a client that asked."""
        if not self._wants_usage or not self._usage:
            return b""
        chunk = self._usage_chunk or {}
        rest = _unknown(chunk)
        return self._event(
            {**self._complete_head(), "choices": [], **_labels(chunk or self._finish_chunk or {}), **rest}
            | {"usage": self._usage}
        )

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        """Error event and end mark; what was held back may name a server call, and is dropped."""
        self._held.take()
        return error_event(message, type=type, code=code) + (b"" if self._done_seen else END_MARK)


def _unknown(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a chunk that nothing here has to do with; there are seldom any."""
    if _STANDARD.issuperset(payload):
        return {}
    return {key: value for key, value in payload.items() if key not in _STANDARD}


def _labels(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The chunk's own service tier and fingerprint; clients keep the last they see."""
    return {key: payload[key] for key in ("service_tier", "system_fingerprint") if key in payload}


def _choices(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = payload.get("choices")
    return [choice for choice in choices if type(choice) is dict] if type(choices) is list else []


def _has_role(payload: Mapping[str, Any]) -> bool:
    for choice in _choices(payload)[:1]:
        delta = choice.get("delta")
        return isinstance(delta, dict) and bool(delta.get("role"))
    return False


def _shown_indices(payload: Mapping[str, Any]) -> dict[str, int]:
    """The index of every call that a chunk shows, by call id."""
    found = {}
    for choice in _choices(payload):
        delta = choice.get("delta")
        calls = delta.get("tool_calls") if isinstance(delta, dict) else None
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and type(call.get("index")) is int:
                found[str(call.get("id"))] = call["index"]
    return found
