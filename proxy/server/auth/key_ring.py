"""The valid client keys, checked against the credential that a client sends.

Keys of the configuration exist from the start. Keys of the store are held in memory and read again after the
store was notified of a change. So every worker refuses a revoked key from the next request on, and the check
itself needs no wait. A notification may be lost, so the store's version is also queried, at most once a
second and only when a request comes. If the store does not answer, its keys stay valid for a few seconds.
After that nobody who needs one is let in; after a notified change this holds at once.
"""

import asyncio
import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct
from pydantic import ValidationError

from proxy.base.errors import RequestError, StoreError
from proxy.base.hard_timeout import ends_in_time
from proxy.config.key_grants import KeyGrants, key_limits
from proxy.records.rows import ClientKey
from proxy.rights.callers import Caller, Rights
from proxy.store.base import LOOK_UP_S, KeySource

# Imported at its use: it takes 8 MiB of each process, and most keys mint no tokens.
if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

DECLARED = "config:"
"""The prefix of the ids of keys that the configuration declares."""

_SECRET_BYTES = 32
_CHECK_EVERY_S = 1.0
_AGAIN_WITHIN_S = 0.1
"""The most seconds that a request waits for a record that did not answer the previous one."""
_MOST_CHECKS = 3
"""The most checks for one request: a check that began before a notified change is repeated."""

_BLIND_S = 10.0
"""For how many seconds the store's keys stay valid after they were last confirmed."""


def new_secret() -> str:
    """Return a new secret of 256 random bits."""
    return f"tr_{secrets.token_urlsafe(_SECRET_BYTES)}"


def signer(secret: str) -> "Ed25519PrivateKey":
    """Return the signer of a key's tokens, derived from the key's secret. The record has only the public
    half, so its readers cannot forge tokens."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    seed = hashlib.blake2b(secret.encode(), digest_size=32, person=b"toolrelay-mint").digest()
    return Ed25519PrivateKey.from_private_bytes(seed)


def _digest(secret: str, hash_key: bytes) -> bytes:
    return hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), key=hash_key, digest_size=32).digest()


def new_key(
    name: str, secret: str, grants: KeyGrants, hash_key: tuple[str, bytes], *, now: float
) -> ClientKey:
    """Make a key in the form that the store keeps."""
    return ClientKey(
        id=f"key_{secrets.token_hex(8)}",
        name=name,
        digest=_digest(secret, hash_key[1]),
        hashed_by=hash_key[0],
        grants=grants.stored(),
        created_at=now,
        verify_key=signer(secret).public_key().public_bytes_raw() if grants.mint else None,
        expires_at=grants.expires,
    )


class Key(Struct, frozen=True):
    """A key that can be checked. ``verify_key`` is ``None`` if it may not mint tokens.

    ``approves`` are patterns of the tools whose calls it may approve.
    """

    caller: Caller
    name: str
    digest: bytes
    admin: bool
    verify_key: "Ed25519PublicKey | None"
    expires_at: float | None
    approves: tuple[str, ...] = ()

    def expired(self, now: float) -> bool:
        """Return whether the key has expired."""
        return self.expires_at is not None and self.expires_at <= now

    def verifies(self, signature: bytes, text: bytes) -> bool:
        """Return whether this key's holder signed a text."""
        if self.verify_key is None:
            return False
        from cryptography.exceptions import InvalidSignature

        try:
            self.verify_key.verify(signature, text)
        except InvalidSignature:
            return False
        return True


def dummy_key() -> Key:
    """Make a key that nobody has; it verifies signatures if there is no real key."""
    public = signer(new_secret()).public_key()
    return Key(Caller(), "", b"", admin=False, verify_key=public, expires_at=None)


_Table = dict[bytes, Key]


class KeyRing:
    """All client keys. ``declared`` maps the names of the configuration's keys to their secret and grants."""

    def __init__(
        self,
        store: KeySource,
        declared: Mapping[str, tuple[str, KeyGrants]],
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._now = now
        self._monotonic = monotonic
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.server")
        self._own_hash_key = secrets.token_bytes(32)
        self._declared: _Table = {}
        prefixes: dict[int, set[int]] = {}
        for name, (secret, grants) in declared.items():
            digest = _digest(secret, self._own_hash_key)
            prefixes.setdefault(len(secret), set()).add(hash(secret))
            public = signer(secret).public_key() if grants.mint else None
            rights = grants.rights(f"keys.{name}.tools", f"keys.{name}.arguments")
            self._declared[digest] = _made(
                f"{DECLARED}{name}", name, rights, digest, grants, grants.expires, public
            )
        self._marks = tuple(prefixes.items())
        self._tables: list[tuple[bytes, _Table]] = []
        self._by_id: dict[str, Key] = {}
        self._index([])
        self._version: int | None = None
        self._told: int | None = None
        self._confirmed_at = -float("inf")
        self._failed_at = -float("inf")
        self._reading = asyncio.Lock()
        self._checking: asyncio.Task[None] | None = None
        self._away = False
        self.ever_made = bool(declared)

    async def load(self) -> None:
        """Read the store's keys; raise :class:`~proxy.base.errors.StoreError` if that fails."""
        async with self._reading:
            await self._read()

    def keys(self) -> Sequence[Key]:
        """Return the keys that are valid now, according to the last read."""
        now = self._now()
        return [key for key in self._by_id.values() if not key.expired(now)]

    def any_valid(self) -> bool:
        """Return whether a key is valid now, according to the last read. The number of keys does not affect
        the time."""
        return self._now() < self._last_expiry

    async def find(self, secret: str) -> Key | None:
        """Return the valid key that has this secret.

        Raises :class:`~proxy.base.errors.RequestError` (503) if the keys cannot be read.
        """
        key = _lookup(self._declared, _digest(secret, self._own_hash_key)) if self._declared else None
        if key is None:
            if not self._is_fresh():
                await self.refresh()
            for hash_key, table in self._tables:
                key = key or _lookup(table, _digest(secret, hash_key))
        if key is None or (key.expires_at is not None and key.expired(self._now())):
            return None
        return key

    def knows(self, secret: str) -> bool:
        """Return whether a key has this secret, expired or not, according to the last read."""
        tables = (*self._tables, (self._own_hash_key, self._declared))
        return any(
            _lookup(table, _digest(secret, hash_key)) is not None for hash_key, table in tables if table
        )

    def declared_at(self, text: str, starts: Sequence[int]) -> bool:
        """Return whether the secret of a configured key, expired or not, begins at one of these places.

        The time that this takes reveals nothing about the secrets but their lengths.
        """
        for length, prefixes in self._marks:
            for start in starts:
                part = text[start : start + length]
                if hash(part) in prefixes and self.knows(part):
                    return True
        return False

    def is_still_valid(self, key: Key) -> bool:
        """Return whether a key that was found before is still valid, as far as this is known without a
        query."""
        if key.expires_at is not None and key.expired(self._now()):
            return False
        if self._declared.get(key.digest) is key:
            return True
        return self._is_fresh() and self._by_id.get(key.caller.name) is key

    async def find_by_id(self, key_id: str) -> Key | None:
        """Return the valid key with that id; raise as :meth:`find` does."""
        if not key_id.startswith(DECLARED):
            await self.refresh()
        key = self._by_id.get(key_id)
        return key if key is not None and not key.expired(self._now()) else None

    def _is_fresh(self) -> bool:
        return (
            self._told == self._store.keys_change_counter
            and self._monotonic() - self._confirmed_at < _CHECK_EVERY_S
        )

    async def refresh(self) -> None:
        """Make sure that the keys in memory are those of the store, or raise as :meth:`find` does."""
        for _ in range(_MOST_CHECKS):
            if self._is_fresh():
                return
            task = self._begin_check()
            if task is None:
                break
            # The check is not cancelled: it finds out when the record answers again.
            if not await ends_in_time(task, _AGAIN_WITHIN_S if self._away else LOOK_UP_S):
                self._failed(f"the store did not answer within {LOOK_UP_S:g} s")
                break
            task.result()
        if self._is_fresh():
            return
        # A notified change that cannot be read may be a revocation, so it gets no grace period.
        if (
            self._told != self._store.keys_change_counter
            or self._monotonic() - self._confirmed_at >= _BLIND_S
        ):
            raise RequestError(
                503,
                "The proxy cannot check client keys now because its store does not answer. Try again "
                "in a moment.",
                type="server_error",
                code="keys_unavailable",
                headers={"Retry-After": "1"},
            )

    def _begin_check(self) -> "asyncio.Task[None] | None":
        """Return the running check or start one; ``None`` if one failed a moment ago."""
        if self._checking is None or self._checking.done():
            if self._monotonic() - self._failed_at < _CHECK_EVERY_S / 2:
                return None
            self._checking = asyncio.get_running_loop().create_task(self._check_once())
        return self._checking

    async def _check_once(self) -> None:
        try:
            async with self._reading:
                await self._check()
        except StoreError as error:
            self._failed(str(error))
        else:
            self._away = False

    def _failed(self, reason: str) -> None:
        self._failed_at = self._monotonic()
        if not self._away:
            self._away = True
            self._log.error("client_keys_unread", reason=reason)

    async def _check(self) -> None:
        began, changes = self._monotonic(), self._store.keys_change_counter
        if changes == self._told and await self._store.keys_version() == self._version:
            self._confirmed_at = began
        else:
            await self._read()

    async def _read(self) -> None:
        # Taken before the read, so that a change during it is not missed.
        began, changes = self._monotonic(), self._store.keys_change_counter
        version = await self._store.keys_version()
        if version != self._version:
            key_set = await self._store.read_keys()
            version = key_set.version
            self.ever_made = self.ever_made or key_set.ever_made
            live = [key for key in key_set.keys if key.revoked_at is None]
            tables: dict[str, _Table] = {name: {} for name in key_set.hash_keys}
            for key in live:
                if key.hashed_by not in tables:
                    self._log.error(
                        "client_key_unusable",
                        key=key.id,
                        reason="the key was made with another store.seal_key",
                    )
                elif (made := self._usable(key)) is not None:
                    tables[key.hashed_by][key.digest] = made
            self._index([(key_set.hash_keys[name], table) for name, table in tables.items() if table])
        self._version, self._told, self._confirmed_at = version, changes, began

    def _index(self, tables: list[tuple[bytes, _Table]]) -> None:
        self._tables = tables
        self._by_id = {
            key.caller.name: key
            for table in (self._declared, *(t for _, t in tables))
            for key in table.values()
        }
        # Computed here, so that refusing a stranger does not look at each key.
        expiries = [key.expires_at for key in self._by_id.values()]
        self._last_expiry = max(
            (math.inf if expiry is None else expiry for expiry in expiries), default=-math.inf
        )
        # Whether any key, valid or not, may mint tokens.
        self.mints = any(key.verify_key is not None for key in self._by_id.values())

    def _usable(self, key: ClientKey) -> Key | None:
        try:
            grants = KeyGrants.model_validate(dict(key.grants))
            public = _public(key.verify_key) if key.verify_key else None
        except (ValidationError, ValueError) as error:
            # A later version may have written it: the proxy does not grant what it does not understand.
            self._log.error("client_key_unusable", key=key.id, reason=type(error).__name__)
            return None
        rights = grants.rights(f"the tool list of key {key.name}", f"the argument limits of key {key.name}")
        return _made(
            key.id, key.name, rights, key.digest, grants, key.expires_at, public if grants.mint else None
        )


def _public(verify_key: bytes) -> "Ed25519PublicKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(verify_key)


def _lookup(table: _Table, digest: bytes) -> Key | None:
    """Return the key with a digest. The lookup's time reveals nothing, because nobody can choose a keyed
    hash."""
    key = table.get(digest)
    return key if key is not None and hmac.compare_digest(key.digest, digest) else None


def _made(
    key_id: str,
    name: str,
    rights: Rights,
    digest: bytes,
    grants: KeyGrants,
    expires_at: float | None,
    verify_key: "Ed25519PublicKey | None",
) -> Key:
    caller = Caller(name=key_id, counted_as=key_id, limits=key_limits(grants.limits), rights=rights)
    return Key(caller, name, digest, grants.admin, verify_key, expires_at, grants.approves)
