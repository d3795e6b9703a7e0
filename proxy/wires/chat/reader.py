"""Chat Completions: reads the upstream's responses.

Source for the chunk: OpenAI's API reference, "The chat completion chunk object". The recorded streams of
providers show how they differ.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec.structs import replace

from proxy.base.errors import Unreadable, WireError
from proxy.base.events import (
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
    ToolCallStarted,
    TurnEvent,
    TurnFailed,
    TurnStarted,
    UsageReported,
    finished,
)
from proxy.json.lenient import UNPLACED_CALL, loads, may_hold_call
from proxy.json.objects import objects_in
from proxy.wires.chat.message import MessageBuilder, native_call, part_text, part_thought, reply_message
from proxy.wires.stream.plain import PLAIN_ENDS, PlainTurn
from proxy.wires.stream.reader import StreamReader
from proxy.wires.stream.sse import DONE, SSEEvent, encode_event
from proxy.wires.turn.assembler import Fragment, ToolCallAssembler
from proxy.wires.turn.citations import read_annotations
from proxy.wires.turn.usage import usage_of, without_null_usage
from proxy.wires.upstream_port import Mask

_Taken = tuple[Any, Sequence[Fragment], bool]
"""An object with calls, the calls that were taken, and whether they were taken from it; else it may only
repeat them, and the writers leave it out."""
_KNOWN_CALL_FIELDS = frozenset({"index", "id", "type", "function", "custom"})
_KNOWN_FUNCTION_FIELDS = frozenset({"name", "arguments"})
_CALLS = ("tool_calls", "function_call")
_ECHOED = ("tools", "functions", "arguments", "input")
"""Members in which an object that looks like a call is none."""
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_MOST_WORDS = 1000
_PADDING = ("obfuscation", "p")
"""Members without meaning, which hide the length of the text from those who see the size of an event."""


class ChatTurnReader(StreamReader[SSEEvent]):
    """A reader of one response of a Chat upstream. Odd JSON is let through and never raises."""

    def __init__(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> None:
        super().__init__(declared, is_hidden, max_argument_bytes)
        self._message = MessageBuilder()
        self._reply: Mapping[str, Any] | None = None
        self._taken: list[_Taken] = []
        self._later = LaterChoices(declared, is_hidden)
        self._started = False
        self._ended = False

    @property
    def text(self) -> str:
        self._read_plain()
        return self._message.text

    @property
    def _undecided(self) -> int:
        return self._calls.undecided + self._later.undecided

    def _finish(self) -> list[TurnEvent]:
        if self._later.ends_with_server_call():
            self._stop(Unreadable(LaterChoices.REFUSED))
        return super()._finish()

    def _take_reply(self, payload: dict[str, Any], body: bytes) -> tuple[dict[str, Any], list[TurnEvent]]:
        events = self._events(payload, whole=True)
        if _may_name_call(body):
            self._check_placed(payload)
        return payload, events

    def message(self) -> bytes:
        self._read_plain()
        calls = [self._repaired(finished.call) for finished in self._finished]
        extras = [self._calls.extra(finished.seq) for finished in self._finished]
        if self._reply is not None:
            return reply_message(self._reply, calls, extras)
        return self._message.build(calls, extras)

    def native(self, call: ToolCall, mask: Mask) -> str:
        seq = self._finished[call.index].seq
        call_id, name, arguments = self._calls.upstream_fields(seq)
        return native_call(call_id, name, mask(name, arguments), self._calls.extra(seq), legacy=call.legacy)

    def _read(self, event: SSEEvent, *, cut: bool = False) -> Frame:
        if self._ended:
            # Bytes after the end mark belong to no turn. Only what may be a call is dropped (rule W5).
            raw = b"" if may_hold_call(event.raw) and not event.is_comment else event.raw
            return Frame(raw, is_end_mark=True, undecided=self._undecided)
        if event.data[:6] == DONE and event.is_end_mark:
            self._ended = True
            return Frame(event.raw, is_end_mark=True, undecided=self._undecided)
        payload = loads(event.data, halves=self._halves) if event.data else None
        if event.event == b"error" and not (isinstance(payload, dict) and payload.get("error")):
            return _named_error(event, payload)
        if not isinstance(payload, dict):
            return self._unread(event, cut=cut)
        events = self._events(payload, whole=False)
        if _may_name_call(event.data):
            self._check_placed(payload)
        undecided = self._calls.undecided + self._later.undecided
        return Frame(event.raw, payload, tuple(events), undecided=undecided)

    def _free_names(self, frame: Frame) -> tuple[Sequence[str], Sequence[str]] | None:
        return _free_names(frame.raw, frame.payload or {})

    def _piece(self, frame: Frame) -> tuple[str, Sequence[str], int | None] | None:
        payload = frame.payload or {}
        choices = payload.get("choices")
        choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else {}
        delta = choice.get("delta")
        if not isinstance(delta, dict) or "message" in choice or "usage" in payload:
            return None
        if any(value is not None and name not in ("role", "tool_calls") for name, value in delta.items()):
            return None
        fragments = _fragments(delta, whole=False)
        only = fragments[0] if len(fragments) == 1 else None
        if only is None or only.call_id or only.name or only.extra or only.legacy or not only.arguments:
            return None
        return "arguments", [name for name in _PADDING if type(payload.get(name)) is str], only.index

    def _events(self, payload: dict[str, Any], *, whole: bool) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        if error := payload.get("error"):
            events.append(TurnFailed(error if isinstance(error, dict) else {"message": str(error)}))
        if not self._started and payload.get("id") and isinstance(payload["id"], str):
            # Azure's first chunk has a blank id.
            self._started = True
            events.append(TurnStarted(payload["id"], str(payload.get("model") or "")))
        choices = payload.get("choices")
        if type(choices) is list:
            for position, choice in enumerate(choices):
                if type(choice) is not dict:
                    continue
                if not choice.get("index"):
                    self._choice(choice, events, whole)
                elif (delta := _delta_of(choice, whole)) is not None and (calls := _fragments(delta, whole)):
                    self._taken.append((delta, calls, True))
                    key = position if whole else choice["index"]
                    if self._later.adds_server_call(str(key), calls):
                        self._stop(Unreadable(LaterChoices.REFUSED))
        if (usage := usage_of(payload)) is not None:
            events.append(UsageReported(usage))
        return events

    def _choice(self, choice: dict[str, Any], events: list[TurnEvent], whole: bool) -> None:
        delta = _delta_of(choice, whole)
        if delta is not None:
            if whole:
                self._reply = delta
            self._delta(delta, events, whole)
            other = "delta" if whole else "message"
            if other in choice and self._taken and choice[other] is not delta:
                self._taken.append((choice[other], self._taken[-1][1], False))
        if reason := choice.get("finish_reason"):
            events.append(finished(reason if type(reason) is str else str(reason)))

    def _delta(self, delta: dict[str, Any], events: list[TurnEvent], whole: bool) -> None:
        if not delta:
            return
        self._message.add(delta)
        # A whole message has both at once: the model's reasoning comes before its text.
        for key in ("reasoning_content", "reasoning"):
            if (thought := delta.get(key)) and type(thought) is str:
                events.append(ReasoningDelta(thought))
                break
        content = delta.get("content")
        if type(content) is list:
            for part in content:
                if thought := part_thought(part):
                    events.append(ReasoningDelta(thought))
                elif text := part_text(part):
                    events.append(TextDelta(text))
        elif content and type(content) is str:
            events.append(TextDelta(content))
        if (refusal := delta.get("refusal")) and type(refusal) is str:
            events.append(RefusalDelta(refusal))
        if "annotations" in delta:
            events += read_annotations(delta["annotations"])
        if "tool_calls" in delta or "function_call" in delta:
            fragments = _fragments(delta, whole)
            self._taken.append((delta, fragments, True))
            for fragment in fragments:
                events += self._calls.add(fragment)

    def _check_placed(self, payload: Mapping[str, Any]) -> None:
        """Stop if an event or a reply has a call of a server tool that was not read as one (rule W5).

        A client could find it in a ``message`` beside the ``delta``, in a ``function_call`` beside
        ``tool_calls``, in choices that are no list, or under a name in other letters, as Go reads them.
        """
        taken, self._taken = self._taken, []
        left: dict[str, list[Fragment]] = {}
        for holder in objects_in(payload, _ECHOED):
            for key in holder:
                form = key if key in _CALLS or "_" not in key else key.casefold()
                if form in _CALLS and (others := _untaken(holder, key, form, taken)):
                    left.setdefault(form, []).extend(others)
            if "custom" in holder and type(custom := holder["custom"]) is dict and any(custom.values()):
                # The custom call was taken.
                left.setdefault("function", []).append(_fragment({"function": holder.get("function")}))
        for form, fragments in left.items():
            named = [fragment for fragment in fragments if fragment.name]
            if self._later.adds_server_call(form, named):
                self._stop(Unreadable(UNPLACED_CALL))


def _free_names(raw: bytes, payload: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]] | None:
    """Return the members of a text event that may differ; see :class:`StreamReader`."""
    choices = payload.get("choices")
    delta = choices[0].get("delta") if isinstance(choices, list) and len(choices) == 1 else None
    if not isinstance(delta, dict):
        return None
    # A piece of a call may cause no event by itself, but still counts each time that it comes.
    said = {
        name: value
        for name, value in delta.items()
        if value is not None and name != "role" and not (name == "tool_calls" and value == [])
    }
    # Other members would be merged once for all events, not once for each.
    if any(name not in _TEXTS or type(value) is not str for name, value in said.items()):
        return None
    usage = without_null_usage(raw) if "usage" in payload else raw
    if b'"usage"' in usage:
        # Usage is removed from an event that is read, but not from one that passes unread.
        return None
    return tuple(said), [name for name in _PADDING if type(payload.get(name)) is str]


class PlainChatTurn(PlainTurn):
    """The plain text of one turn of a Chat upstream."""

    __slots__ = ()

    def _free_names(self, raw: bytes, payload: dict[str, Any]) -> tuple[Sequence[str], Sequence[str]] | None:
        return _free_names(raw, payload)

    def _note_reply(self, payload: dict[str, Any]) -> bool:
        return self._note(payload, whole=True)

    def _note(self, payload: dict[str, Any], *, whole: bool = False) -> bool:
        choices = payload.get("choices")
        if type(choices) is not list or len(choices) > 1 or payload.get("error"):
            return False
        if not self.id and isinstance(payload.get("id"), str):
            self.id, self.model = payload["id"], str(payload.get("model") or "")
        if choices and not self._note_choice(choices[0], whole):
            return False
        if (usage := usage_of(payload)) is not None:
            self.usage = usage
        return True

    def _note_choice(self, choice: Any, whole: bool) -> bool:
        if type(choice) is not dict or choice.get("index") or ("delta" if whole else "message") in choice:
            return False
        delta = choice.get("message" if whole else "delta")
        if type(delta) is not dict:
            return False
        for name, value in delta.items():
            # A whole message lists its annotations, also where it has none.
            if value is None or name == "role" or (whole and value == []):
                continue
            if name not in _TEXTS or type(value) is not str:
                return False
            if value and name == "content":
                self._texts.append(value)
        if word := choice.get("finish_reason"):
            self.finish = finished(word) if type(word) is str else None
            return self.finish is not None and self.finish.reason in PLAIN_ENDS
        return True


def _may_name_call(data: bytes) -> bool:
    """Return whether JSON may have a member with calls; Go reads names in any case."""
    folded = data.lower()
    # For bytes, ``in`` takes several times as long: it first tries to use them as a number.
    return folded.find(b"_call") >= 0 or folded.find(b"\\u00") >= 0


def _untaken(holder: Mapping[str, Any], key: str, form: str, taken: Sequence[_Taken]) -> list[Fragment]:
    """Return the pieces of calls in a member that were not taken from it, or from the object it is in."""
    known: set[str | None] = {None}
    for delta, fragments, is_source in taken:
        if delta is holder:
            if is_source and key == ("tool_calls" if delta.get("tool_calls") else "function_call"):
                return []
            # Some gateways send the same call in both forms.
            known.update(fragment.name for fragment in fragments)
    return [one for one in _fragments({form: holder[key]}, whole=False) if one.name not in known]


def _delta_of(choice: Mapping[str, Any], whole: bool) -> dict[str, Any] | None:
    """Return a choice's delta on a stream or its message in a reply; the other one if that is blank."""
    delta = choice.get("message" if whole else "delta")
    if not delta or type(delta) is not dict:
        # Some gateways stream messages instead of deltas; some write both, and leave one of them blank.
        other = choice.get("delta" if whole else "message")
        if type(other) is dict:
            return other
    return delta if type(delta) is dict else None


def _text(value: Any) -> str | None:
    """Return a name or id; a blank one is ``None``, a number becomes its digits."""
    if type(value) is str:
        return value if value.strip() else None
    return str(value) if type(value) is int else None


def _index(value: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal() and len(value) < 12:
        return int(value)
    return None


def _arguments(value: Any) -> str:
    """Return arguments as text, even if they came as a JSON value."""
    if value is None:
        return ""
    return value if type(value) is str else orjson.dumps(value).decode()


def _fragments(delta: Mapping[str, Any], whole: bool) -> list[Fragment]:
    """Return the pieces of calls in a delta or, if ``whole``, a message."""
    calls = delta.get("tool_calls")
    if type(calls) is dict:
        calls = [calls]
    found: list[Fragment] = []
    if type(calls) is list:
        for position, call in enumerate(calls):
            if type(call) is dict:
                fragment = _fragment(call)
                # In a whole message each element is a separate call, whatever its index.
                found.append(replace(fragment, index=position) if whole else fragment)
    if not calls and type(call := delta.get("function_call")) is dict:
        # Some gateways send the same call in both forms.
        found.append(_legacy_fragment(call))
    return found


def _fragment(call: Mapping[str, Any]) -> Fragment:
    """Read one element of ``delta.tool_calls``; blank members count as missing."""
    function = call.get("function")
    extra: dict[str, Any] = {}
    if not _KNOWN_CALL_FIELDS.issuperset(call):
        extra = {key: value for key, value in call.items() if key not in _KNOWN_CALL_FIELDS}
    custom = call.get("custom")
    if type(custom) is dict and (type(function) is not dict or custom.get("name") or custom.get("input")):
        # Some gateways write every member of a call, and leave those of the other kind blank.
        function = {"name": custom.get("name"), "arguments": custom.get("input")}
        extra["type"] = "custom"
    if type(function) is not dict:
        function = {}
    if not _KNOWN_FUNCTION_FIELDS.issuperset(function):
        extra["function"] = {
            key: value for key, value in function.items() if key not in _KNOWN_FUNCTION_FIELDS
        }
    return Fragment(
        _index(call.get("index")),
        _text(call.get("id")),
        _text(function.get("name")),
        _arguments(function.get("arguments")),
        extra,
    )


def _legacy_fragment(call: Mapping[str, Any]) -> Fragment:
    arguments = _arguments(call.get("arguments"))
    return Fragment(None, None, _text(call.get("name")), arguments, {"type": "function_call"}, legacy=True)


def _named_error(event: SSEEvent, said: Any) -> Frame:
    """Return the frame of an event that only its name makes an error, in the form that clients read.

    OpenAI's SDKs read the ``error`` of the data and ignore the name.
    """
    error = (
        said if isinstance(said, dict) else {"message": event.data.decode("utf-8", "replace")[:_MOST_WORDS]}
    )
    payload = {"error": error}
    return Frame(encode_event(orjson.dumps(payload)), payload, (TurnFailed(error),))


# ---------------------------------------------------------------- choices after the first


_MOST = 128
"""The highest number of choices that any API gives."""


class LaterChoices:
    """A check of all choices but the first for calls of server tools (rule W5).

    With server tools the proxy asks for one choice, but some upstreams return more. The client gets these
    choices in the upstream's own bytes. They may contain calls of its own tools.
    """

    REFUSED: Final = (
        "The upstream calls a server tool in a choice after the first, but the proxy runs only calls in the "
        "first. Configure the upstream to return one choice (n = 1)."
    )

    def __init__(self, declared: Collection[str], is_hidden: Callable[[str], bool]) -> None:
        self._declared = declared
        self._is_hidden = is_hidden
        self._choices: dict[str, ToolCallAssembler] = {}
        self.undecided = 0
        """The number of calls that have begun and whose name is not certain yet."""

    def adds_server_call(self, choice: str, fragments: Sequence[Fragment]) -> bool:
        """Take pieces of a choice's calls; return whether one of them is a server tool's."""
        calls = self._choices.get(choice)
        if calls is None:
            if len(self._choices) >= _MOST:
                raise WireError(f"more than {_MOST} choices in one response")
            calls = ToolCallAssembler(self._declared, is_hidden=self._is_hidden)
            self._choices[choice] = calls
        before = calls.undecided
        events = [event for fragment in fragments for event in calls.add(fragment)]
        self.undecided += calls.undecided - before
        return any(isinstance(event, ToolCallStarted) and self._is_hidden(event.name) for event in events)

    def ends_with_server_call(self) -> bool:
        """Return whether a call whose name became certain only at the end of the turn is a server tool's."""
        if not self._choices:
            return False
        events = [event for calls in self._choices.values() if calls.undecided for event in calls.finish()]
        self.undecided = 0
        return any(isinstance(event, ToolCallStarted) and self._is_hidden(event.name) for event in events)
