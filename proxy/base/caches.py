"""The caches of a process, with the largest size of each in bytes. ``/metrics`` shows them.

Memory that a client, a model or an upstream can make grow has a bound in bytes. Each module that keeps
something from one request to the next declares it here by name, with a function that returns its present and
its largest size. These functions are called only when ``/metrics`` is read, so a request costs nothing.
Sizes are estimates that err upward. They add the lengths of the contents, with text counted at the most
memory that its characters can take, and a fixed sum for what Python adds to each entry.

The list belongs to the process. It holds weak references and keeps nothing alive. The sizes of several
caches with one name are added up.
"""

import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class CacheSize(NamedTuple):
    """The present size of a cache and its largest size, in bytes."""

    held: int
    limit: int


class _Declared:
    """The declared caches of a process, with the functions that return their sizes."""

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
    """Report a cache under ``name`` for as long as it lives; ``size`` is a method of the cache."""
    _DECLARED.note(name, size)


def declare_lru(name: str, function: "_lru_cache_wrapper[Any]", entry_bytes: int) -> None:
    """Report an ``lru_cache``; no entry of it takes more than ``entry_bytes``, including its key."""
    _DECLARED.note_function(name, function, entry_bytes)


def cache_sizes() -> Mapping[str, CacheSize]:
    """Return the sizes of all caches of this process, sorted by name."""
    return dict(sorted(_DECLARED.sizes().items()))


def text_bytes(texts: Iterable[str | bytes | None]) -> int:
    """Return the most memory that these texts can take, without reading them.

    ASCII text and bytes count one byte for each character, other text four.
    """
    return sum(
        (len(text) if isinstance(text, bytes) else len(text) if text.isascii() else 4 * len(text))
        for text in texts
        if text is not None
    )


def value_bytes(value: Any) -> int:
    """Return the memory that a JSON value takes: an empty object takes thirty times its size on the wire."""
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
    """A bounded cache of computed values. It drops all entries when they grow too large.

    Use it where a handful of entries serve nearly every request, but an outsider could cause many more.
    ``get`` is the method of the dictionary itself. An entry holds its key, so a key may be an object that
    is equal only to itself: no other object can take its identity.
    """

    def __init__(self, name: str, limit: int, size_of: Callable[[_Key, _Value], int]) -> None:
        """``size_of`` returns the bytes of an entry from its key and its value."""
        self._found: dict[_Key, _Value] = {}
        self._limit = limit
        self._size_of = size_of
        self._held = 0
        self.get: Final = self._found.get
        declare(name, self._cache_size)

    def __len__(self) -> int:
        return len(self._found)

    def put(self, key: _Key, value: _Value) -> _Value:
        """Keep a value under a key that has none, and return the value."""
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
    """One version of something that is replaced as a whole, with the values computed from it.

    The values are kept with the version itself (see :class:`Derived`). So they cannot be mistaken for those
    of another version, and they are freed together with it.
    """

    def __init__(self, version: int) -> None:
        self.version: Final = version
        self.memos: Final[dict[Derived[Any, Any], Memo[Any, Any]]] = {}
        self._retired = False

    def retire(self) -> None:
        """Drop the computed values because a newer version exists; users of this one compute them anew."""
        self._retired = True
        self.memos.clear()

    def begin(self, derived: "Derived[Any, Any]", memo: "Memo[Any, Any]") -> None:
        """Keep a memo as long as this version lives; do nothing if it is retired."""
        if not self._retired:
            self.memos[derived] = memo


class Derived(Generic[_Key, _Value]):
    """Values that are computed from a snapshot: one memo for each version, which lives no longer than it.

    >>> offers = Derived("offers", 16 << 20, lambda key, offer: offer.kept_bytes)
    >>> offers.of(catalog).get(key)
    """

    def __init__(self, name: str, limit: int, size_of: Callable[[_Key, _Value], int]) -> None:
        """``limit`` is in bytes, for each version that lives; see :class:`Memo`."""
        self._name = name
        self._limit = limit
        self._size_of = size_of

    def of(self, snapshot: Snapshot) -> Memo[_Key, _Value]:
        """Return the memo of the values computed from this version."""
        memo: Memo[_Key, _Value] | None = snapshot.memos.get(self)
        if memo is None:
            memo = Memo(self._name, self._limit, self._size_of)
            snapshot.begin(self, memo)
        return memo
