"""What a request body goes without, so that nothing is lost without a word."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

import orjson

from proxy.conversation import ASPECT_DEFAULTS, Conversation, Native
from proxy.errors import RequestError
from proxy.wires.crossing.tables import FieldTable, general_path

__all__ = ["Ledger", "LeftOut", "Written", "fitting_id", "without_none"]

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_DIGEST: Final = 8


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A field that the body goes without; ``field`` is its path in the client's request, without numbers."""

    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """A request body.

    ``left_out`` is what it goes without, each field once.  ``renamed`` are the names of tools that the
    upstream does not take: how they stand in the body → how the client wrote them.
    """

    body: bytes
    left_out: tuple[LeftOut, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)


class Ledger:
    """What a body that is being written goes without.

    With ``strict`` nothing may be left out.  Every method raises :class:`RequestError` with status 400,
    which names the field of the client's request, for what cannot be left out.
    """

    def __init__(self, table: FieldTable, names: Mapping[str, str], *, strict: bool = False) -> None:
        self._table = table
        self._names = names
        self._strict = strict
        self._left_out: dict[str, str] = {}
        self._renamed: dict[str, str] = {}

    def refuse(self, path: str, reason: str) -> RequestError:
        """The error for a field without which the request would be another."""
        said = f"{path}: an upstream that speaks {self._table.dialect} cannot be asked for this. {reason}"
        return RequestError(400, said, param=path, code="not_translatable")

    def omit(self, path: str, reason: str) -> None:
        """Go without a field, and say so."""
        if self._strict:
            raise self.refuse(path, reason)
        self._left_out.setdefault(general_path(path), reason)

    def check(self, conversation: Conversation, said: Collection[str] = ()) -> None:
        """See to every aspect that the dialect has no form for, but for those that were ``said`` still."""
        for aspect, rule in self._table.written.items():
            if rule.handling in ("translated", "unneeded") or aspect in said:
                continue
            value = attrgetter(aspect)(conversation)
            if value is None or value == () or value == ASPECT_DEFAULTS.get(aspect, ()):
                continue
            path = self.name_of(aspect)
            if rule.handling == "refused":
                raise self.refuse(path, rule.reason)
            if not self._is_written(path, conversation):
                self.omit(path, rule.reason)

    def _is_written(self, path: str, conversation: Conversation) -> bool:
        """Whether the same field of the client's also asks for something that this dialect has a form for.

        Such a field is not left out: Ollama's ``think`` sets the effort, and shows thoughts as well.
        """
        return any(
            rule.handling == "translated"
            and self._names.get(aspect) == path
            and attrgetter(aspect)(conversation) is not None
            for aspect, rule in self._table.written.items()
        )

    def name_of(self, aspect: str) -> str:
        """The client's name for an aspect of the request."""
        return self._names.get(aspect, aspect)

    def natives(self, found: Iterable[Native], holder: dict[str, Any]) -> None:
        """Put back into an object what this dialect alone can say, and go without what others can."""
        for native in found:
            if native.dialect != self._table.dialect:
                self._lose(native)
                continue
            target = holder
            for key in native.keys[:-1]:
                if not isinstance(target.get(key), dict):
                    target[key] = {}
                target = target[key]
            target[native.keys[-1]] = orjson.Fragment(native.value)

    def whole(self, found: Sequence[Native]) -> orjson.Fragment | None:
        """A part, item or tool that one dialect alone knows; ``None`` where this one goes without it."""
        for native in found:
            if native.dialect == self._table.dialect:
                return orjson.Fragment(native.value)
            self._lose(native)
        return None

    def _lose(self, native: Native) -> None:
        if native.loss == "refused":
            raise self.refuse(native.path, native.reason)
        if native.loss == "omitted":
            self.omit(native.path, native.reason)

    def tool_name(self, name: str, most: int = 64) -> str:
        """A tool's name as the dialect takes it: letters, digits, ``_``, ``-``, and no more than ``most``."""
        if len(name) <= most and _NAME.fullmatch(name):
            return name
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: most - _DIGEST - 1]
        written = f"{plain}_{_digest(name)[:_DIGEST]}"
        self._renamed[written] = name
        return written

    def close(self, body: dict[str, Any]) -> Written:
        """The body, with what it goes without."""
        left_out = tuple(LeftOut(path, reason) for path, reason in self._left_out.items())
        return Written(orjson.dumps(body), left_out, self._renamed)


def without_none(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The members of an object that are asked for."""
    return {name: value for name, value in asked.items() if value is not None}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def fitting_id(call_id: str, most: int, allowed: re.Pattern[str] | None = None) -> str:
    """A call's id as a dialect takes it: always the same one for the same id, so that a result finds it."""
    if 0 < len(call_id) <= most and (allowed is None or allowed.fullmatch(call_id)):
        return call_id
    return f"call_{_digest(call_id)[: most - 5]}"
