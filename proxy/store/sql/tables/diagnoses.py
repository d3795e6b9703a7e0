"""The findings of ``doctor`` about upstreams, in SQL."""

from collections.abc import Mapping
from typing import Final

from proxy.store import rows
from proxy.store.sql.base import SqlBase

_TABLE: Final = "diagnoses"
_PUT: Final = rows.upsert(_TABLE, ("upstream", "diagnosis", "updated_at"), ("upstream",))
_MOST: Final = 1000


class SqlDiagnoses(SqlBase):
    """The part of a SQL store that implements :class:`~proxy.store.base.Store`."""

    async def read_diagnoses(self) -> Mapping[str, str]:
        async with self._snapshot() as db:
            result = await db.execute_fetchall(
                f"SELECT upstream, diagnosis FROM {_TABLE} ORDER BY updated_at DESC LIMIT {_MOST}"
            )
        return {str(row[0]): str(row[1]) for row in result}

    async def put_diagnosis(self, upstream: str, diagnosis: str) -> None:
        await self._writer.commit(_PUT, [(upstream, diagnosis, self._clock())], in_order=True)
