"""Store the state and the events of background responses while they run, separately for each attempt.

An attempt stores its current resource, and its events in pieces. Each attempt has its own range of event
numbers, so the number of an event tells its attempt. This holds even if the process died before it stored
the event.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.records.background import Lease
from proxy.records.rows import KeptResult
from proxy.store.base import Store

_NUMBERS: Final = 1_000_000
"""The size of one attempt's range of event numbers; its log holds fewer events than this."""
LAST_NUMBER: Final = _NUMBERS - 1
"""The offset of the last event from the attempt's first number, if another process ended the attempt."""


def first_number(attempt: int) -> int:
    """Return the number of the first event of an attempt."""
    return (attempt - 1) * _NUMBERS


def attempt_of(number: int) -> int:
    """Return the attempt that an event number belongs to."""
    return number // _NUMBERS + 1


class KeptState(Struct, frozen=True):
    """The progress of an attempt.

    ``resource`` is the response so far, and ``run_id`` the run of the attempt. ``pieces`` counts the stored
    pieces of events. ``full`` is true if the events took too much space. ``leading`` counts the first
    events that contain nothing of the answer.
    """

    resource: dict[str, Any]
    run_id: str
    pieces: int = 0
    full: bool = False
    leading: int = 0


class KeptAttempts:
    """Reads and writes the stored states and events of attempts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put_state(self, lease: Lease, caller: str, state: KeptState) -> None:
        """Queue a state for storing; it replaces the attempt's earlier state."""
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
        """Queue a piece of events for storing."""
        said = [[number, event.decode("utf-8", "replace")] for number, event in events]
        self._put(lease, str(piece), caller, run_id, said)

    def _put(self, lease: Lease, name: str, caller: str, run_id: str, value: Any) -> None:
        text = orjson.dumps(value).decode()
        kept = KeptResult(
            _key(lease, name), run_id, caller, text, untrusted=False, created_at=self._store.now()
        )
        self._store.put_result(kept)

    async def state(self, lease: Lease, caller: str) -> KeptState | None:
        """Return the stored state of an attempt, or ``None``; raises :class:`StoreError`."""
        found = await self._store.find_result(_key(lease, "state"), caller)
        if found is None:
            return None
        kept = orjson.loads(found.content)
        return KeptState(kept["resource"], kept["run"], kept["pieces"], kept["full"], kept.get("leading", 0))

    async def events(self, lease: Lease, caller: str, piece: int) -> Iterator[tuple[int, bytes]] | None:
        """Return a piece of events, or ``None`` while it is not on record. Raises StoreError."""
        found = await self._store.find_result(_key(lease, str(piece)), caller)
        if found is None:
            return None
        return ((number, text.encode()) for number, text in orjson.loads(found.content))


def _key(lease: Lease, name: str) -> str:
    attempt = "" if lease.attempt == 1 else f".{lease.attempt}"
    return f"{lease.response_id}{attempt}:{name}"
