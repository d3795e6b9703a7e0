"""Client keys in SQL, and the owners of responses that only the upstream keeps."""

import asyncio
import logging
import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

import orjson

from proxy.base.errors import StoreError
from proxy.records.rows import ClientKey, KeySet
from proxy.store import rows
from proxy.store.base import MAX_MARKS_READ
from proxy.store.key_mark import KeyMark
from proxy.store.seal import Seal
from proxy.store.sql.base import SqlBase
from proxy.store.sql.writing.writes import Write

_log = logging.getLogger(__name__)

PEPPER: Final = "pepper"
"""The name of the hash key that the store creates for itself."""

OWNERS: Final = "response_owners"

_KEYS: Final = rows.Table(
    "client_keys",
    ClientKey,
    ("id", "name", "digest", "hashed_by", "grants", "created_at", "verify_key", "expires_at", "revoked_at"),
    write={"grants": lambda grants: orjson.dumps(dict(grants)).decode()},
    read={"digest": bytes, "grants": orjson.loads, "verify_key": bytes},
)
_PUT: Final = rows.insert(_KEYS.name, _KEYS.columns, " ON CONFLICT (id) DO NOTHING")
_REVOKE: Final = "UPDATE client_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
_SET_PEPPER: Final = (
    "INSERT INTO key_state (id, version, pepper) VALUES (1, 0, ?) "
    "ON CONFLICT (id) DO UPDATE SET pepper = coalesce(key_state.pepper, excluded.pepper)"
)
_NOTE: Final = (
    "INSERT INTO key_state (id, version) VALUES (1, ?) "
    "ON CONFLICT (id) DO UPDATE SET version = key_state.version + 1 WHERE key_state.version = 0"
)
"""A version above 0 means that keys existed once; it never decreases."""

_PUT_OWNER: Final = rows.upsert(OWNERS, ("id", "caller", "created_at"), ("id", "caller"))


_MARK: Final = (
    "INSERT INTO ui_marks (name, holder, until) VALUES (?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until "
    "WHERE ui_marks.until <= ?"
)
_FORGET_MARKS: Final = "DELETE FROM ui_marks WHERE until <= ?"


class SqlKeys(SqlBase):
    """The part of a SQL store that implements :class:`~proxy.store.base.Store`.

    Each change through this store touches the mark.
    """

    _mark: KeyMark

    @property
    @abstractmethod
    def keys_change_counter(self) -> int:
        """A number that changes when this process learns that keys changed."""

    async def keys_version(self) -> int:
        await asyncio.to_thread(self._mark.attach)
        version, _ = await self._key_state()
        return version

    async def read_keys(self) -> KeySet:
        """Return all keys, the oldest first; raises :class:`~proxy.base.errors.StoreError`."""
        # The version comes first: if the keys change in between, the next check finds a newer version.
        version, pepper = await self._key_state()
        sql = f"SELECT {', '.join(_KEYS.columns)} FROM client_keys ORDER BY created_at, id"
        keys = tuple(_KEYS.record(tuple(row)) for row in await self._look_up(sql, ()))
        marked = await asyncio.to_thread(self._mark.exists)
        if keys and not marked:
            await self._announce()
        hash_keys = {PEPPER: pepper} if pepper is not None else {}
        hash_keys |= {self._seal_name(seal): seal.hash_key for seal in self._ring.keys}
        return KeySet(version, keys, hash_keys, ever_made=version > 0 or marked)

    async def hash_key(self) -> tuple[str, bytes]:
        """Return the hash key of the configured seal key, else one that the store creates and keeps.

        The hash key never comes from a key file beside the record: if that file were lost, no client could
        authenticate any more.
        """
        if self._configured is not None:
            return self._seal_name(self._configured), self._configured.hash_key
        for _ in range(2):
            _, pepper = await self._key_state()
            if pepper is not None:
                return PEPPER, pepper
            # If another process is first, this changes nothing, and the next read finds its pepper.
            await self._writer.commit(_SET_PEPPER, [(secrets.token_bytes(32),)])
        raise StoreError("the record lacks the key that hashes client keys (key_state)")

    async def put_key(self, key: ClientKey) -> None:
        # The mark comes first, so that it exists for every key that was created.
        await self._announce()
        await self._writer.commit(_PUT, [_KEYS.row(key)], in_order=True)
        await self._announce()

    async def note_keys(self) -> None:
        """Touch the mark, and note the keys in the record too, for machines without the mark."""
        if not await asyncio.to_thread(self._mark.exists):
            await self._announce()
        try:
            version, _ = await self._key_state()
            if not version:
                await self._writer.commit(_NOTE, [(1,)])
        except StoreError as error:
            _log.warning("the record could not note that client keys are declared (%s)", error)

    async def revoke_key(self, key_id: str) -> bool:
        async with self._snapshot() as db:
            result = await db.execute_fetchall(
                "SELECT 1 FROM client_keys WHERE id = ? AND revoked_at IS NULL", (rows.clean_text(key_id),)
            )
        if not list(result):
            return False
        await self._writer.commit(_REVOKE, [(self._clock(), key_id)], in_order=True)
        await self._announce()
        return True

    async def mark_once(self, name: str, until: float) -> bool:
        holder, now = secrets.token_hex(16), self._clock()
        await self._writer.commit(
            _MARK, [(rows.clean_name(name), holder, until, now)], also=[(_FORGET_MARKS, [(now,)])]
        )
        # A statement may be executed twice, so a count of changed rows would not tell who set the mark.
        async with self._snapshot() as db:
            result = await db.execute_fetchall(
                "SELECT holder FROM ui_marks WHERE name = ?", (rows.clean_name(name),)
            )
        return [row[0] for row in result] == [holder]

    async def marks(self, prefix: str) -> Mapping[str, float]:
        async with self._snapshot() as db:
            result = await db.execute_fetchall(
                "SELECT name, until FROM ui_marks WHERE name >= ? AND name < ? AND until > ? "
                f"ORDER BY name LIMIT {MAX_MARKS_READ}",
                (prefix, f"{prefix}\U0010ffff", self._clock()),
            )
        return {str(name): float(until) for name, until in result}

    async def is_marked(self, name: str) -> bool:
        async with self._snapshot() as db:
            result = await db.execute_fetchall(
                "SELECT 1 FROM ui_marks WHERE name = ? AND until > ?", (rows.clean_name(name), self._clock())
            )
        return bool(list(result))

    def put_response_owner(
        self, response_id: str, caller: str, settled: Callable[[bool], None] | None = None
    ) -> None:
        if rows.is_text(response_id) and "\0" not in response_id and len(response_id) <= rows.MAX_NAME:
            self._writer.put(Write(_PUT_OWNER, [(response_id, caller, self._clock())], settled=settled))
        elif settled is not None:
            settled(False)

    async def is_response_owner(self, response_id: str, caller: str) -> bool:
        if not rows.is_text(response_id) or "\0" in response_id:
            return False
        wanted = (response_id, caller, self._oldest_kept())
        for last in (False, True):
            result = await self._look_up(
                f"SELECT 1 FROM {OWNERS} WHERE id = ? AND caller = ? AND created_at >= ?",
                wanted,
                caller,
            )
            if list(result):
                return True
            if not last:
                await self._see_writes()
        return False

    async def _announce(self) -> None:
        """Count a change in the mark; if that fails, processes notice the change a second later."""
        try:
            await asyncio.to_thread(self._mark.touch)
        except OSError as error:
            _log.warning(
                "%s cannot be written (%s): if the record is lost, the server admits everybody unless "
                'auth.mode = "keys" is set',
                self._mark.path,
                error.strerror,
            )

    async def _key_state(self) -> tuple[int, bytes | None]:
        """Return the version of the keys (0 if none was ever made), and the pepper."""
        for version, pepper in await self._look_up("SELECT version, pepper FROM key_state", ()):
            return int(version), bytes(pepper) if pepper is not None else None
        return 0, None

    @staticmethod
    def _seal_name(seal: Seal) -> str:
        return f"seal:{seal.id}"
