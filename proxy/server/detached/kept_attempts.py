"""What background responses leave on record while they run, apart for each attempt.

An attempt keeps its resource as it is now, and its events in pieces.  Its events are numbered from a number
that no earlier attempt can have reached: so the number of an event says which attempt it belongs to, also
where the process died before the event was on record.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from proxy.background_records import Lease
from proxy.records import KeptResult
from proxy.store.base import Store

__all__ = ["LAST_NUMBER", "KeptAttempts", "KeptState", "attempt_of", "first_number"]

_NUMBERS: Final = 1_000_000
"""Event numbers of one attempt: more than events fit into its log."""
LAST_NUMBER: Final = _NUMBERS - 1
"""What the last event of an attempt that another process has ended has above its first number."""


def first_number(attempt: int) -> int:
    """The number of the first event of an attempt."""
    return (attempt - 1) * _NUMBERS


def attempt_of(number: int) -> int:
    """The attempt that the event with this number belongs to."""
    return number // _NUMBERS + 1


@dataclass(frozen=True, slots=True)
class KeptState:
    """How far an attempt has come: its resource, the number of its pieces of events, and the number of events
    that it began with which say nothing of the answer.  ``full``: its events took too much room.

    ``run_id`` is its run.
    """

    resource: dict[str, Any]
    run_id: str
    pieces: int = 0
    full: bool = False
    leading: int = 0


class KeptAttempts:
    """Reads and writes what attempts keep."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put_state(self, lease: Lease, caller: str, state: KeptState) -> None:
        """Queue a state in place of the attempt's earlier one."""
        kept = {
            "resource": state.resource,
            "run": state.run_id,
            "pieces": state.pieces,
            "full": state.full,
            "leading": state.leading,
        }
        self._put(lease, "state", caller, state.run_id, kept)

    def put_events(
        self, lease: Lease, caller: str, run_id: str, piece: int, events: Sequence[tuple[int, bytes]]
    ) -> None:
        """Queue a piece of events."""
        said = [[number, event.decode("utf-8", "replace")] for number, event in events]
        self._put(lease, str(piece), caller, run_id, said)

    def _put(self, lease: Lease, name: str, caller: str, run_id: str, value: Any) -> None:
        text = orjson.dumps(value).decode()
        kept = KeptResult(_key(lease, name), run_id, caller, text, untrusted=False, created_at=time.time())
        self._store.put_result(kept)

    async def state(self, lease: Lease, caller: str) -> KeptState | None:
        """The state of an attempt; raises :class:`~proxy.errors.StoreError`."""
        found = await self._store.find_result(_key(lease, "state"), caller)
        if found is None:
            return None
        kept = orjson.loads(found.content)
        return KeptState(kept["resource"], kept["run"], kept["pieces"], kept["full"], kept.get("leading", 0))

    async def events(self, lease: Lease, caller: str, piece: int) -> Iterator[tuple[int, bytes]] | None:
        """A piece of events; ``None`` while it is not on record.  Raises StoreError."""
        found = await self._store.find_result(_key(lease, str(piece)), caller)
        if found is None:
            return None
        return ((number, text.encode()) for number, text in orjson.loads(found.content))


def _key(lease: Lease, name: str) -> str:
    attempt = "" if lease.attempt == 1 else f".{lease.attempt}"
    return f"{lease.response_id}{attempt}:{name}"
