"""The headers of a message as two columns, with results that depend only on names computed once.

A peer sends the same names again and again, with other values. Only the names decide which headers go on,
which describe the body, and what their lines look like.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import compress
from operator import itemgetter
from typing import NamedTuple, TypeVar, overload

from proxy.base.caches import CacheSize, declare, declare_lru

Headers = Sequence[tuple[str, str]]
"""Header pairs in order, with names as they came; a name may occur several times."""


_MAX_KNOWN = 256
_MAX_KNOWN_CHARS = 2048
"""The most characters of all names together. Results for longer names are computed each time."""
_MAX_MEDIA_TYPE = 256
_ENTRY_BYTES = 4096
_CHARACTER_BYTES = 32
"""Results grow with the names: masks, lines, a regular expression that reads them."""

Name = TypeVar("Name", str, bytes)
Found = TypeVar("Found")


class _Known(dict[tuple[Name, ...], Found]):
    """A cache of results by names; the oldest entry makes room."""

    def __init__(self, work_out: Callable[[tuple[Name, ...]], Found]) -> None:
        self._work_out: Callable[[tuple[Name, ...]], Found] = work_out
        declare("header_names", self._cache_size)

    def _cache_size(self) -> CacheSize:
        held = sum(_ENTRY_BYTES + _CHARACTER_BYTES * sum(map(len, names)) for names in self)
        return CacheSize(held, _MAX_KNOWN * (_ENTRY_BYTES + _CHARACTER_BYTES * _MAX_KNOWN_CHARS))

    def __missing__(self, names: tuple[Name, ...]) -> Found:
        facts: Found = self._work_out(names)
        if sum(map(len, names)) <= _MAX_KNOWN_CHARS:
            if len(self) >= _MAX_KNOWN:
                del self[next(iter(self))]
            self[names] = facts
        return facts


def by_names(work_out: Callable[[tuple[Name, ...]], Found]) -> Callable[[tuple[Name, ...]], Found]:
    """Cache a function of a message's header names in their order. Use it as a decorator.

    ``work_out`` sees names and never a value, so the cache holds no secret. Its result is shared.
    """
    return _Known(work_out).__getitem__


class Columns(NamedTuple):
    """A selection of the headers of a section, with their names in the result."""

    names: tuple[str, ...]
    mask: tuple[bool, ...]
    take: Callable[[Sequence[str]], tuple[str, ...]]
    """Selects the values of these headers from the values of the whole section."""

    @classmethod
    def where(cls, names: tuple[str, ...], wanted: Callable[[str], bool]) -> "Columns":
        """Select the headers whose name is wanted; they keep their names."""
        mask = tuple([wanted(name) for name in names])
        return cls(tuple(compress(names, mask)), mask, _taking(mask))


def _taking(mask: Sequence[bool]) -> Callable[[Sequence[str]], tuple[str, ...]]:
    places = [at for at, wanted in enumerate(mask) if wanted]
    if len(places) > 1:
        return itemgetter(*places)
    # For one index, ``itemgetter`` would return the value itself and not a tuple.
    return lambda values: tuple([values[at] for at in places])


class HeaderSection(Sequence[tuple[str, str]]):
    """Header pairs in order (:data:`Headers`), kept as names and values."""

    __slots__ = ("cached_lines", "names", "values")

    def __init__(self, names: tuple[str, ...], values: Sequence[str]) -> None:
        """There are as many values as names; neither may change afterwards.

        Raises ``ValueError`` for another number of values: under a neighbour's name a secret could go out.
        """
        if len(names) != len(values):
            raise ValueError("there are not as many values as names of headers")
        self.names = names
        self.values = values
        self.cached_lines: tuple[object, str] | None = None
        """The lines that one owner wrote for this section, to reuse them; the first entry is the owner's
        mark."""

    @classmethod
    def of(cls, headers: Headers) -> "HeaderSection":
        """Build a section from pairs. Callers that may have a section already check this first."""
        return cls(tuple([name for name, _ in headers]), [value for _, value in headers])

    def only(self, columns: Columns) -> "HeaderSection":
        """Select some columns, which were computed for these names."""
        return HeaderSection(columns.names, columns.take(self.values))

    def lines(self) -> str:
        """Build the header lines of a message, each with its line end. The values are not checked."""
        parts = [*_around_values(self.names)]
        parts[1::2] = self.values
        return "".join(parts)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.names, self.values, strict=True)

    @overload
    def __getitem__(self, at: int) -> tuple[str, str]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[str, str]]: ...
    def __getitem__(self, at: int | slice) -> tuple[str, str] | Sequence[tuple[str, str]]:
        return list(self)[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # It equals lists, which have no hash.


@by_names
def _around_values(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the text around the values of some headers, with an empty string in the place of each value."""
    parts = [""]
    for name in names:
        parts[-1] += f"{name}: "
        parts += ["", "\r\n"]
    return tuple(parts)


def media_type_and_coding(headers: Headers) -> tuple[str, str]:
    """Return a body's media type, without parameters, and its only content coding, both in lower case.

    An absent value is "". Several codings, in one line or in several, count as one unknown coding.
    """
    section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
    kind_at, codings_at = _describing(section.names)
    kind = "" if kind_at is None else _media_type(section.values[kind_at])
    return kind, _coding([section.values[at] for at in codings_at]) if codings_at else ""


def is_encoded(headers: Headers) -> bool:
    """Return whether a body is encoded in a way that the proxy cannot decode."""
    section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
    codings_at = _describing(section.names)[1]
    return bool(codings_at) and _coding([section.values[at] for at in codings_at]) != ""


@by_names
def _describing(names: tuple[str, ...]) -> tuple[int | None, Sequence[int]]:
    """Return the index of the first ``Content-Type``, and those of each ``Content-Encoding``."""
    low = [name.lower() for name in names]
    kind = low.index("content-type") if "content-type" in low else None
    return kind, [at for at, name in enumerate(low) if name == "content-encoding"]


def _coding(lines: Sequence[str]) -> str:
    codings = [coding.strip() for coding in ",".join(lines).lower().split(",")]
    return ", ".join([coding for coding in codings if coding not in ("", "identity")])


def _media_type(value: str) -> str:
    return _known_media_type(value) if len(value) <= _MAX_MEDIA_TYPE else _known_media_type.__wrapped__(value)


@lru_cache(maxsize=256)
def _known_media_type(value: str) -> str:
    return value.split(";")[0].strip().lower()


declare_lru("media_types", _known_media_type, 400 + 2 * _MAX_MEDIA_TYPE)
