"""Store the state of background responses while they run, separately for each attempt.

Each attempt has its own range of event numbers, so the number of an event tells its attempt.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.records.background import Lease
from proxy.records.rows import KeptResult
from proxy.store.base import Store

_NUMBERS: Final = 1_000_000
"""The size of one attempt's range of event numbers; its log holds fewer events than this."""
LAST_NUMBER: Final = _NUMBERS - 1
"""The offset of the last event from the attempt's first number, if the record says how the attempt ended."""


def first_number(attempt: int) -> int:
    """Return the number of the first event of an attempt."""
    return (attempt - 1) * _NUMBERS


def attempt_of(number: int) -> int:
    """Return the attempt that an event number belongs to."""
    return number // _NUMBERS + 1


def log_name(lease: Lease, caller: str) -> str:
    """Return the name of the log with the events of an attempt."""
    return f"{lease.response_id}.{lease.attempt} {caller}"


class KeptState(Struct, frozen=True):
    """The progress of an attempt.

    ``resource`` is the response so far, and ``run_id`` the run of the attempt. ``leading`` counts the first
    events that contain nothing of the answer. ``kept`` are the earlier attempts that it
    goes on with, each with the number of the last event that is also one of this attempt.
    """

    resource: dict[str, Any]
    run_id: str
    leading: int = 0
    kept: Mapping[int, int] = {}


class KeptStates:
    """Reads and writes the stored states of attempts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, lease: Lease, caller: str, state: KeptState) -> None:
        """Queue a state for storing; it replaces the attempt's earlier state."""
        kept = {"resource": state.resource, "run": state.run_id, "leading": state.leading}
        kept["kept"] = [*state.kept.items()]
        # What the last version reads: that it finds no events on record.
        kept |= {"pieces": 0, "full": True}
        text = orjson.dumps(kept).decode()
        self._store.put_result(
            KeptResult(_key(lease), state.run_id, caller, text, untrusted=False, created_at=self._store.now())
        )

    async def find(self, lease: Lease, caller: str) -> KeptState | None:
        """Return the stored state of an attempt, or ``None``; raises :class:`StoreError`."""
        found = await self._store.find_result(_key(lease), caller)
        if found is None:
            return None
        kept = orjson.loads(found.content)
        return KeptState(kept["resource"], kept["run"], kept.get("leading", 0), dict(kept.get("kept", ())))


def _key(lease: Lease) -> str:
    attempt = "" if lease.attempt == 1 else f".{lease.attempt}"
    return f"{lease.response_id}{attempt}:state"
