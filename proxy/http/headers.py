"""The headers of a message as two columns, and what is decided by their names once.

The same peer sends the same names again and again, with other values.  Which headers go on, which say
something of the body and what their lines look like hangs on the names alone.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import compress
from operator import itemgetter
from typing import NamedTuple, TypeVar, overload

from proxy.caches import CacheSize, declare, declare_lru

__all__ = ["Columns", "HeaderSection", "Headers", "by_names", "described"]

Headers = Sequence[tuple[str, str]]
"""Header pairs in order, names as they came; one name may stand several times."""


_MAX_KNOWN = 256
_MAX_KNOWN_CHARS = 2048
"""Of all names together: whoever sends longer ones has them looked at each time."""
_MAX_MEDIA_TYPE = 256
_ENTRY_BYTES = 4096
_CHARACTER_BYTES = 32
"""What is worked out for names grows with them: masks, lines, an expression that reads them."""

Name = TypeVar("Name", str, bytes)
Found = TypeVar("Found")


class _Known(dict[tuple[Name, ...], Found]):
    """What was worked out for names that came before; the oldest makes room."""

    def __init__(self, work_out: Callable[[tuple[Name, ...]], Found]) -> None:
        self._work_out: Callable[[tuple[Name, ...]], Found] = work_out
        declare("header_names", self._cache_size)

    def _cache_size(self) -> CacheSize:
        held = sum(_ENTRY_BYTES + _CHARACTER_BYTES * sum(map(len, names)) for names in self)
        return CacheSize(held, _MAX_KNOWN * (_ENTRY_BYTES + _CHARACTER_BYTES * _MAX_KNOWN_CHARS))

    def __missing__(self, names: tuple[Name, ...]) -> Found:
        found: Found = self._work_out(names)
        if sum(map(len, names)) <= _MAX_KNOWN_CHARS:
            if len(self) >= _MAX_KNOWN:
                del self[next(iter(self))]
            self[names] = found
        return found


def by_names(work_out: Callable[[tuple[Name, ...]], Found]) -> Callable[[tuple[Name, ...]], Found]:
    """Decorates what is a function of a message's header names, in their order; results are kept.

    ``work_out`` sees names and never a value, so that nothing secret is kept.  What it returns is shared.
    """
    return _Known(work_out).__getitem__


class Columns(NamedTuple):
    """Some headers of a section: which, and what they are called from then on."""

    names: tuple[str, ...]
    mask: tuple[bool, ...]
    take: Callable[[Sequence[str]], tuple[str, ...]]
    """Gives the values of these, of those of the whole section."""

    @classmethod
    def where(cls, names: tuple[str, ...], wanted: Callable[[str], bool]) -> "Columns":
        """Those whose name is wanted, under their names."""
        mask = tuple([wanted(name) for name in names])
        return cls(tuple(compress(names, mask)), mask, _taking(mask))


def _taking(mask: Sequence[bool]) -> Callable[[Sequence[str]], tuple[str, ...]]:
    places = [at for at, wanted in enumerate(mask) if wanted]
    if len(places) > 1:
        return itemgetter(*places)
    # One by itself would come as it is, and not as a tuple.
    return lambda values: tuple([values[at] for at in places])


class HeaderSection(Sequence[tuple[str, str]]):
    """Header pairs in order (a :data:`~proxy.upstreams.base.Headers`), kept as names and values."""

    __slots__ = ("made", "names", "values")

    def __init__(self, names: tuple[str, ...], values: Sequence[str]) -> None:
        """As many values as there are names, none of which is changed from then on.

        Raises ``ValueError`` for any other number: a value under its neighbour's name may be a secret.
        """
        if len(names) != len(values):
            raise ValueError("there are not as many values as names of headers")
        self.names = names
        self.values = values
        self.made: tuple[object, str] | None = None
        """What somebody, known by a mark, has written of this section alone, for when it is sent again."""

    @classmethod
    def of(cls, headers: Headers) -> "HeaderSection":
        """Pairs in this form; whoever may be given a section as well looks before asking."""
        return cls(tuple([name for name, _ in headers]), [value for _, value in headers])

    def only(self, columns: Columns) -> "HeaderSection":
        """Those of some columns, which were worked out for these names."""
        return HeaderSection(columns.names, columns.take(self.values))

    def lines(self) -> str:
        """The header lines of a message, each with its line end.  The values are not checked."""
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

    __hash__ = None  # type: ignore[assignment]  # Equal to lists, which have none.


@by_names
def _around_values(names: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of some headers, cut where values belong, with a place for each."""
    parts = [""]
    for name in names:
        parts[-1] += f"{name}: "
        parts += ["", "\r\n"]
    return tuple(parts)


def described(headers: Headers) -> tuple[str, str]:
    """A body's media type, without parameters, and its sole content coding, both in lower case.

    "" stands for what is absent.  Several codings count as one unknown, in one line or in several.
    """
    section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
    kind_at, codings_at = _describing(section.names)
    kind = "" if kind_at is None else _media_type(section.values[kind_at])
    return kind, _coding([section.values[at] for at in codings_at]) if codings_at else ""


@by_names
def _describing(names: tuple[str, ...]) -> tuple[int | None, Sequence[int]]:
    """Where the first ``Content-Type`` and each ``Content-Encoding`` stand."""
    low = [name.lower() for name in names]
    kind = low.index("content-type") if "content-type" in low else None
    return kind, [at for at, name in enumerate(low) if name == "content-encoding"]


def _coding(lines: Sequence[str]) -> str:
    said = [coding.strip() for coding in ",".join(lines).lower().split(",")]
    return ", ".join([coding for coding in said if coding not in ("", "identity")])


def _media_type(value: str) -> str:
    return _known_media_type(value) if len(value) <= _MAX_MEDIA_TYPE else _known_media_type.__wrapped__(value)


@lru_cache(maxsize=256)
def _known_media_type(value: str) -> str:
    return value.split(";")[0].strip().lower()


declare_lru("media_types", _known_media_type, 400 + 2 * _MAX_MEDIA_TYPE)
