"""Build the rows of the list of runs: those of ``/admin/runs``, with the caller's name and the calls."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from proxy.api.admin.json_output import run_to_json
from proxy.records.rows import RunRecord
from proxy.server.auth.key_names import named_callers
from proxy.server.auth.key_ring import DECLARED
from proxy.store.base import Store

_NAMES_S: Final = 5.0
_MOST_CALLS: Final = 32
_KEY: Final = "key "
"""What stands before the id of a key that decided."""


class RunRows:
    """Completes the rows of runs from the record."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: Mapping[str, str] = {}
        self._read_at = -float("inf")

    async def of(self, runs: Iterable[RunRecord]) -> list[dict[str, Any]]:
        """Return the rows of runs; raises StoreError."""
        rows = [run_to_json(run) for run in runs]
        await self.complete(rows)
        return rows

    async def complete(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add the caller's name and the calls to rows; raises StoreError."""
        called = await self._store.called_tools([row["id"] for row in rows])
        names = await self._key_names()
        for row in rows:
            calls = called.get(row["id"], ())
            row["caller_name"] = caller_name(row["caller"], names)
            row["calls"] = [
                {"tool": call.tool, "status": call.status, "error_code": call.error_code}
                for call in calls[:_MOST_CALLS]
            ]
            row["calls_more"] = max(0, len(calls) - _MOST_CALLS)

    async def named(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows with the names of their callers; raises StoreError."""
        names = await self._key_names()
        return [
            {
                **row,
                "caller_name": caller_name(row["caller"], names),
                "decided_by_name": decider_name(row.get("decided_by"), names),
            }
            for row in rows
        ]

    async def keys_named(self, word: str) -> list[str]:
        """Return the ids of the keys with a word, given in lower case, in their names; raises StoreError."""
        names = await self._key_names()
        return [key for key, name in names.items() if word in name.casefold()]

    async def _key_names(self) -> Mapping[str, str]:
        """Return the names of keys by id, at most a few seconds old."""
        if time.monotonic() - self._read_at >= _NAMES_S:
            self._names = named_callers((await self._store.read_keys()).keys)
            self._read_at = time.monotonic()
        return self._names


def decider_name(decider: str | None, names: Mapping[str, str]) -> str | None:
    """Return for people who decided: the name of a key in place of its id."""
    if decider is None or not decider.startswith(_KEY):
        return decider
    return caller_name(decider.removeprefix(_KEY), names)


def caller_name(caller: str, names: Mapping[str, str]) -> str:
    """Return the caller's name for people: the key's name, and the first characters of the recorded end
    user."""
    key, slash, person = caller.partition("/")
    name = key.removeprefix(DECLARED) if key.startswith(DECLARED) else names.get(key, key)
    return f"{name}{slash}{person[:8]}"
