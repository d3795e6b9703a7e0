"""Find responses that no process runs; go on with them, or end them with the reason why they failed.

A response goes on after its last complete step, or from the start if it has none. It does so only if no call
with an effect had started since, its caller would still be admitted, and its time limit has not passed. Each
process looks for such responses; the record gives each response to only one of them. A request that kills its
process could kill all processes, so it is run again at most twice after a death.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NoReturn

import structlog
from msgspec.structs import replace

from proxy.api.detached.background import BackgroundRuns, EarlierAttempts
from proxy.api.detached.background_stream import ENDED
from proxy.api.detached.checkpoints import find_steps
from proxy.api.detached.kept_states import KeptState, KeptStates, log_name
from proxy.api.detached.messages import DIED, STOPPED, TOO_LONG, after_effects, failure, too_many_deaths
from proxy.api.detached.stored_request import StoredRequest, read_request
from proxy.base.errors import RequestError, StoreError
from proxy.net.keep_running import keep_running
from proxy.records.background import BackgroundRecord, BackgroundState, Lease
from proxy.relay.ask import Ask
from proxy.relay.memory.steps import Step, complete
from proxy.store.base import Store
from proxy.wires.responses.resource import queued

AskAgain = Callable[[StoredRequest], Awaitable[Ask]]
"""Turns a stored request into what its caller would ask now, under the id of a new run.

Raises :class:`~proxy.base.errors.RequestError`: 429 or 503 if it may work later, any other status if not.
"""

OnTakeOver = Callable[[str], None]
"""Called with the outcome of each response that no process ran: ``taken_over``, ``failed`` or
``cancelled``."""

_LOOK_EVERY_S: Final = 1.0
_MOST_DEATHS: Final = 2
"""After so many deaths a response is still run again."""
_LATER: Final = (429, 503)
_LEAST_S: Final = 1.0
"""The shortest time left, in seconds, that is worth another attempt."""


class TakeOver:
    """Looks for responses that no process runs. One per process."""

    def __init__(
        self,
        runs: BackgroundRuns,
        store: Store,
        ask_again: AskAgain,
        on_outcome: OnTakeOver,
        is_leaving: Callable[[], bool],
    ) -> None:
        """Create the search. ``is_leaving`` returns whether this process is about to end."""
        self._runs = runs
        self._store = store
        self._kept = KeptStates(store)
        self._ask_again = ask_again
        self._on_outcome = on_outcome
        self._is_leaving = is_leaving
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[NoReturn] | None = None
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.server")

    def start(self) -> None:
        """Start to look for such responses every few seconds."""
        looking = keep_running("background-take-over", self.settle_orphans, every_s=_LOOK_EVERY_S)
        self._task = asyncio.get_running_loop().create_task(looking)

    async def stop(self, timeout_s: float) -> None:
        """Stop looking; responses that run in this process continue."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def settle_orphans(self) -> None:
        """End or take over each response that no process runs, if that is possible now."""
        async with self._looking:
            try:
                found = await self._store.orphaned_background()
            except StoreError:
                return  # The record cannot be read now.
            for record in found:
                if not self._is_leaving():
                    await self._try(record)

    async def _try(self, record: BackgroundRecord) -> None:
        """Settle one response; log a failure, so that the others are still settled."""
        try:
            await self._settle(record)
        except StoreError as error:
            self._log.warning("background_run_not_settled", response=record.id, reason=str(error))
        # This request may have killed a process; it must not end the search for others.
        except Exception:  # noqa: BLE001
            self._log.exception("background_run_not_settled", response=record.id)

    async def _settle(self, record: BackgroundRecord) -> None:
        if record.cancelled:
            await self._end(record, "cancelled")
            return
        earlier = await self._earlier(record)
        if not earlier.can_go_on:
            await self._fail(record, after_effects(self._cause(record), earlier.effects))
            return
        left_s = record.asked_at + self._runs.settings.time_s - self._store.now()
        if left_s < _LEAST_S:
            await self._fail(record, TOO_LONG)
            return
        if record.state is BackgroundState.RUNNING and record.deaths >= _MOST_DEATHS:
            await self._fail(record, too_many_deaths(record.deaths + 1))
            return
        if self._runs.has_room(record.caller):
            await self._run_again(record, left_s, earlier)

    async def _earlier(self, record: BackgroundRecord) -> EarlierAttempts:
        """Return the last complete steps of a response, and what its runs did."""
        found: Sequence[Step] | None = None
        for attempt in range(record.attempt, 0, -1):
            lease = Lease(record.id, attempt)
            found = await find_steps(self._store, log_name(lease, record.caller), record.caller)
            if found is not None:
                break
            state = await self._kept.find(lease, record.caller)
            if state is not None and not state.kept:
                break  # It began from the start, so the steps before it are void.
        runs, effects = [record.run_id], list(await self._store.started_effects(record.run_id))
        own = len(effects)
        while len(runs) < record.attempt and (detail := await self._store.get_run(runs[-1])) is not None:
            if not detail.run.takes_over:
                break
            runs.append(detail.run.takes_over)
            effects += await self._store.started_effects(runs[-1])
        return EarlierAttempts(runs, found or (), effects, own)

    @staticmethod
    def _cause(record: BackgroundRecord) -> str:
        """Return the message about what happened to the last process that ran a response."""
        return DIED if record.state is BackgroundState.RUNNING else STOPPED

    async def _run_again(self, record: BackgroundRecord, left_s: float, earlier: EarlierAttempts) -> None:
        data = await self._store.background_request(record.id)
        if data is None:
            return  # It has ended meanwhile.
        request = read_request(data)
        if request.refusal_reason:
            words = f"{self._cause(record)} The request cannot be run again: {request.refusal_reason}."
            await self._fail(record, failure(words))
            return
        try:
            ask = await self._ask_again(request)
        except RequestError as error:
            await self._refused(record, error, self._cause(record), earlier.own_effects)
            return
        run_id = ask.identity.run_id
        # This counts as an attempt from here on, because planning too may kill the process.
        if not await self._store.claim_background(record.lease, run_id, earlier.own_effects):
            return
        claimed = replace(record, run_id=run_id, attempt=record.attempt + 1, state=BackgroundState.RUNNING)
        claimed = replace(claimed, orphaned_at=None)
        resource = queued(record.id, ask.body.payload, record.asked_at)
        self._kept.put(claimed.lease, record.caller, KeptState(resource, run_id, kept=earlier.kept))
        try:
            await self._runs.run_again(ask, claimed, left_s, earlier)
        except RequestError as error:
            await self._refused(claimed, error, self._cause(record))
            return
        except StoreError:
            await self._store.release_background(claimed.lease)
            raise
        self._report(
            "taken_over",
            record,
            attempt=claimed.attempt,
            by=run_id,
            turns=max(complete(earlier.steps).turns, 0),
        )

    async def _refused(
        self, record: BackgroundRecord, error: RequestError, what: str, effects: int = 0
    ) -> None:
        """Fail a response whose request is refused; if it may work later, let any process try it then."""
        if error.status in _LATER:
            if record.orphaned_at is None and record.state is BackgroundState.RUNNING:
                await self._store.release_background(record.lease, effects)
            return
        await self._fail(record, failure(f"{what} The request cannot be run again: {error.message}"))

    async def _fail(self, record: BackgroundRecord, error: dict[str, str]) -> None:
        await self._end(record, "failed", error)

    async def _end(self, record: BackgroundRecord, status: str, error: dict[str, str] | None = None) -> None:
        """End a response on behalf of its last process."""
        if not await self._store.end_background(record.lease):
            return
        state = await self._kept.find(record.lease, record.caller)
        if state is None:
            state = KeptState(queued(record.id, {}, record.asked_at), record.run_id)
        if state.resource["status"] not in ENDED:
            resource = state.resource | {"status": status, "error": error}
            self._kept.put(record.lease, record.caller, replace(state, resource=resource))
        self._report(status, record, reason="" if error is None else error["message"])

    def _report(self, outcome: str, record: BackgroundRecord, **facts: object) -> None:
        self._on_outcome(outcome)
        log = self._log.info if outcome == "taken_over" else self._log.warning
        log(f"background_run_{outcome}", response=record.id, run_id=record.run_id, **facts)
