"""Changes of keys: reseal everything under the current key, and delete what no key can open any more."""

from collections.abc import Sequence
from typing import Any, Final

from proxy.store import rows
from proxy.store.seal import CLAIMS, RECORD, SEALED, ContentTable
from proxy.store.sql.base import SqlBase, select
from proxy.store.tokens import TOKENS

_AT_ONCE: Final = 200


class SqlSealing(SqlBase):
    """Operations on all sealed content, while other processes may continue."""

    async def reseal(self) -> int:
        """Seal all content with the current key, or unseal it if there is none; return how many rows changed.

        A row that another process replaces meanwhile stays as that process wrote it. Raises
        :class:`StoreError` if a row does not open; every other row is then either unchanged or
        resealed. Raises :class:`~proxy.base.errors.StoreUnavailable` if the record cannot be written.
        """
        await self._writer.flush()
        # Tokens are never stored in plain text: without a key that seals they stay as they are.
        tables = (*SEALED, TOKENS) if self._ring.id is not None else SEALED
        changed = sum([await self._reseal_table(table) for table in tables])
        await self._writer.commit("DELETE FROM seal_keys WHERE id <> ?", [(self._ring.id or "",)])
        return changed

    async def forget_sealed(self, key: str) -> int:
        """Delete the content that the key with this name sealed; return how many rows. Runs stay.

        Raises :class:`~proxy.base.errors.StoreError` if the record cannot be read or written.
        """
        await self._writer.flush()
        gone = 0
        for table in (*SEALED, TOKENS):
            async with self._snapshot() as db:
                ((number,),) = await db.execute_fetchall(
                    f"SELECT count(*) FROM {table.name} WHERE sealed_by = ?", (key,)
                )
            statement = f"DELETE FROM {table.name} WHERE sealed_by = ?"
            if table in RECORD:  # The row stays: it proves that a call or an effect happened.
                gone_with_it = ", ".join(f"{column} = NULL" for column in (*table.sealed, "sealed_by"))
                statement = f"UPDATE {table.name} SET {gone_with_it} WHERE sealed_by = ?"
            await self._writer.commit(statement, [(key,)])
            gone += number
        await self._writer.commit("DELETE FROM seal_keys WHERE id = ?", [(key,)])
        return gone

    async def _reseal_table(self, table: ContentTable[Any]) -> int:
        after: rows.Row = ()
        changed = 0
        while batch := await self._page(table, after):
            after = _key(table, batch[-1])
            update = [self._resealed(table, row) for row in batch]
            for statement in dict.fromkeys(statement for statement, _ in update):
                await self._writer.commit(statement, [row for each, row in update if each == statement])
            changed += len(batch)
        return changed

    async def _page(self, table: ContentTable[Any], after: rows.Row) -> list[rows.Row]:
        """Return the next rows, in key order, that the current key has not sealed."""
        key = ", ".join(_place(table))
        clauses, values = ["sealed_by IS NOT NULL"], list[Any]()
        if self._ring.id is not None:
            clauses = ["(sealed_by IS NULL OR sealed_by <> ?)"]
            values.append(self._ring.id)
        if table in RECORD:
            clauses.append(f"({' OR '.join(f'{column} IS NOT NULL' for column in table.sealed)})")
        if after:
            clauses.append(f"({key}) > ({', '.join('?' * len(after))})")
            values += after
        columns = (*table.columns, "sealed_by", *_place(table))
        where = f"{' AND '.join(clauses)} ORDER BY {key} LIMIT {_AT_ONCE}"
        async with self._snapshot() as db:
            return await select(db, table.name, columns, where, *values)

    def _resealed(self, table: ContentTable[Any], stored: rows.Row) -> tuple[str, rows.Row]:
        """Return the statement that reseals one row if it is unchanged, and its values."""
        size = len(table.columns)
        row, sealed_by, place = stored[:size], stored[size], stored[size + 1 :]
        was = dict(zip(table.columns, row, strict=True))
        *closed, key = self._ring.close(table, self._ring.open(table, row, sealed_by))
        now = dict(zip(table.columns, closed, strict=True))
        before = [(column, was[column]) for column in table.sealed if was[column] is not None]
        tests = [*(f"{column} = ?" for column in _place(table)), *(f"{column} = ?" for column, _ in before)]
        # A column that was empty and no longer is was also written meanwhile.
        tests += [f"{column} IS NULL" for column in table.sealed if was[column] is None]
        tests.append("sealed_by IS NULL" if sealed_by is None else "sealed_by = ?")
        return (
            f"UPDATE {table.name} SET {', '.join(f'{column} = ?' for column in table.sealed)}, sealed_by = ? "
            f"WHERE {' AND '.join(tests)}",
            (
                *(now[column] for column in table.sealed),
                key,
                *place,
                *(value for _, value in before),
                *(() if sealed_by is None else (sealed_by,)),
            ),
        )


def _place(table: ContentTable[Any]) -> Sequence[str]:
    """Return the columns that identify one row; two claims can share the invocation that binds their seal."""
    return ("key",) if table is CLAIMS else table.key


def _key(table: ContentTable[Any], row: rows.Row) -> rows.Row:
    return row[-len(_place(table)) :]
