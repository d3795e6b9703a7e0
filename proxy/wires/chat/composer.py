"""Chat Completions: composes a stream anew from the upstream's chunks.

The stream has one id, one role, dense call indices, no server calls, one finish reason, the usage of all
turns and one end mark. openai-python, openai-node and the Vercel AI SDK need that.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.base.chance import epoch_s
from proxy.base.events import FinishReason, Frame, ToolCallDelta, ToolCallStarted, UsageReported
from proxy.wires.chat.message import part_text
from proxy.wires.client_port import ClientView
from proxy.wires.stream.sse import encode_event
from proxy.wires.turn.assembler import mint_call_id
from proxy.wires.turn.citations import with_moved_indices
from proxy.wires.turn.usage import add_usage

_PARAGRAPH: Final = "\n\n"
"""The separator between the texts of two turns."""

_COMPOSED: Final = frozenset({"index", "delta", "message", "finish_reason", "usage"})
"""The members of a choice that are not sent on as they came. Moonshot's usage of one turn is in a choice."""


class ChatComposer:
    """A composer of the chunks of one client's stream, over all turns of its run.

    While the upstream's own chunks are forwarded, the methods ``note_…`` tell it about them, so that it can
    continue from there. ``used_ids`` are call ids in the request's history. ``forces_call``: the request
    forces the call of certain tools. ``repairs``: the stream is composed because of a defect of the
    upstream. ``client_ids`` are the ids of the client's calls, by the upstream's ids.
    """

    def __init__(
        self, view: ClientView, *, wants_usage: bool, used_ids: frozenset[str], forces_call: bool
    ) -> None:
        self._is_hidden = view.is_hidden
        self._wants_usage = wants_usage
        self._used_ids = used_ids
        self._forces_call = forces_call
        self._head: dict[str, Any] = {
            "id": "",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": view.model,
        }
        self.role_sent = False
        self.repairs = False
        self._last_text = ""
        self._shown: list[str] = []
        self._join = False
        self._calls: dict[int, int] = {}
        self.client_ids: dict[str, str] = {}
        self._custom: set[int] = set()
        self._forwarded: set[int] = set()
        self._legacy = False
        self._next_call = 0
        self._finish_chunk: dict[str, Any] | None = None
        self._usage_chunk: dict[str, Any] | None = None
        self._usage: dict[str, Any] = {}
        self._turn_usage: Mapping[str, Any] = {}
        self._sent_usage: Mapping[str, Any] = {}
        self._before = self._annotated = 0

    @property
    def visible(self) -> str:
        """The text that the client got and will send back."""
        return "".join(self._shown)

    @property
    def has_reason(self) -> bool:
        """Whether the last turn has given its finish reason."""
        return self._finish_chunk is not None

    # Chunks that are forwarded.

    def note_head(self, payload: Mapping[str, Any]) -> None:
        """Take id, creation time and model from the first chunk that has them, and note whether it has the
        role."""
        self._take_head(payload)
        self.role_sent = self.role_sent or says_role(payload)

    @property
    def knows_head(self) -> bool:
        """Whether there is nothing left for :meth:`note_head` to learn."""
        return self.role_sent and bool(self._head["id"])

    def note_call(self, event: ToolCallStarted, payload: Mapping[str, Any]) -> None:
        """Note that a client's call was forwarded, so that later calls continue from its index."""
        self.client_ids[event.call_id] = event.call_id
        self._forwarded.add(event.seq)
        shown = shown_indices(payload)
        self._calls[event.seq] = shown.get(event.call_id, self._next_call)
        taken = (self._calls[event.seq], *shown.values())
        self._next_call = max(self._next_call, max(taken) + 1)
        if event.extra.get("type") == "custom":
            self._custom.add(event.seq)

    def note_text(self, text: str) -> None:
        """Note that text was forwarded."""
        self._last_text = text
        self._shown.append(text)

    def note_usage(self, frame: Frame, *, sent: bool = False) -> None:
        """Keep the last usage of the turn; providers repeat it, cumulative.

        ``sent``: the client gets it with this frame.
        """
        for event in frame.events:
            if type(event) is UsageReported:
                self._turn_usage = event.usage.native
                if sent and frame.payload is not None and frame.payload.get("usage"):
                    self._sent_usage = event.usage.native
                if frame.payload is not None and not frame.payload.get("choices"):
                    self._usage_chunk = frame.payload

    def add_usage(self, told: Mapping[str, Any]) -> None:
        """Add ``told`` to the usage of all turns, if the client asked for usage."""
        if self._wants_usage:
            self._usage = add_usage(self._usage, told)

    def count_unsent(self, frame: Frame) -> None:
        """Count the head and the usage of a frame that is not sent."""
        if frame.payload is not None:
            self._take_head(frame.payload)
            self.note_usage(frame)

    def turn_ended(self, *, hidden: bool) -> None:
        """End a turn; another one follows a ``hidden`` turn in the same stream."""
        if self._turn_usage and self._wants_usage:
            self._usage = add_usage(self._usage, self._turn_usage)
            self._turn_usage = {}
        if hidden:
            self._join = bool(self._last_text)
            self._finish_chunk = self._usage_chunk = None

    # Chunks that are composed.

    def compose(self, frame: Frame) -> bytes:
        """Write a frame as part of the composed stream: without hidden parts, under our ids."""
        payload = frame.payload
        calls = self._client_fragments(frame)
        if payload is None:
            if calls:
                # The name or the arguments of a call became certain only when the turn had ended.
                return self.chunk(self._with_calls({}, calls))
            return frame.raw if not frame.is_end_mark and frame.raw[:1] == b":" else b""
        self._take_head(payload)
        choice = None
        for each in choices_of(payload):
            if not each.get("index"):
                choice = each
                break
        rest = unknown_members(payload)
        self.note_usage(frame)
        if choice is None:
            return self.chunk({}, rest=rest) if rest and not payload.get("usage") else b""
        delta = self._with_calls(self._visible_delta(choice), calls)
        if choice.get("finish_reason"):
            self._finish_chunk = payload
        for value in delta.values():
            if value not in (None, "", []):
                break
        else:
            return b""
        if self._finish_chunk is payload:
            # These logprobs go out now. They must not go out again with the finish reason: clients add them.
            self._finish_chunk = {**payload, "choices": [{**choice, "logprobs": None}]}
        extra = _other_members(choice)
        extra.pop("native_finish_reason", None)
        return self.chunk(delta, rest={**labels_of(payload), **rest}, choice=extra)

    def chunk(
        self,
        delta: dict[str, Any],
        finish: str | None = None,
        *,
        rest: Mapping[str, Any] | None = None,
        choice: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Write one chunk of the composed stream; the first one has the role."""
        if not self.role_sent:
            self.role_sent = True
            delta = {"role": "assistant", **delta}
        choices = [{"index": 0, "delta": delta, "finish_reason": finish, **(choice or {})}]
        usage = {"usage": None} if self._wants_usage else {}
        return _event({**self._complete_head(), "choices": choices, **usage, **(rest or {})})

    def text(self, text: str) -> bytes:
        """Write a paragraph of the proxy's own."""
        self._join = bool(self._last_text)
        out = self.chunk({"content": self._joined(text)})
        self._join = True
        return out

    def finish(self, reason: FinishReason | None) -> bytes:
        """Write the chunk with the finish reason, ``None`` for the upstream's own, and the usage chunk."""
        chunk = self._finish_chunk or {}
        choice = next(iter(choices_of(chunk)), {})
        said = choice.get("finish_reason")
        final = reason.value if reason is not None else said or "stop"
        if final == "stop" and self.repairs and self._next_call and not self._forces_call:
            final = "tool_calls"
        if final == "tool_calls" and self._legacy:
            final = "function_call"
        extra = _other_members(choice)
        if final != said:
            extra.pop("native_finish_reason", None)
        rest = {**labels_of(chunk), **unknown_members(chunk)}
        return self.chunk({}, final, rest=rest, choice=extra) + self._usage_event()

    def _usage_event(self) -> bytes:
        """Write all turns' usage as the last chunk of the stream, only for a client that asked for it and has
        not got it in a forwarded chunk."""
        if not self._wants_usage or not self._usage or self._usage == self._sent_usage:
            return b""
        chunk = self._usage_chunk or {}
        rest = unknown_members(chunk)
        return _event(
            {**self._complete_head(), "choices": [], **labels_of(chunk or self._finish_chunk or {}), **rest}
            | {"usage": self._usage}
        )

    # The parts of a chunk.

    def _take_head(self, payload: Mapping[str, Any]) -> None:
        if not self._head["id"] and isinstance(payload.get("id"), str):
            self._head["id"] = payload["id"]
            if type(payload.get("created")) is int and payload["created"] > 0:
                self._head["created"] = payload["created"]
            if isinstance(payload.get("model"), str) and payload["model"]:
                self._head["model"] = payload["model"]

    def _complete_head(self) -> dict[str, Any]:
        if not self._head["id"]:
            self._head["id"] = mint_call_id("chatcmpl-")
        if not self._head["created"]:
            self._head["created"] = epoch_s()
        return self._head

    def _with_calls(self, delta: dict[str, Any], calls: list[dict[str, Any]]) -> dict[str, Any]:
        if calls and self._legacy:
            delta["function_call"] = calls[0]
        elif calls:
            delta["tool_calls"] = calls
        return delta

    def _visible_delta(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """Return the delta without role and calls, its text joined to the turns before."""
        delta = choice.get("delta")
        if not delta or type(delta) is not dict:
            delta = choice.get("message")
        if type(delta) is not dict:
            return {}
        visible = {
            key: value for key, value in delta.items() if key not in ("role", "tool_calls", "function_call")
        }
        self._join_content(visible)
        if annotations := visible.get("annotations"):
            # If this turn has no text yet, its text will be a paragraph of its own.
            before = len(self.visible) + len(_PARAGRAPH) if self._join else self._before
            visible["annotations"] = with_moved_indices(annotations, before, self._annotated)
            self._annotated += len(annotations) if isinstance(annotations, list) else 0
        return visible

    def _join_content(self, visible: dict[str, Any]) -> None:
        """Join the text of a delta to the turns before."""
        content = visible.get("content")
        if not content:
            return
        if type(content) is str:
            visible["content"] = self._joined(content)
        elif type(content) is list and (text := "".join(map(part_text, content))):
            joined = self._joined(text)
            if joined != text:
                visible["content"] = [{"type": "text", "text": joined.removesuffix(text)}, *content]

    def _joined(self, text: str) -> str:
        """Make two turns' texts two paragraphs, unless whitespace separates them already."""
        if self._join:
            self._join, said = False, len(text)
            if not self._last_text[-1:].isspace() and not text[:1].isspace():
                text = _PARAGRAPH + text
            self._before = len(self.visible) + len(text) - said
        self.note_text(text)
        return text

    def _client_fragments(self, frame: Frame) -> list[dict[str, Any]]:
        """Return the client's calls in a frame in canonical form: id, type and name once, dense indices."""
        fragments: dict[int, dict[str, Any]] = {}
        for event in frame.events:
            if type(event) is ToolCallStarted:
                if event.seq not in self._calls and not self._is_hidden(event.name):
                    fragments[event.seq] = self._open_call(event)
            elif type(event) is ToolCallDelta and event.seq in self._calls:
                if frame.payload is None and event.seq in self._forwarded:
                    continue  # Its bytes were forwarded when they came.
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
        self.client_ids[event.call_id] = call_id
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


def _other_members(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in choice.items() if key not in _COMPOSED}


def _event(payload: Mapping[str, Any]) -> bytes:
    return encode_event(orjson.dumps(payload))


# ---------------------------------------------------------------- chunks


_STANDARD = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "error"}
)


def unknown_members(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a chunk that the proxy does not know; usually there are none."""
    if _STANDARD.issuperset(payload):
        return {}
    return {key: value for key, value in payload.items() if key not in _STANDARD}


def labels_of(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chunk's service tier and fingerprint; clients keep the last ones they see."""
    return {key: payload[key] for key in ("service_tier", "system_fingerprint") if key in payload}


def choices_of(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = payload.get("choices")
    return [choice for choice in choices if type(choice) is dict] if type(choices) is list else []


def says_role(payload: Mapping[str, Any]) -> bool:
    for choice in choices_of(payload)[:1]:
        delta = choice.get("delta")
        return isinstance(delta, dict) and bool(delta.get("role"))
    return False


def shown_indices(payload: Mapping[str, Any]) -> dict[str, int]:
    """Return the index of every call in a chunk, by call id."""
    found = {}
    for choice in choices_of(payload):
        delta = choice.get("delta")
        calls = delta.get("tool_calls") if isinstance(delta, dict) else None
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and type(call.get("index")) is int:
                found[str(call.get("id"))] = call["index"]
    return found
