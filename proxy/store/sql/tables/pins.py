"""Pins of MCP tools in SQL."""

from collections.abc import Mapping
from typing import Final

from proxy.store import rows
from proxy.store.sql.base import SqlBase

_TABLE: Final = "mcp_pins"
_PUT: Final = rows.upsert(_TABLE, ("id", "pin", "updated_at"), ("id",))
_DELETE: Final = f"DELETE FROM {_TABLE} WHERE id = ?"


class SqlPins(SqlBase):
    """The part of a SQL store that implements :class:`~proxy.records.rows.PinStore`."""

    async def read_pins(self) -> Mapping[str, str]:
        async with self._snapshot() as db:
            result = await db.execute_fetchall(f"SELECT id, pin FROM {_TABLE} ORDER BY id")
        return {str(row[0]): str(row[1]) for row in result}

    async def put_pins(self, pins: Mapping[str, str]) -> None:
        if pins:
            now = self._clock()
            await self._writer.commit(_PUT, [(name, pin, now) for name, pin in pins.items()], in_order=True)

    async def delete_pin(self, pin_id: str) -> bool:
        if pin_id not in await self.read_pins():
            return False
        await self._writer.commit(_DELETE, [(pin_id,)], in_order=True)
        return True
