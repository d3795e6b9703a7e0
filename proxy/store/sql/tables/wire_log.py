"""The bytes of runs on both sides of the wire, in SQL."""

from proxy.records.rows import KeptWire
from proxy.store import rows
from proxy.store.seal import WIRE_BYTES
from proxy.store.sql.base import SqlBase, select


class SqlWireLog(SqlBase):
    """The part of a SQL store that implements :class:`~proxy.store.base.Store`."""

    def put_wire(self, record: KeptWire) -> None:
        """Queue the bytes of a run.

        They cannot be masked, so they are written only if the store seals them.
        """
        if self._content != "none" and self.sealed:
            self._cap.note(WIRE_BYTES, record.caller, len(record.payload))
            self._put_content(WIRE_BYTES, (record,), needed=False)

    async def find_wire(self, run_id: str) -> KeptWire | None:
        await self._writer.flush()
        async with self._snapshot() as db:
            records = await self._read(db, WIRE_BYTES, *self._kept(run_id))
        return records[0] if records else None

    async def wire_size(self, run_id: str) -> int | None:
        await self._writer.flush()
        async with self._snapshot() as db:
            sizes = await select(db, WIRE_BYTES.name, ("size",), *self._kept(run_id))
        return int(sizes[0][0]) if sizes else None

    def _kept(self, run_id: str) -> tuple[str, str, float]:
        return "run_id = ? AND created_at >= ?", rows.clean_text(run_id), self._oldest_kept()
