"""Search runs by words and by figures: reads the record from the newest run on, within bounds.

The record leaves out the runs that it knows to lack a word (:mod:`proxy.records.words`); those that remain
are read, opened and compared. Kept content is sealed by default, so a database cannot index it, and then that
is each run. It works in the same way for every store, and costs nothing while nobody searches.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from proxy.api.admin.admin import Admin
from proxy.base.errors import RequestError
from proxy.records.rows import MessageRecord
from proxy.records.words import MOST_BYTES, ROLES, folded, texts_of
from proxy.store.base import Store
from proxy.ui.runs.run_rows import RunRows

SEARCH: Final = ("q", "error", "min_cost", "min_s")
"""The query parameters of a search; all others are those of the list."""
_AT_ONCE: Final = 25
_LONGEST_S: Final = 3.0
_MOST_RUNS: Final = 20_000
_MOST_FOUND: Final = 100
_MOST_WORDS: Final = 8
_MOST_KEYS: Final = 20


class Wanted(Struct, frozen=True):
    """What a search looks for. Each of ``words`` must occur in a run; ``error`` is in one of its codes."""

    words: tuple[str, ...] = ()
    error: str = ""
    min_cost: float = 0.0
    min_s: float = 0.0

    def fits_row(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of the list fits, apart from its words."""
        if self.min_cost and (row["cost"] or 0.0) < self.min_cost:
            return False
        if self.min_s and (row["duration_s"] or 0.0) < self.min_s:
            return False
        codes = (row["error_code"], *(call["error_code"] for call in row["calls"]))
        return not self.error or any(self.error in code for code in codes if code)

    def fits_text(self, row: Mapping[str, Any], messages: Sequence[MessageRecord]) -> bool:
        """Return whether all words occur in a run's messages or in the facts of its row."""
        facts = (row["model"], row["upstream"], row["caller_name"], row["error_code"], row["agent"])
        tools = (call["tool"] for call in row["calls"])
        texts = (text for message in messages for text in texts_of(message))
        text = folded(" ".join(filter(None, (*facts, *tools, *texts))))
        return all(word in text for word in self.words)


def read_wanted(query: Mapping[str, str]) -> Wanted | None:
    """Return what a query searches for; ``None`` if it only lists. Raises :class:`RequestError` (400)."""
    if not any(query.get(name) for name in SEARCH):
        return None
    words = tuple(folded(query.get("q", "")).split())
    if len(words) > _MOST_WORDS:
        raise RequestError(400, f"q must have at most {_MOST_WORDS} words.", param="q")
    return Wanted(words, query.get("error", ""), _number(query, "min_cost"), _number(query, "min_s"))


def _number(query: Mapping[str, str], name: str) -> float:
    text = query.get(name, "")
    try:
        value = float(text or 0)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e15:
        raise RequestError(400, f"{name} must be a number from 0 on, like 0.5.", param=name)
    return value


class RunSearch(Struct, frozen=True):
    """Searches the record."""

    admin: Admin
    rows: RunRows
    store: Store

    async def find(self, query: Mapping[str, str], wanted: Wanted) -> dict[str, Any]:
        """Return a page of runs that fit, newest first.

        ``last_id`` is the last run that was looked at, from which the search goes on if ``has_more``;
        ``searched`` counts the runs, and ``searched_until`` is when the last of them began. Raises
        :class:`RequestError` (400) and StoreError.
        """
        listed = {name: value for name, value in query.items() if name not in SEARCH and name != "limit"}
        found: list[dict[str, Any]] = []
        words = await self._alternatives(wanted.words)
        began, searched, more, until = time.monotonic(), 0, True, None
        while more and len(found) < _MOST_FOUND and searched < _MOST_RUNS:
            most = min(_AT_ONCE, _MOST_FOUND - len(found))
            page = await self.admin.runs({**listed, "limit": str(most)}, words)
            found += await self._fitting(page["data"], wanted)
            searched, more = searched + len(page["data"]), bool(page["has_more"])
            if page["data"]:
                listed["before"], until = page["last_id"], page["data"][-1]["started_at"]
            if time.monotonic() - began > _LONGEST_S:
                break
            await asyncio.sleep(0)
        return {
            "object": "list",
            "data": found,
            "first_id": found[0]["id"] if found else None,
            "last_id": listed.get("before"),
            "has_more": more,
            "searched": searched,
            "searched_until": until,
        }

    async def _fitting(self, rows: list[dict[str, Any]], wanted: Wanted) -> list[dict[str, Any]]:
        await self.rows.complete(rows)
        fitting = [row for row in rows if wanted.fits_row(row)]
        if not wanted.words or not fitting:
            return fitting
        ids = [row["id"] for row in fitting]
        found: set[str] = set()
        left = {row["id"]: row for row in fitting}
        async for portion in self.store.read_messages(ids, ROLES, MOST_BYTES):
            texts = [(left.pop(run_id), messages) for run_id, messages in portion.items()]
            # In a thread: the messages may be many MB, and streams must not wait for them.
            found.update(await asyncio.to_thread(_found, wanted, texts))
        found.update(_found(wanted, [(row, ()) for row in left.values()]))
        return [row for row in fitting if row["id"] in found]

    async def _alternatives(self, words: Sequence[str]) -> list[list[str]]:
        """Return each word with the ids of the keys that have it in their names: runs have only the ids."""
        return [[word, *(await self.rows.keys_named(word))[:_MOST_KEYS]] for word in words]


def _found(wanted: Wanted, texts: Sequence[tuple[Mapping[str, Any], Sequence[MessageRecord]]]) -> list[str]:
    return [row["id"] for row, messages in texts if wanted.fits_text(row, messages)]
