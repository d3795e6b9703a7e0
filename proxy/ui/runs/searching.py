"""Search runs by words and by figures: reads the record from the newest run on, within bounds.

Kept content is sealed by default, so a database cannot index it. This reads, opens and compares it instead.
It works in the same way for every store, and costs nothing while nobody searches.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.api.admin.admin import Admin
from proxy.base.errors import RequestError
from proxy.records.rows import MessageRecord
from proxy.store.base import Store
from proxy.ui.runs.run_rows import RunRows
from proxy.ui.runs.texts import MOST_BYTES

SEARCH: Final = ("q", "error", "min_cost", "min_s")
"""The query parameters of a search; all others are those of the list."""
_AT_ONCE: Final = 25
_LONGEST_S: Final = 3.0
_MOST_RUNS: Final = 20_000
_MOST_FOUND: Final = 100
_MOST_WORDS: Final = 8
_ROLES: Final = ("request", "assistant", "tool", "function", "program", "output", "error")
_SAME_IN_ALL: Final = frozenset({"role", "type"})
"""Members of messages and parts whose values nobody wrote."""
_DECLARED: Final = _SAME_IN_ALL | {"tools", "functions"}
"""The same for whole requests; the tools that a client only declares are no part of what was said."""


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
        text = " ".join(filter(None, (*facts, *tools, *map(_words_of, messages)))).casefold()
        return all(word in text for word in self.words)


def read_wanted(query: Mapping[str, str]) -> Wanted | None:
    """Return what a query searches for; ``None`` if it only lists. Raises :class:`RequestError` (400)."""
    if not any(query.get(name) for name in SEARCH):
        return None
    words = tuple(query.get("q", "").casefold().split())
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
        began, searched, more, until = time.monotonic(), 0, True, None
        while more and len(found) < _MOST_FOUND and searched < _MOST_RUNS:
            most = min(_AT_ONCE, _MOST_FOUND - len(found))
            page = await self.admin.runs({**listed, "limit": str(most)})
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
        kept = await self.store.read_messages([row["id"] for row in fitting], _ROLES, MOST_BYTES)
        # In a thread: the messages may be many MB, and streams must not wait for them.
        return await asyncio.to_thread(
            lambda: [row for row in fitting if wanted.fits_text(row, kept.get(row["id"], ()))]
        )


def _words_of(row: MessageRecord) -> str:
    return " ".join(filter(None, (row.content, *_texts(row.content_json), *_texts(row.tool_calls))))


def _texts(text: str | None) -> list[str]:
    """Return the texts in JSON, as people read them: without escapes, names of members, and what every
    request of a dialect has; the text itself if it is not JSON."""
    try:
        left: list[Any] = [orjson.loads(text)] if text else []
    except orjson.JSONDecodeError:
        return [text or ""]
    if left and isinstance(left[0], dict):
        left = [value for name, value in left[0].items() if name not in _DECLARED]
    texts: list[str] = []
    while left:
        value = left.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list):
            left += reversed(value)
        elif isinstance(value, dict):
            left += (part for name, part in value.items() if name not in _SAME_IN_ALL)
    return texts
