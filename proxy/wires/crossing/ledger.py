"""Records the fields that a translated request body lacks, so that none is lost unreported."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import orjson
from msgspec import Struct, field

from proxy.base.conversation import ASPECT_DEFAULTS, Conversation, Native
from proxy.base.errors import RequestError
from proxy.wires.crossing.tables import FieldTable, general_path

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_DIGEST: Final = 8


class LeftOut(Struct, frozen=True):
    """A field that the body lacks or has with another value; ``field`` is its path in the client's request,
    without indices."""

    field: str
    reason: str


class Written(Struct, frozen=True):
    """A request body.

    ``left_out`` are the fields that it lacks or has with another value, each once. ``renamed`` are the tool
    names that the upstream does not accept: the name in the body → the client's name.
    """

    body: bytes
    left_out: tuple[LeftOut, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)


class Ledger:
    """A record of the fields that a body lacks, kept while the body is written.

    With ``strict`` nothing may be left out. Every method raises :class:`RequestError` with status 400, which
    names the field of the client's request, for a field that must not be left out.
    """

    def __init__(self, table: FieldTable, names: Mapping[str, str], *, strict: bool = False) -> None:
        self._table = table
        self._names = names
        self._strict = strict
        self._left_out: dict[str, str] = {}
        self._renamed: dict[str, str] = {}

    def refuse(self, path: str, reason: str) -> RequestError:
        """Return the error for a field without which the request would mean something else."""
        said = f"{path}: an upstream that speaks {self._table.dialect} cannot be asked for this. {reason}"
        return RequestError(400, said, param=path, code="not_translatable")

    def omit(self, path: str, reason: str) -> None:
        """Leave a field out, and record that."""
        if self._strict:
            raise self.refuse(path, reason)
        self._left_out.setdefault(general_path(path), reason)

    def change(self, path: str, reason: str) -> None:
        """Record that a field has another value than the client's, also if nothing may be left out."""
        self._left_out.setdefault(general_path(path), reason)

    def check(self, conversation: Conversation, said: Collection[str] = ()) -> None:
        """Leave out or refuse each aspect that the dialect has no form for, except those in ``said``."""
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
        """Return whether the same client field also asks for an aspect that this dialect has a form for.

        Such a field is not left out: Ollama's ``think`` sets the effort, and also shows thoughts.
        """
        return any(
            rule.handling == "translated"
            and self._names.get(aspect) == path
            and attrgetter(aspect)(conversation) is not None
            for aspect, rule in self._table.written.items()
        )

    def name_of(self, aspect: str) -> str:
        """Return the client's name for an aspect of the request."""
        return self._names.get(aspect, aspect)

    def put_natives(self, found: Iterable[Native], holder: dict[str, Any]) -> None:
        """Put native fields of this dialect back into an object, and leave out or refuse those of others."""
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

    def native_fragment(self, found: Sequence[Native]) -> orjson.Fragment | None:
        """Return a part, item or tool that only one dialect has; ``None`` if this dialect lacks it."""
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
        """Return a tool's name that the dialect accepts: letters, digits, ``_``, ``-``, at most ``most``."""
        if len(name) <= most and _NAME.fullmatch(name):
            return name
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: most - _DIGEST - 1]
        written = f"{plain}_{_digest(name)[:_DIGEST]}"
        self._renamed[written] = name
        return written

    def close(self, body: dict[str, Any]) -> Written:
        """Return the body with the record of what it lacks."""
        left_out = tuple(LeftOut(path, reason) for path, reason in self._left_out.items())
        return Written(orjson.dumps(body), left_out, self._renamed)


def without_none(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an object that are not ``None``."""
    return {name: value for name, value in asked.items() if value is not None}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def shortened(text: str, most: int) -> str:
    """Return a digest of at most ``most`` characters, always the same for the same text."""
    return _digest(text)[:most]


def fitting_id(call_id: str, most: int, allowed: re.Pattern[str] | None = None) -> str:
    """Return a call id that the dialect accepts: always the same for the same id, so results match calls."""
    if 0 < len(call_id) <= most and (allowed is None or allowed.fullmatch(call_id)):
        return call_id
    return f"call_{_digest(call_id)[: most - 5]}"
