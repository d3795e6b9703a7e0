"""Client keys in memory: those that a process makes for itself, gone when it ends."""

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from proxy.caches import CacheSize, declare, text_bytes
from proxy.errors import StoreUnavailable
from proxy.records import ClientKey, KeySet

__all__ = ["MemoryKeys"]

_PEPPER: Final = "memory"
_MAX_OWNERS: Final = 100_000
_MAX_OWNER_BYTES: Final = 32 * 2**20
_OVERHEAD_BYTES: Final = 300
_MAX_MARKS: Final = 10_000


class MemoryKeys:
    """:class:`~proxy.store.base.KeyStore` without a store behind it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._now = clock
        self._pepper = secrets.token_bytes(32)
        self._keys: dict[str, ClientKey] = {}
        self._keys_version = 0
        self._noted = False
        self._owners: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._owner_bytes = 0
        self._marks: dict[str, float] = {}
        declare("response_owners", self._owners_size)

    @property
    def keys_told(self) -> int:
        """The version itself."""
        return self._keys_version

    async def keys_version(self) -> int:
        """How often a key has changed."""
        return self._keys_version

    async def read_keys(self) -> KeySet:
        """All keys, the oldest first."""
        keys = tuple(sorted(self._keys.values(), key=lambda key: (key.created_at, key.id)))
        ever_made = bool(keys) or self._noted
        return KeySet(self._keys_version, keys, {_PEPPER: self._pepper}, ever_made=ever_made)

    async def hash_key(self) -> tuple[str, bytes]:
        """A key of this process's own."""
        return _PEPPER, self._pepper

    async def put_key(self, key: ClientKey) -> None:
        """Keep a new key; raises :class:`~proxy.errors.StoreUnavailable` for a name that is taken."""
        if any(other.name == key.name and other.revoked_at is None for other in self._keys.values()):
            raise StoreUnavailable("the record refuses the row (a key of this name is there)")
        self._keys[key.id] = key
        self._keys_version += 1

    async def note_keys(self) -> None:
        """Remember it for as long as the process lives."""
        self._noted = True

    async def revoke_key(self, key_id: str) -> bool:
        """Revoke a key; whether there was one to revoke."""
        key = self._keys.get(key_id)
        if key is None or key.revoked_at is not None:
            return False
        self._keys[key_id] = replace(key, revoked_at=self._now())
        self._keys_version += 1
        return True

    async def mark_once(self, name: str, until: float) -> bool:
        """Leave a mark; whether there was none.  Raises StoreUnavailable where too many are there."""
        now = self._now()
        self._marks = {other: ends for other, ends in self._marks.items() if ends > now}
        if name in self._marks:
            return False
        if len(self._marks) >= _MAX_MARKS:
            raise StoreUnavailable("the record in memory has no room for another mark")
        self._marks[name] = until
        return True

    async def is_marked(self, name: str) -> bool:
        """Whether there is that mark."""
        return self._marks.get(name, 0.0) > self._now()

    def put_owner(self, response_id: str, caller: str, settled: Callable[[bool], None] | None = None) -> None:
        """Note whose a response is; the oldest notes make room."""
        place = (response_id, caller)
        if place not in self._owners:
            self._owner_bytes += _OVERHEAD_BYTES + text_bytes(place)
        self._owners[place] = None
        self._owners.move_to_end(place)
        while len(self._owners) > _MAX_OWNERS or self._owner_bytes > _MAX_OWNER_BYTES:
            gone, _ = self._owners.popitem(last=False)
            self._owner_bytes -= _OVERHEAD_BYTES + text_bytes(gone)
        if settled is not None:
            settled(True)

    async def owns_response(self, response_id: str, caller: str) -> bool:
        """Whether that was noted."""
        return (response_id, caller) in self._owners

    def _owners_size(self) -> CacheSize:
        return CacheSize(self._owner_bytes, _MAX_OWNER_BYTES)
