"""The bytes of runs on both sides of the wire, in SQL."""

from proxy.records import KeptWire
from proxy.store import rows
from proxy.store.seal import WIRE_BYTES
from proxy.store.sql.base import SqlBase, select

__all__ = ["SqlWireLog"]


class SqlWireLog(SqlBase):
    """The part of a store in SQL that keeps the bytes of runs."""

    def put_wire(self, record: KeptWire) -> None:
        """Queue the bytes of a run.

        Nothing of them can be masked, so that they are written only where they are sealed.
        """
        if self._content != "none" and self.sealed:
            self._cap.note(WIRE_BYTES, record.caller, len(record.payload))
            self._put_content(WIRE_BYTES, _row, record)

    async def find_wire(self, run_id: str) -> KeptWire | None:
        """The bytes of a run.

        Raises :class:`~proxy.errors.StoreUnavailable` where earlier writes cannot be committed,
        :class:`~proxy.errors.StoreError` where the database cannot be read.
        """
        await self._writer.flush()
        async with self._snapshot() as db:
            found = await self._read(db, WIRE_BYTES, *self._kept(run_id))
        if not found:
            return None
        kept, caller, size, cut, payload, created_at = found[0]
        return KeptWire(kept, caller, size, bool(cut), payload, created_at)

    async def wire_size(self, run_id: str) -> int | None:
        """How many bytes are kept of a run, ``None`` for none; raises like :meth:`find_wire`."""
        await self._writer.flush()
        async with self._snapshot() as db:
            found = await select(db, WIRE_BYTES.name, ("size",), *self._kept(run_id))
        return int(found[0][0]) if found else None

    def _kept(self, run_id: str) -> tuple[str, str, float]:
        return "run_id = ? AND created_at >= ?", rows.clean_text(run_id), self._oldest_kept()


def _row(record: KeptWire) -> rows.Row:
    return rows.fitting(
        record.run_id,
        rows.clean_name(record.caller),
        record.size,
        int(record.cut),
        record.payload,
        record.created_at,
    )
