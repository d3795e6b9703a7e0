"""Store the complete steps of runs that go on without their clients (:mod:`proxy.relay.memory.steps`).

A step is content, so it is sealed with the record and kept as long as large results are, an hour.
"""

import base64
import hashlib
from collections.abc import Sequence
from typing import Final

from proxy.base.errors import StoreError
from proxy.records.rows import KeptResult
from proxy.relay.memory.steps import Step, read_step
from proxy.store.base import Store

_MOST: Final = 1000
_SETTLED_S: Final = 2.0


class Checkpoint:
    """The steps of one attempt; a :class:`~proxy.relay.memory.steps.StepLog`."""

    def __init__(self, store: Store, run_id: str, name: str, caller: str) -> None:
        self._store = store
        self._run_id = run_id
        self._owner = _owner(caller)
        self._name = name

    def put(self, number: int, step: bytes) -> None:
        text = base64.b64encode(step).decode()
        self._store.put_result(
            KeptResult(_handle(self._name, number), self._run_id, self._owner, text, True, self._store.now())
        )

    async def settled(self) -> None:
        await self._store.wait_until_visible(_SETTLED_S)

    def void(self) -> None:
        """Note that nobody can go on after these steps, nor after those of earlier attempts."""
        self.put(0, b"")


async def find_steps(store: Store, name: str, caller: str) -> Sequence[Step] | None:
    """Return the steps of an attempt, in order; ``None`` if it has none, and nothing if they are void.

    Raises :class:`~proxy.base.errors.StoreError`.
    """
    steps: list[Step] = []
    while len(steps) < _MOST:
        found = await store.find_result(_handle(name, len(steps)), _owner(caller))
        if found is None:
            return steps or None
        if not found.content:
            return []
        try:
            steps.append(read_step(base64.b64decode(found.content)))
        except ValueError as error:
            raise StoreError("a step of a run cannot be read") from error
    return steps


def _owner(caller: str) -> str:
    """Return the owner of a caller's rows. No client has this name, so none can read them as a result of a
    tool."""
    return f"steps of {caller}"


def _handle(name: str, number: int) -> str:
    """Return the key of a step. It shows nothing of the name, which may hold a caller's."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()
    return f"step_{digest}:{number}"
