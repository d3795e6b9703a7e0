"""Keys that come and go: everything sealed under the key that seals now, and what no key opens any more."""

from collections.abc import Sequence
from typing import Any, Final

from proxy.store import rows
from proxy.store.seal import CLAIMS, RECORD, SEALED, ContentTable
from proxy.store.sql.base import SqlBase, select
from proxy.store.tokens import TOKENS

__all__ = ["SqlSealing"]

_AT_ONCE: Final = 200


class SqlSealing(SqlBase):
    """What is done to sealed content as a whole, while other processes may go on."""

    async def reseal(self) -> int:
        """Seal all content under the present key, or none of it where there is none; how many rows.

        A row that somebody replaces meanwhile is left as they wrote it.  Raises
        :class:`~proxy.errors.StoreError` where a row does not open, with all others as they were or
        sealed anew, and :class:`~proxy.errors.StoreUnavailable` where the record cannot be written.
        """
        await self._writer.flush()
        # Tokens are never in the clear: without a key that seals they stay as they are.
        tables = (*SEALED, TOKENS) if self._ring.id is not None else SEALED
        return sum([await self._reseal_table(table) for table in tables])

    async def forget_sealed(self, key: str) -> int:
        """Delete the content that the key of this name has sealed; how many rows.  No run goes.

        Raises :class:`~proxy.errors.StoreError` where the record cannot be read or written.
        """
        await self._writer.flush()
        gone = 0
        for table in (*SEALED, TOKENS):
            async with self._snapshot() as db:
                ((number,),) = await db.execute_fetchall(
                    f"SELECT count(*) FROM {table.name} WHERE sealed_by = ?", (key,)
                )
            statement = f"DELETE FROM {table.name} WHERE sealed_by = ?"
            if table in RECORD:  # the row stays: it says that something was done, and a claim that it was
                gone_with_it = ", ".join(f"{column} = NULL" for column in (*table.sealed, "sealed_by"))
                statement = f"UPDATE {table.name} SET {gone_with_it} WHERE sealed_by = ?"
            await self._writer.commit(statement, [(key,)])
            gone += number
        return gone

    async def _reseal_table(self, table: ContentTable) -> int:
        after: rows.Row = ()
        changed = 0
        while batch := await self._page(table, after):
            after = _key(table, batch[-1])
            update = [self._resealed(table, row) for row in batch]
            for statement in dict.fromkeys(statement for statement, _ in update):
                await self._writer.commit(statement, [row for each, row in update if each == statement])
            changed += len(batch)
        return changed

    async def _page(self, table: ContentTable, after: rows.Row) -> list[rows.Row]:
        """The next rows that the present key has not sealed, by key."""
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

    def _resealed(self, table: ContentTable, found: rows.Row) -> tuple[str, rows.Row]:
        """The statement that seals one row anew, if it still is as it was found, and its values."""
        size = len(table.columns)
        row, sealed_by, place = found[:size], found[size], found[size + 1 :]
        was = dict(zip(table.columns, row, strict=True))
        *closed, key = self._ring.close(table, self._ring.open(table, row, sealed_by))
        now = dict(zip(table.columns, closed, strict=True))
        before = [(column, was[column]) for column in table.sealed if was[column] is not None]
        tests = [*(f"{column} = ?" for column in _place(table)), *(f"{column} = ?" for column, _ in before)]
        # What was empty and is not any more was written meanwhile, too.
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


def _place(table: ContentTable) -> Sequence[str]:
    """The columns that name one row; two claims share the invocation that their result is sealed for."""
    return ("key",) if table is CLAIMS else table.key


def _key(table: ContentTable, found: rows.Row) -> rows.Row:
    return found[-len(_place(table)) :]
