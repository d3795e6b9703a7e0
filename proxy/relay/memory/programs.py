"""States of programs, so that a program goes on after its process died or a person has decided.

A state is written before a program's calls can have an effect, and when they wait for approvals. It is
content, and encrypted like all content.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from proxy.records.rows import SuspendedTurn
from proxy.store.base import Store
from proxy.tools.programs.engine import Language, ProgramCall

MOST_STATE: Final = 4 << 20
"""The most bytes of a program's state that are kept."""
_COMMIT_S: Final = 10.0
_PREFIX: Final = "program-"


class ProgramState(Struct, frozen=True):
    """A program that waits for the calls of its step ``step``, counted from 1.

    ``key`` is its name in the record. ``run_id`` is the program's run, ``parent_run`` the run that called
    it, and ``parent_call`` the execution of the tool there. ``tools`` maps the names that it knows to ids of
    tools; ``theirs`` are those of the client. ``results`` are those of its calls that have ended, by id.
    ``waiting`` are the approvals that others wait for, and ``asked`` the ids by which the client knows those
    that wait for it. ``printed`` is what it has printed so far, ``untrusted`` the sources of the untrusted
    results that it has read. ``language`` is what it is written in. ``dump`` is the engine's; it is empty
    once the program is ``done``, and ``result`` is then what it put out, as JSON text.
    """

    key: str
    run_id: str
    parent_run: str
    parent_call: str
    started_at: float
    tools: Mapping[str, str]
    step: int = 0
    made: int = 0
    calls: tuple[ProgramCall, ...] = ()
    results: Mapping[int, str] = field(default_factory=dict)
    waiting: Mapping[int, str] = field(default_factory=dict)
    theirs: frozenset[str] = frozenset()
    asked: Mapping[int, str] = field(default_factory=dict)
    printed: str = ""
    untrusted: str = ""
    dump: bytes = b""
    done: bool = False
    result: str | None = None
    language: Language = "python"
    written_at: float = 0.0


def key_of(caller: str, request: str, code: str) -> str:
    """Return the name of a program's state: equal for the same program of the same request of a caller."""
    digest = hashlib.blake2b(digest_size=24)
    for part in (caller, request, code):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return _PREFIX + digest.hexdigest()


def written(state: ProgramState) -> bytes:
    """Return a state as JSON."""
    return msgspec.json.encode(state)


def read(payload: bytes) -> ProgramState:
    """Return the state that :func:`written` wrote."""
    return msgspec.json.decode(payload, type=ProgramState)


class ProgramStates:
    """Stores states of programs. The process has one instance."""

    def __init__(self, store: Store, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now

    def put(self, state: ProgramState, caller: str, *, ephemeral: bool) -> None:
        """Queue a state, in place of the one before it."""
        self._store.put_suspended(
            SuspendedTurn(
                key=state.key,
                run_id=state.run_id,
                caller=caller,
                wire="program",
                payload=written(replace(state, written_at=self._now())),
                created_at=self._now(),
                ephemeral=ephemeral,
            )
        )

    async def commit(self) -> bool:
        """Wait until everything that was put is on record; return whether it is."""
        return await self._store.wait_until_visible(_COMMIT_S)

    async def find(self, key: str, caller: str) -> ProgramState | None:
        """Return the newest state of that name of a caller; raise
        :class:`~proxy.base.errors.StoreError`."""
        kept = (await self._store.find_all_suspended([key], caller)).get(key)
        return read(kept.payload) if kept is not None and kept.caller == caller else None

    def age_s(self, state: ProgramState) -> float:
        """Return how many seconds ago a state was written."""
        return self._now() - state.written_at
