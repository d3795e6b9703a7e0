"""Assembles tool calls from their fragments. This is the only place that does so (rule W7).

Providers differ in everything about a streamed call: whether it has an index, and what the index counts;
whether the id comes once, in each fragment, never or blank; whether the name comes in one piece. Each rule
here stands for a provider that was seen to need it. State is keyed by the order in which calls begin, never
by an id, because ids repeat.
"""

import re
import secrets
import string
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
import orjson
from msgspec import Struct, field

from proxy.base.chance import replayable
from proxy.base.errors import Unreadable, WireError
from proxy.base.events import ToolCall, ToolCallDelta, ToolCallFinished, ToolCallStarted, TurnEvent
from proxy.json.lenient import UNPLACED_CALL
from proxy.json.size import count_values

_ALPHABET = string.ascii_letters + string.digits
_MAX_CALLS = 256
_MAX_TURN_BYTES = 32 * 1024 * 1024
_MOST_VALUES = 200_000
_SHORT = 64
_NOT_JSON = object()
_UNREAD = object()
_NOT_BLANK = re.compile(r"[^ \t\r\n]")
_BRACKETS = re.compile(r'[{}\[\]"]')
_DEPTHS = {"{": 1, "[": 1, "}": -1, "]": -1, '"': 0}


def mint_call_id(prefix: str = "call_") -> str:
    """Return a new call id of the same shape as OpenAI's, or another id with its own ``prefix``."""
    call_id = replayable("call_id", lambda: "call_" + "".join(secrets.choice(_ALPHABET) for _ in range(24)))
    return prefix + call_id.removeprefix("call_")


class Fragment(Struct, frozen=True):
    """One fragment of one call. A blank id or name counts as absent: it is ``None``, never ``""``."""

    index: int | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)
    legacy: bool = False
    item_id: str = ""


class _Brackets:
    """Tracks whether a JSON text that arrives in pieces has closed its brackets. It reads each piece once."""

    __slots__ = ("_closed", "_depth", "_escaped", "_in_string", "_spoilt")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = self._closed = self._spoilt = False

    @property
    def closed(self) -> bool:
        """Whether one value has ended, and only blanks followed it."""
        return self._closed and not self._spoilt

    def feed(self, text: str) -> None:
        if self._spoilt or not text:
            return
        if self._escaped:
            text = text[1:]
        if "\\" in text:
            # Pairs first: after this, a backslash before a quote escapes the quote.
            text = text.replace("\\\\", "..").replace('\\"', "..")
        self._escaped = text.endswith("\\")
        position = 0
        while position < len(text):
            if self._closed:
                self._spoilt = _NOT_BLANK.search(text, position) is not None
                return
            if self._in_string:
                position = text.find('"', position) + 1
                if not position:
                    return
                self._in_string = False
            else:
                match = _BRACKETS.search(text, position)
                if match is None:
                    return
                position = match.end()
                self._in_string = match[0] == '"'
                self._depth += _DEPTHS[match[0]]
            self._closed = self._depth <= 0 and not self._in_string


class _PartialCall(Struct):
    """A call that is not complete yet.

    ``upstream_id`` is the id that the upstream sent; ``call_id`` is the id that the proxy uses. ``unread``
    is the text that ``brackets`` has not read yet; short arguments are never given to it.
    """

    seq: int
    index: int | None
    legacy: bool
    item_id: str
    upstream_id: str | None = None
    call_id: str = ""
    name: str | None = None
    parts: list[str] = field(default_factory=list)
    size: int = 0
    brackets: _Brackets = field(default_factory=_Brackets)
    unread: str = ""
    known: Any = _UNREAD
    extra: dict[str, Any] = field(default_factory=dict)
    started: bool = False
    withheld: str = ""

    @property
    def arguments(self) -> str:
        if len(self.parts) > 1:
            self.parts[:] = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    @property
    def value(self) -> Any:
        """The arguments so far as parsed JSON, or ``_NOT_JSON`` if they are not one complete value."""
        if self.known is _UNREAD:
            may_be = self.size <= _SHORT or self.brackets.closed
            self.known = _parse(self.arguments) if may_be else _NOT_JSON
        return self.known

    @property
    def is_complete(self) -> bool:
        """Whether the arguments so far are one complete JSON value."""
        return self.value is not _NOT_JSON

    def append(self, text: str, kept: str) -> None:
        """Add ``text`` as the next piece of the arguments, but store only ``kept`` of it."""
        self.size += len(text)
        if self.size <= _SHORT:
            self.unread += text
        else:
            self.brackets.feed(self.unread + text if self.unread else text)
            self.unread = ""
        if _NOT_BLANK.search(text):
            self.known = _UNREAD
        if kept:
            self.parts.append(kept)

    def clear(self) -> None:
        """Forget the arguments so far."""
        self.parts, self.size, self.brackets, self.known = [], 0, _Brackets(), _UNREAD
        self.withheld = self.unread = ""


def _parse(text: str) -> Any:
    """Return ``text`` as parsed JSON; ``_NOT_JSON`` if it is not JSON or has too many values."""
    if len(text) > _MOST_VALUES and count_values(text.encode(), _MOST_VALUES) > _MOST_VALUES:
        return _NOT_JSON
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _NOT_JSON


class ToolCallAssembler:
    """Builds the calls of one turn from their fragments.

    ``declared`` are all tool names that the model was offered, the client's and the proxy's. A call starts
    (:class:`ToolCallStarted`) only when its name can no longer grow into another declared name.
    ``kept_bytes`` bounds the stored arguments of a call that ``is_hidden`` from the client. Longer
    arguments are refused later for their size, so their rest is not needed.

    Raises :class:`WireError` for a turn with more calls or larger calls than any model makes, and
    :class:`Unreadable` for a visible call that gets the name of a hidden tool: clients differ
    in which of two names they take.
    """

    def __init__(
        self,
        declared: Collection[str],
        *,
        is_hidden: Callable[[str], bool] = lambda name: False,
        kept_bytes: int = 1024 * 1024,
    ) -> None:
        self._declared = frozenset(declared)
        self._is_hidden = is_hidden
        self._kept = kept_bytes
        self._slots: list[_PartialCall] = []
        self._by_id: dict[str, list[_PartialCall]] = {}
        self._by_index: dict[int, _PartialCall] = {}
        self._taken_ids: set[str] = set()
        self._bytes = 0
        self.undecided = 0
        """The number of calls that have begun and whose name is not certain yet."""

    def add(self, fragment: Fragment) -> list[TurnEvent]:
        """Take one fragment and return the events that it causes, in order."""
        self._count(fragment)
        slot = self._place(fragment)
        if fragment.call_id and not slot.upstream_id:
            slot.upstream_id = fragment.call_id
            self._by_id.setdefault(fragment.call_id, []).append(slot)
        if fragment.name:
            self._merge_name(slot, fragment.name)
        if fragment.extra:
            slot.extra = _merged(slot.extra, fragment.extra)
        text = self._merge_arguments(slot, fragment)
        events: list[TurnEvent] = []
        for earlier in self._slots[: slot.seq] if self.undecided else ():
            events += self._start(earlier)
        if slot.started:
            if text or fragment.extra:
                events.append(ToolCallDelta(slot.seq, text, fragment.extra))
        elif slot.name and (slot.size or not self._may_grow(slot.name)):
            events += self._start(slot)
        return events

    def _count(self, fragment: Fragment) -> None:
        size = len(fragment.arguments) + len(fragment.name or "")
        if fragment.extra:
            size += len(orjson.dumps(fragment.extra))
        self._bytes += size
        if self._bytes > _MAX_TURN_BYTES:
            raise WireError(f"the tool calls of one turn are larger than {_MAX_TURN_BYTES} bytes")

    def set_arguments(self, index: int, arguments: str) -> None:
        """Replace the arguments of the call with this index, whatever its fragments were."""
        slot = self._by_index.get(index)
        if slot is not None:
            slot.clear()
            slot.append(arguments, self._kept_of(slot, arguments))

    def set_name(self, index: int, name: str) -> list[TurnEvent]:
        """Set the name of the call with this index and start it, unless it has started. Return the events."""
        slot = self._by_index.get(index)
        if slot is None:
            return []
        if slot.started:
            self._check_name(slot, name)
            return []
        slot.name = name
        return self._start(slot)

    def finish(self) -> list[TurnEvent]:
        """End the turn: decide and complete every call that has a name, and return the events.

        A call that never got a name cannot be answered, so it is dropped.
        """
        events: list[TurnEvent] = []
        index = 0
        for slot in self._slots:
            if slot.name is None:
                continue
            events += self._start(slot)
            if slot.withheld:
                events.append(ToolCallDelta(slot.seq, slot.withheld))
            call = ToolCall(
                slot.call_id, slot.name, _last_word(slot.arguments), index, slot.item_id, slot.legacy
            )
            events.append(ToolCallFinished(slot.seq, call))
            index += 1
        return events

    def hides(self, seq: int) -> bool:
        """Return whether a call is hidden from the client."""
        return self._is_hidden(self._slots[seq].name or "")

    def extra(self, seq: int) -> Mapping[str, Any]:
        """Return the unknown fields of a call's fragments, merged, such as thought signatures."""
        return self._slots[seq].extra

    def upstream_fields(self, seq: int) -> tuple[str | None, str, str]:
        """Return the id, name and arguments of a named call as the upstream sent them, without repairs."""
        slot = self._slots[seq]
        return slot.upstream_id, slot.name or "", slot.arguments

    def _place(self, fragment: Fragment) -> _PartialCall:
        """Return the slot that a fragment belongs to. Open a new slot if the fragment begins a call."""
        if fragment.legacy:
            return self._slots[-1] if self._slots else self._open(fragment)
        if fragment.call_id:
            slot = self._with_id(fragment) if fragment.call_id in self._by_id else self._adopting(fragment)
        elif fragment.index is not None:
            slot = self._by_index.get(fragment.index)
            slot = None if slot and _opens_another(slot, fragment) else slot
        else:
            slot = self._anonymous(fragment)
        return slot or self._open(fragment)

    def _with_id(self, fragment: Fragment) -> _PartialCall | None:
        """Return the slot of a fragment whose id was seen in this turn; ``None`` if it begins a call."""
        same = self._by_id[fragment.call_id or ""]
        slot = next((s for s in reversed(same) if s.index == fragment.index), same[-1])
        if not (fragment.name and slot.name):
            return slot
        elsewhere = None not in (fragment.index, slot.index) and fragment.index != slot.index
        new = fragment.arguments.strip() and not _repeats(slot, fragment)
        again = slot.is_complete and (fragment.name != slot.name or new)
        return None if elsewhere or again else slot

    def _adopting(self, fragment: Fragment) -> _PartialCall | None:
        """Return the slot that a fragment with a new id continues; ``None`` if it begins a call."""
        if fragment.index is None:
            # Some gateways create an id for each fragment, so a fragment without a name cannot begin a call.
            latest = self._slots[-1] if self._slots else None
            goes_on = latest and not fragment.name and not (latest.is_complete and fragment.arguments.strip())
            return latest if goes_on else None
        slot = self._by_index.get(fragment.index)
        if slot is None:
            return None
        if slot.upstream_id is None:
            return None if _opens_another(slot, fragment) else slot
        restarts = slot.is_complete and fragment.arguments.lstrip().startswith("{")
        return None if fragment.name or restarts else slot

    def _anonymous(self, fragment: Fragment) -> _PartialCall | None:
        """Return the slot that a fragment without id and index continues; ``None`` if it begins a call."""
        latest = self._slots[-1] if self._slots else None
        if latest is None or not fragment.name:
            return latest
        name = latest.name or ""
        goes_on = name == fragment.name or self._is_declared(name + fragment.name)
        return latest if goes_on and latest.size == 0 else None

    def _open(self, fragment: Fragment) -> _PartialCall:
        if len(self._slots) >= _MAX_CALLS:
            raise WireError(f"more than {_MAX_CALLS} tool calls in one turn")
        slot = _PartialCall(len(self._slots), fragment.index, fragment.legacy, fragment.item_id)
        self._slots.append(slot)
        self.undecided += 1
        if fragment.index is not None:
            self._by_index[fragment.index] = slot
        return slot

    def _merge_name(self, slot: _PartialCall, name: str) -> None:
        if slot.name is None or (not slot.started and name.startswith(slot.name)):
            slot.name = name
        elif not slot.started and self._is_declared(slot.name + name):
            slot.name += name
        else:
            self._check_name(slot, name)

    def _check_name(self, slot: _PartialCall, name: str) -> None:
        """Raise :class:`Unreadable` for a hidden tool's name on a call that clients may see."""
        if name == slot.name or name not in self._declared:
            return
        if self._is_hidden(name) and not self._is_hidden(slot.name or ""):
            raise Unreadable(UNPLACED_CALL)

    def _merge_arguments(self, slot: _PartialCall, fragment: Fragment) -> str:
        """Append the fragment's arguments, and return the text that may be sent on now."""
        text = fragment.arguments
        if not text:
            return ""
        if slot.withheld and text.lstrip().startswith("{"):
            # The first piece was a placeholder for the real arguments.
            slot.clear()
        elif _repeats(slot, fragment):
            return ""
        first = not slot.size
        slot.append(text, self._kept_of(slot, text))
        if first and text.strip() == "{}":
            slot.withheld = text
            return ""
        text, slot.withheld = slot.withheld + text, ""
        return text

    def _kept_of(self, slot: _PartialCall, text: str) -> str:
        """Return how much of a new piece to store; for a hidden call just enough to see that it is too
        large."""
        if not (slot.name and self._is_hidden(slot.name)):
            return text
        return text[: max(0, self._kept + 1 - slot.size)]

    def _is_declared(self, name: str) -> bool:
        """Return whether a declared name equals or begins with ``name``."""
        return any(other.startswith(name) for other in self._declared)

    def _may_grow(self, name: str) -> bool:
        """Return whether a longer declared name begins with ``name``."""
        return any(other != name and other.startswith(name) for other in self._declared)

    def _start(self, slot: _PartialCall) -> list[TurnEvent]:
        """Start a call. From here on its name and id are fixed (rule W8)."""
        if slot.started or slot.name is None:
            return []
        slot.started = True
        self.undecided -= 1
        known = slot.upstream_id
        slot.call_id = known if known and known not in self._taken_ids else mint_call_id()
        self._taken_ids.add(slot.call_id)
        events: list[TurnEvent] = [ToolCallStarted(slot.seq, slot.call_id, slot.name, slot.extra)]
        if slot.size and not slot.withheld:
            events.append(ToolCallDelta(slot.seq, slot.arguments))
        return events


def _repeats(slot: _PartialCall, fragment: Fragment) -> bool:
    """Return whether the fragment's arguments repeat the slot's complete value."""
    return slot.is_complete and _parse(fragment.arguments) == slot.value


def _opens_another(slot: _PartialCall, fragment: Fragment) -> bool:
    """Return whether a fragment without a known id begins a call although its index has one already."""
    if not (fragment.name and slot.name and slot.is_complete):
        return False
    return fragment.name != slot.name or not _repeats(slot, fragment)


def _merged(known: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``new`` merged into ``known``. Change neither: a frame must keep what was received."""
    merged = dict(known)
    for key, value in new.items():
        before = merged.get(key)
        if isinstance(value, dict):
            merged[key] = _merged(before if isinstance(before, dict) else {}, value)
        elif value is not None or key not in merged:
            merged[key] = value
    return merged


def _last_word(arguments: str) -> str:
    """Return the final arguments of a complete call: absent ones become ``{}``, a JSON string is unwrapped.

    Some providers leave out the arguments of a tool without parameters, or send ``null``; some encode
    arguments twice. All other text stays unchanged; the runner validates it.
    """
    text = arguments.strip()
    if text in ("", "null"):
        return "{}"
    if text.startswith('"'):
        inner = _parse(text)
        if isinstance(inner, str):
            if inner.strip() in ("", "null"):
                return "{}"
            if is_object(inner):
                return inner
    return arguments


def object_of(arguments: str) -> dict[str, Any] | None:
    """Return the JSON object that the text ``arguments`` holds; ``None`` if the text is anything else."""
    value = _parse(arguments)
    return value if isinstance(value, dict) else None


def is_object(arguments: str) -> bool:
    """Return whether the text ``arguments`` is one JSON object that every JSON reader understands alike."""
    return object_of(arguments) is not None
