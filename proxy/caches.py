"""The caches of a process, with the largest size of each in bytes.  ``/metrics`` shows them.

Memory that a client, a model or an upstream can make grow has a bound in bytes.  Each module that keeps
something from one request to the next declares it here by name, with a function that returns the present and
the largest size.  The functions are called only when ``/metrics`` is read, so a request costs nothing.  Sizes
are estimates that err upward: the lengths of the contents (text at the most that its characters take), and a
fixed sum for what Python adds to each entry.

The list belongs to the process.  It holds weak references and keeps nothing alive.  The sizes of several
caches with one name are added up.
"""

import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

__all__ = [
    "CacheSize",
    "Derived",
    "Memo",
    "Snapshot",
    "cache_sizes",
    "declare",
    "declare_lru",
    "text_bytes",
    "value_bytes",
]

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class CacheSize(NamedTuple):
    """What a cache holds, and what it holds at most, in bytes."""

    held: int
    limit: int


class _Declared:
    """The caches of a process, by the methods that tell their sizes."""

    def __init__(self) -> None:
        self._methods: list[tuple[str, weakref.WeakMethod[Callable[[], CacheSize]]]] = []
        self._functions: dict[str, tuple[_lru_cache_wrapper[Any], int]] = {}
        self._sweep_at = 64

    def note(self, name: str, size: Callable[[], CacheSize]) -> None:
        if len(self._methods) >= self._sweep_at:
            self._methods = [(each, method) for each, method in self._methods if method() is not None]
            self._sweep_at = max(64, 2 * len(self._methods))
        self._methods.append((name, weakref.WeakMethod(size)))

    def note_function(self, name: str, function: "_lru_cache_wrapper[Any]", entry_bytes: int) -> None:
        self._functions[name] = (function, entry_bytes)

    def sizes(self) -> dict[str, CacheSize]:
        found: dict[str, CacheSize] = {}
        for name, method in self._methods:
            if (size := method()) is not None:
                _add(found, name, size())
        for name, (function, entry_bytes) in self._functions.items():
            info = function.cache_info()
            most = info.maxsize or 0
            _add(found, name, CacheSize(info.currsize * entry_bytes, most * entry_bytes))
        return found


def _add(found: dict[str, CacheSize], name: str, size: CacheSize) -> None:
    before = found.get(name, CacheSize(0, 0))
    found[name] = CacheSize(before.held + size.held, before.limit + size.limit)


_DECLARED: Final = _Declared()


def declare(name: str, size: Callable[[], CacheSize]) -> None:
    """Report a cache under ``name`` for as long as it lives; ``size`` is a method of it."""
    _DECLARED.note(name, size)


def declare_lru(name: str, function: "_lru_cache_wrapper[Any]", entry_bytes: int) -> None:
    """Report what an ``lru_cache`` keeps; no entry of it, key and all, takes more than ``entry_bytes``."""
    _DECLARED.note_function(name, function, entry_bytes)


def cache_sizes() -> Mapping[str, CacheSize]:
    """Every cache of this process, in the order of their names."""
    return dict(sorted(_DECLARED.sizes().items()))


def text_bytes(texts: Iterable[str | bytes | None]) -> int:
    """What texts take in memory at most, without looking into them: four bytes a character, one a byte."""
    return sum(
        (len(text) if isinstance(text, bytes) else len(text) if text.isascii() else 4 * len(text))
        for text in texts
        if text is not None
    )


def value_bytes(value: Any) -> int:
    """What a JSON value takes in memory: an empty object is thirty times as large as on the wire."""
    total, left = 0, [value]
    while left:
        each = left.pop()
        total += sys.getsizeof(each)
        if isinstance(each, Mapping):
            left += each.keys()
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each
    return total


class Memo(Generic[_Key, _Value]):
    """What was worked out before, by what it was worked out from; all of it goes when it is too much.

    For what a handful of entries serve nearly every request with, and whose makers one cannot trust to stay
    a handful.  ``get`` is a dictionary's own.  A key is held as long as its entry, so an object that is
    equal to itself alone can be one: no other takes its place.
    """

    def __init__(self, name: str, limit: int, size_of: Callable[[_Key, _Value], int]) -> None:
        """``size_of`` an entry is its bytes, from its key and its value."""
        self._found: dict[_Key, _Value] = {}
        self._limit = limit
        self._size_of = size_of
        self._held = 0
        self.get: Final = self._found.get
        declare(name, self._cache_size)

    def __len__(self) -> int:
        return len(self._found)

    def put(self, key: _Key, value: _Value) -> _Value:
        """Keep a value under a key that has none, and give it back."""
        size = self._size_of(key, value)
        if size > self._limit:
            return value
        if self._held + size > self._limit:
            self._found.clear()
            self._held = 0
        self._found[key] = value
        self._held += size
        return value

    def _cache_size(self) -> CacheSize:
        return CacheSize(self._held, self._limit)


class Snapshot:
    """One version of something that is replaced as a whole, and what was worked out from it.

    That is kept with the version itself (see :class:`Derived`): nobody takes it for another version's, and it
    goes when the last who uses the version goes.
    """

    def __init__(self, version: int) -> None:
        self.version: Final = version
        self.memos: Final[dict[Derived[Any, Any], Memo[Any, Any]]] = {}
        self._retired = False

    def retire(self) -> None:
        """Another version has taken the place: whoever still uses this one works out anew what it needs."""
        self._retired = True
        self.memos.clear()

    def begin(self, derived: "Derived[Any, Any]", memo: "Memo[Any, Any]") -> None:
        """Keep a memo as long as this version; not once it is retired."""
        if not self._retired:
            self.memos[derived] = memo


class Derived(Generic[_Key, _Value]):
    """What is worked out from a snapshot: a memo for each version, which lives no longer than that.

    >>> offers = Derived("offers", 16 << 20, lambda key, offer: offer.kept_bytes)
    >>> offers.of(catalog).get(key)
    """

    def __init__(self, name: str, limit: int, size_of: Callable[[_Key, _Value], int]) -> None:
        """``limit`` in bytes for each version that lives; see :class:`Memo`."""
        self._name = name
        self._limit = limit
        self._size_of = size_of

    def of(self, snapshot: Snapshot) -> Memo[_Key, _Value]:
        """What was worked out from this version so far."""
        memo: Memo[_Key, _Value] | None = snapshot.memos.get(self)
        if memo is None:
            memo = Memo(self._name, self._limit, self._size_of)
            snapshot.begin(self, memo)
        return memo
