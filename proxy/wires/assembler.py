"""Tool calls put together from their fragments: the one place where that is done (rule W7).

Providers disagree on everything about a streamed call: whether it has an index, whose index it is,
whether the id comes once, always, never or blank, whether the name comes whole.  The rules here are
those of the wire notes (section B.0), each for a provider that was seen to need it.  State is keyed
by the order of first sight, never by an id: ids repeat.
"""

import json
import secrets
import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.errors import WireError
from proxy.events import ToolCall, ToolCallDelta, ToolCallFinished, ToolCallStarted, TurnEvent

__all__ = ["Fragment", "ToolCallAssembler", "is_object", "mint_call_id"]

_ALPHABET = string.ascii_letters + string.digits
_MAX_CALLS = 256
_MAX_TURN_BYTES = 32 * 1024 * 1024


def mint_call_id() -> str:
    """A call id of the shape OpenAI gives."""
    return "call_" + "".join(secrets.choice(_ALPHABET) for _ in range(24))


@dataclass(frozen=True, slots=True)
class Fragment:
    """One piece of one call with the blanks taken out: absent is ``None`` or empty, never ``""``.

    ``whole`` says that the arguments came as a JSON object and not as text.
    """

    index: int | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""
    whole: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    legacy: bool = False
    item_id: str = ""


@dataclass(slots=True)
class _Slot:
    """A call in the making."""

    seq: int
    index: int | None
    call_id: str | None = None
    name: str | None = None
    parts: list[str] = field(default_factory=list)
    size: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    started: bool = False
    legacy: bool = False
    item_id: str = ""

    @property
    def arguments(self) -> str:
        if len(self.parts) > 1:
            self.parts[:] = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    @property
    def is_complete(self) -> bool:
        """Whether the arguments so far are one whole JSON value."""
        return self.size > 0 and _parse(self.arguments) is not _NOT_JSON


_NOT_JSON = object()


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOT_JSON


class ToolCallAssembler:
    """Fragments in, calls out, for one turn.

    ``declared`` are all names the model was offered, the client's and ours.  A call is announced
    with :class:`ToolCallStarted` only when its name can no longer grow into another declared one.
    ``kept_bytes`` bounds what is kept of the arguments of a call that ``is_hidden`` from the client:
    longer ones will be refused by their size, so only that they are longer matters.

    Raises :class:`WireError` for a turn with more calls or larger calls than any model makes.
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
        self._slots: list[_Slot] = []
        self._by_id: dict[str, list[_Slot]] = {}
        self._by_index: dict[int, _Slot] = {}
        self._taken_ids: set[str] = set()
        self._bytes = 0

    @property
    def undecided(self) -> int:
        """How many calls have begun whose name is not certain yet."""
        return sum(not slot.started for slot in self._slots)

    def __bool__(self) -> bool:
        return bool(self._slots)

    def add(self, fragment: Fragment) -> list[TurnEvent]:
        """Take one fragment; the events it causes, in order."""
        slot = self._place(fragment)
        self._bytes += len(fragment.arguments)
        if self._bytes > _MAX_TURN_BYTES:
            raise WireError(f"the tool calls of one turn are larger than {_MAX_TURN_BYTES} bytes")
        if fragment.call_id and not slot.call_id:
            slot.call_id = fragment.call_id
            self._by_id.setdefault(fragment.call_id, []).append(slot)
        if fragment.name:
            self._merge_name(slot, fragment.name)
        _merge_extra(slot.extra, fragment.extra)
        text = self._merge_arguments(slot, fragment)
        events: list[TurnEvent] = []
        for earlier in self._slots[: slot.seq]:
            events += self._start(earlier)
        if slot.started:
            if text or fragment.extra:
                events.append(ToolCallDelta(slot.seq, text, fragment.extra))
        elif slot.size or not self._may_grow(slot.name):
            events += self._start(slot)
        return events

    def finish(self) -> list[TurnEvent]:
        """The turn has ended: every named call, decided and whole.

        A call that never got a name cannot be answered and is left out.
        """
        events: list[TurnEvent] = []
        index = 0
        for slot in self._slots:
            if slot.name is None:
                continue
            events += self._start(slot)
            arguments = _last_word(slot.arguments)
            call = ToolCall(slot.call_id or "", slot.name, arguments, index, slot.item_id, slot.legacy)
            events.append(ToolCallFinished(slot.seq, call))
            index += 1
        return events

    def extra(self, seq: int) -> Mapping[str, Any]:
        """The unknown fields of a call's fragments, merged: thought signatures and their like."""
        return self._slots[seq].extra

    def _place(self, fragment: Fragment) -> _Slot:
        """The slot a fragment belongs to, a new one if it opens a call."""
        if fragment.legacy:
            return self._slots[-1] if self._slots else self._open(fragment)
        if fragment.call_id:
            slot = self._with_id(fragment) if fragment.call_id in self._by_id else self._adopting(fragment)
        elif fragment.index is not None:
            slot = self._by_index.get(fragment.index)
            if slot is not None and fragment.name and slot.name and slot.is_complete:
                slot = None
        else:
            slot = self._anonymous(fragment)
        return slot or self._open(fragment)

    def _with_id(self, fragment: Fragment) -> _Slot | None:
        """A fragment whose id was seen before in this turn."""
        same = self._by_id[fragment.call_id or ""]
        slot = next((s for s in reversed(same) if s.index == fragment.index), same[-1])
        if not fragment.name:
            return slot
        elsewhere = None not in (fragment.index, slot.index) and fragment.index != slot.index
        again = slot.is_complete and (fragment.name != slot.name or _differs(slot, fragment))
        return None if elsewhere or again else slot

    def _adopting(self, fragment: Fragment) -> _Slot | None:
        """A fragment with a new id: a new call, unless its index says it goes on with an old one."""
        if fragment.index is None:
            # Some gateways mint an id for every fragment: without a name it cannot open a call.
            latest = self._slots[-1] if self._slots else None
            return latest if latest and not fragment.name and not latest.is_complete else None
        slot = self._by_index.get(fragment.index)
        if slot is None:
            return None
        restarts = slot.is_complete and fragment.arguments.lstrip().startswith("{")
        if slot.call_id is None:
            return None if fragment.name and slot.name and slot.is_complete else slot
        return None if fragment.name or restarts else slot

    def _anonymous(self, fragment: Fragment) -> _Slot | None:
        """A fragment with neither id nor index."""
        latest = self._slots[-1] if self._slots else None
        if latest is None or not fragment.name:
            return latest
        name = latest.name or ""
        goes_on = name == fragment.name or name + fragment.name in self._declared
        return latest if goes_on and latest.size == 0 else None

    def _open(self, fragment: Fragment) -> _Slot:
        if len(self._slots) >= _MAX_CALLS:
            raise WireError(f"more than {_MAX_CALLS} tool calls in one turn")
        slot = _Slot(len(self._slots), fragment.index, legacy=fragment.legacy, item_id=fragment.item_id)
        self._slots.append(slot)
        if fragment.index is not None:
            self._by_index[fragment.index] = slot
        return slot

    def _merge_name(self, slot: _Slot, name: str) -> None:
        if slot.name is None:
            slot.name = name
        elif slot.name == name or slot.size or slot.started:
            return
        elif name.startswith(slot.name):
            slot.name = name
        elif slot.name + name in self._declared or self._may_grow(slot.name + name):
            slot.name += name

    def _merge_arguments(self, slot: _Slot, fragment: Fragment) -> str:
        """Append the fragment's arguments; the text that was really new."""
        text = fragment.arguments
        if not text:
            return ""
        if text.lstrip().startswith("{") and slot.size:
            so_far = slot.arguments
            if so_far.strip() == "{}" and not fragment.name and text.strip() != "{}":
                # A placeholder sent before the real arguments.
                slot.parts, slot.size = [], 0
            elif so_far.rstrip().endswith("}") and not _differs(slot, fragment):
                return ""
        slot.size += len(text)
        if slot.size <= self._kept or not (slot.name and self._is_hidden(slot.name)):
            slot.parts.append(text)
        elif not slot.parts or len(slot.arguments) <= self._kept:
            # Enough to see that it is too large, and never valid JSON by accident.
            slot.parts.append(text[: self._kept + 1 - len(slot.arguments)])
        return text

    def _may_grow(self, name: str | None) -> bool:
        """Whether a longer declared name begins with this one."""
        if name is None:
            return True
        return any(other != name and other.startswith(name) for other in self._declared)

    def _start(self, slot: _Slot) -> list[TurnEvent]:
        """Decide a call: its name and id are fixed from here on (rule W8)."""
        if slot.started or slot.name is None:
            return []
        slot.started = True
        if not slot.call_id or slot.call_id in self._taken_ids:
            slot.call_id = mint_call_id()
        self._taken_ids.add(slot.call_id)
        events: list[TurnEvent] = [ToolCallStarted(slot.seq, slot.call_id, slot.name, dict(slot.extra))]
        if slot.size:
            events.append(ToolCallDelta(slot.seq, slot.arguments))
        return events


def _differs(slot: _Slot, fragment: Fragment) -> bool:
    """Whether the fragment's arguments are another JSON value than the slot's whole one."""
    if not fragment.arguments:
        return False
    if fragment.arguments == slot.arguments:
        return False
    known, new = _parse(slot.arguments), _parse(fragment.arguments)
    return known is _NOT_JSON or new is _NOT_JSON or known != new


def _merge_extra(known: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(known.get(key), dict):
            _merge_extra(known[key], value)
        elif value is not None:
            known[key] = dict(value) if isinstance(value, dict) else value


def _last_word(arguments: str) -> str:
    """The arguments of a whole call: none at all is an empty object, a JSON string is opened.

    Providers leave out the arguments of a tool that takes none, or send ``null``; some encode
    them twice.  Anything else stays as it came and is the runner's to judge.
    """
    text = arguments.strip()
    if text in ("", "null"):
        return "{}"
    if text.startswith('"'):
        inner = _parse(text)
        if isinstance(inner, str):
            if inner.strip() in ("", "null"):
                return "{}"
            if isinstance(_parse(inner), dict):
                return inner
    return arguments


def is_object(arguments: str) -> bool:
    """Whether ``arguments`` is the text of one JSON object that every reader reads alike."""
    try:
        return isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False
