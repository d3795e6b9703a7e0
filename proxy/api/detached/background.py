"""Run background responses: runs without a client that any process can read, cancel and take over.

While a process runs a response, it stores the resource in the record (:mod:`proxy.api.detached.kept_states`)
and writes the events to a log (:mod:`proxy.api.detached.logs.event_log`). A process may run the response as
long as its lease lasts (:mod:`proxy.records.background`). If it dies, another process runs the request again
or ends the response (:mod:`proxy.api.detached.take_over`).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final
from uuid import uuid4

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from proxy.api.detached.background_stream import BackgroundStream
from proxy.api.detached.checkpoints import Checkpoint
from proxy.api.detached.kept_states import KeptState, KeptStates, log_name
from proxy.api.detached.logs.event_log import EventLog, EventLogs
from proxy.api.detached.messages import NOT_CONTINUED, STOPPED, TOO_LONG, after_effects
from proxy.api.detached.stored_request import StoredRequest
from proxy.base.errors import NotOnRecord, RequestError, StoreError
from proxy.http.rules import HeaderRules
from proxy.json.splice import join_object, members
from proxy.records.background import BackgroundRecord, Lease, StartedEffect
from proxy.relay.ask import Ask, Detached
from proxy.relay.base import ClientStream
from proxy.relay.body import Body
from proxy.relay.memory.steps import Step, Steps, complete, uncovered
from proxy.relay.run.job import Job
from proxy.relay.starting.runs import Runs, StartedRun
from proxy.store.base import Store
from proxy.wires.responses.resource import queued

BackgroundContext = Callable[[str, str], AbstractContextManager[None]]
"""Returns the context manager in which to serve a run without an open request, from the ids of run and
model."""

PREFIX: Final = "resp_toolrelay_bg"
"""The prefix of the ids of background responses."""

_LOOK_EVERY_S: Final = 0.5
"""Seconds after which the process stores what is new, and looks whether the response was cancelled."""
_GIVE_UP_S: Final = 5.0
"""Seconds that a run may take to end after its time limit."""
_END_AGAIN_S: Final = 1.0
_END_WAIT_S: Final = 60.0
"""Seconds for which the process retries to store the end of a response."""


class BackgroundSettings(Struct, frozen=True):
    """Limits of background responses.

    One process runs at most ``total`` responses at a time, and ``per_caller`` of them for one caller. Each
    may run for ``time_s`` seconds. A client that follows a response gets a comment after ``keepalive_s``
    seconds without an event. ``keeps`` is true if the record keeps content; otherwise no response could be
    read later. ``headers`` select the headers of a request that are stored with it.
    """

    per_caller: int = 8
    total: int = 64
    time_s: float = 3600.0
    keepalive_s: float = 10.0
    keeps: bool = True
    headers: HeaderRules = field(default_factory=HeaderRules)


class EarlierAttempts(Struct, frozen=True):
    """What is known of the attempts before: their runs, the last one first, the complete steps, and the calls
    with effects that have started, ``own_effects`` of them in the last run."""

    runs: Sequence[str] = ()
    steps: Sequence[Step] = ()
    effects: Sequence[StartedEffect] = ()
    own_effects: int = 0

    @property
    def can_go_on(self) -> bool:
        """Whether no effect would happen again if another attempt went on after the steps."""
        return not uncovered(self.effects, self.runs, complete(self.steps))

    @property
    def kept(self) -> dict[int, int]:
        """The number of the last event of each attempt that is part of the answer."""
        return {step.place.attempt: step.place.last for step in self.steps}


FIRST: Final = EarlierAttempts()


class BackgroundRun(Struct, eq=False):
    """An attempt of a background response that runs in this process.

    ``steps`` are set if the request is stored, so that another process can go on with it or run it again. It
    may run for ``time_s`` seconds. ``lost`` is true once another process owns the response; ``released`` is
    true once any process may take it.
    """

    lease: Lease
    run_id: str
    caller: str
    stream: BackgroundStream
    steps: Steps | None
    earlier: EarlierAttempts
    started: StartedRun
    time_s: float
    task: asyncio.Task[None] | None = None
    dirty: bool = False
    cancelled: bool = False
    stopped: bool = False
    lost: bool = False
    released: bool = False

    @property
    def id(self) -> str:
        """The id of the response."""
        return self.lease.response_id

    @property
    def is_here(self) -> bool:
        """Whether this process still owns the response."""
        return not (self.lost or self.released)


class BackgroundRuns:
    """The background responses that this process runs. One per process."""

    def __init__(
        self,
        runs: Runs,
        store: Store,
        logs: EventLogs,
        settings: BackgroundSettings,
        run_context: BackgroundContext,
    ) -> None:
        self.settings = settings
        self._runs = runs
        self._store = store
        self._logs = logs
        self._kept = KeptStates(store)
        self._run_context = run_context
        self._open: dict[tuple[str, str], BackgroundRun] = {}
        self._starting: list[str] = []
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.server")

    def needs_run(self, ask: Ask) -> bool:
        """Return whether the proxy makes a run for a request: it offers server tools, or translates
        dialects."""
        return self._runs.planner.takes_part(_foreground(ask))

    def local_run(self, response_id: str, caller: str) -> BackgroundRun | None:
        """Return the caller's response with this id, if this process runs and still owns it."""
        run = self._open.get((response_id, caller))
        return run if run is not None and run.is_here else None

    async def start(self, ask: Ask, request: StoredRequest) -> BackgroundRun:
        """Start a response; ``request`` is the stored form, from which the response can be run again.

        Raises :class:`RequestError`: 400 if the request cannot run in the background, 429 over
        a limit, 503 if the response cannot be stored.
        """
        caller = ask.identity.caller
        self._check(ask, caller)
        record = BackgroundRecord(f"{PREFIX}{uuid4().hex}", caller, ask.identity.run_id, self._store.now())
        with self._counted(caller):
            # Its state is stored before the response exists: a process that finds it also finds its state.
            run = await self._planned(ask, record, self.settings.time_s, repeats=not request.refusal_reason)
            try:
                await self._store.put_background(record, request.to_json())
            except StoreError as error:
                raise RequestError(
                    503,
                    "The proxy could not store the response. Send the request again.",
                    type="server_error",
                    code="store_unavailable",
                    headers={"Retry-After": "1"},
                ) from error
        return self._begin(run)

    async def run_again(
        self, ask: Ask, claimed: BackgroundRecord, time_s: float, earlier: EarlierAttempts
    ) -> None:
        """Run a response that this process has claimed, for at most ``time_s`` seconds.

        It goes on after the steps of ``earlier`` attempts. Raises :class:`RequestError` and
        :class:`~proxy.base.errors.StoreError` as planning does.
        """
        with self._counted(claimed.caller):
            run = await self._planned(ask, claimed, time_s, earlier)
        self._begin(run)

    def has_room(self, caller: str) -> bool:
        """Return whether the limits let this process run one more response for a caller."""
        callers = self._callers()
        return callers.count(caller) < self.settings.per_caller and len(callers) < self.settings.total

    def _callers(self) -> list[str]:
        return [*(one for _, one in self._open), *self._starting]

    @contextmanager
    def _counted(self, caller: str) -> Iterator[None]:
        """Count a response against the limits while it is planned, since planning awaits the record."""
        self._starting.append(caller)
        try:
            yield
        finally:
            self._starting.remove(caller)

    async def _planned(
        self,
        ask: Ask,
        record: BackgroundRecord,
        time_s: float,
        earlier: EarlierAttempts = FIRST,
        *,
        repeats: bool = True,
    ) -> BackgroundRun:
        """Plan an attempt, bind its effects to its lease, and store its first state."""
        lease, run_id, known = record.lease, ask.identity.run_id, earlier.steps
        resource = queued(record.id, ask.body.payload, record.asked_at)
        run: BackgroundRun

        async def before_end() -> None:
            await self._end_on_record(lease)

        def changed() -> None:
            run.dirty = True
            if not run.stream.resource["output"]:
                self._keep(run)  # A reader who has nothing of the answer yet can go on with any attempt.

        def output(job: Job) -> ClientStream:
            job.tools.ledger.lease = lease
            return stream

        numbers = known[0].place.attempt if known else lease.attempt
        stream = BackgroundStream(resource, EventLog(), changed, numbers, again=bool(known))
        checkpoint = self._checkpoint(lease, run_id, record.caller)
        steps = Steps(run_id, stream, checkpoint, known, lease.attempt) if repeats else None
        detached = Detached(
            record.id, record.asked_at, time_s, before_end, earlier.runs[0] if earlier.runs else ""
        )
        ask = replace(_foreground(ask), options=replace(ask.options, detached=detached, steps=steps))
        started = await self._runs.start(ask, output)
        self._kept.put(lease, record.caller, KeptState(resource, run_id, kept=earlier.kept))
        run = BackgroundRun(lease, run_id, record.caller, stream, steps, earlier, started, time_s)
        return run

    def _begin(self, run: BackgroundRun) -> BackgroundRun:
        self._open[run.id, run.caller] = run
        run.stream.log = self._logs.open(log_name(run.lease, run.caller))
        run.task = asyncio.get_running_loop().create_task(self._attend(run))
        return run

    async def _serve(self, run: BackgroundRun) -> None:
        with self._run_context(run.run_id, run.started.job.client.request.model):
            async with asyncio.timeout(run.time_s + _GIVE_UP_S):
                await run.started.serve()

    def _check(self, ask: Ask, caller: str) -> None:
        payload = ask.body.payload
        if payload.get("store") is False:
            raise RequestError(
                400,
                "A background response must be stored. Leave store out, or set it to true.",
                param="store",
            )
        if not self.settings.keeps:
            raise RequestError(
                400,
                "This server stores no responses, so it cannot run them in the background (store.content is "
                "none). Leave background out.",
                param="background",
            )
        if not self.has_room(caller):
            own = self._callers().count(caller) >= self.settings.per_caller
            raise RequestError(
                429,
                "Too many background responses are running "
                f"(limits.{'background' if own else 'background_total'}). Wait until one has ended, or "
                "cancel one.",
                type="rate_limit_error",
                code="rate_limit_exceeded",
                headers={"Retry-After": "5"},
            )

    async def _end_on_record(self, lease: Lease) -> None:
        """End a response on record before its answer is stored, so that no other process takes it over.

        Raises :class:`~proxy.base.errors.NotOnRecord` if another process owns it, or if the record cannot be
        written.
        """
        until = time.monotonic() + _END_WAIT_S
        while True:
            try:
                if await self._store.end_background(lease):
                    return
                break
            except StoreError:
                if time.monotonic() >= until:
                    break
            await asyncio.sleep(_END_AGAIN_S)
        raise NotOnRecord("The response could not be stored, so it has no answer.")

    async def _attend(self, run: BackgroundRun) -> None:
        """Store the state of a run as it changes. Cancel the run if it was cancelled or another process
        owns it."""
        serving = asyncio.get_running_loop().create_task(self._serve(run))
        try:
            while not serving.done():
                await asyncio.wait({serving}, timeout=_LOOK_EVERY_S)
                self._keep(run)
                if not serving.done():
                    await self._look(run)
                if (run.cancelled or run.lost) and not serving.done():
                    serving.cancel()
        except asyncio.CancelledError:
            run.stopped = True
            raise
        finally:
            if not serving.done():
                serving.cancel()
                await asyncio.wait({serving})
            await self._ended(run, serving)

    async def _look(self, run: BackgroundRun) -> None:
        """Look up whether a run was cancelled, or is now owned by another process."""
        try:
            record = await self._store.find_background(run.id, run.caller)
        except StoreError:
            return
        if record is not None:
            run.cancelled = run.cancelled or record.cancelled
            run.lost = record.attempt != run.lease.attempt

    async def _ended(self, run: BackgroundRun, serving: "asyncio.Task[None]") -> None:
        """Store the end of an attempt: an answer, an error, or that another process may take the response."""
        error = None if serving.cancelled() else serving.exception()
        if run.cancelled:
            run.stream.cancel()
        elif run.stopped and not run.stream.ended and not run.lost:
            await self._stop(run)
        elif run.steps is not None and run.steps.replaying and not run.lost:
            await self._start_over(run)
        elif isinstance(error, TimeoutError):
            run.stream.fail(TOO_LONG)
        elif error is not None:
            run.stream.abort()
            self._log.error("background_run_failed", run_id=run.run_id, exception=type(error).__name__)
        if not run.released:
            await self._close(run)
        run.dirty = True
        self._keep(run)
        if run.is_here:
            # Who has read the end finds it on record, at any worker.
            await self._store.wait_until_visible(_END_AGAIN_S)
            run.stream.close()
        else:
            run.stream.log.close(ended=False)
        self._open.pop((run.id, run.caller), None)

    async def _stop(self, run: BackgroundRun) -> None:
        """Release a run to other processes; fail it if it has started an effect or cannot be released."""
        try:
            effects = await self._store.started_effects(run.run_id)
            if run.steps is not None and not uncovered(effects, {run.run_id}, run.steps.complete):
                run.released = await self._store.release_background(run.lease, len(effects))
        except StoreError:
            effects = ()
        if run.released:
            run.stream.release()
            self._log.info("background_run_released", response=run.id, run_id=run.run_id)
        else:
            run.stream.fail(after_effects(STOPPED, effects))

    async def _start_over(self, run: BackgroundRun) -> None:
        """Release a run that could not be continued to be run from the start; fail it if it has had an
        effect."""
        earlier = run.earlier
        self._checkpoint(run.lease, run.run_id, run.caller).void()
        run.stream.drop(run.lease.attempt)
        self._log.warning("background_run_not_continued", response=run.id, run_id=run.run_id)
        had_effects = bool(earlier.effects) or any(step.effects.caused for step in earlier.steps)
        with contextlib.suppress(StoreError):
            if not had_effects and await self._store.wait_until_visible(_END_AGAIN_S):
                run.released = await self._store.release_background(run.lease)
        if run.released:
            run.stream.release()
        else:
            run.stream.fail(after_effects(NOT_CONTINUED, earlier.effects))

    def _checkpoint(self, lease: Lease, run_id: str, caller: str) -> Checkpoint:
        return Checkpoint(self._store, run_id, log_name(lease, caller), caller)

    async def _close(self, run: BackgroundRun) -> None:
        """End the response on record, unless another process owns it."""
        try:
            run.lost = run.lost or not await self._store.end_background(run.lease)
        except StoreError:
            # A process that finds this one dead will end the response.
            self._log.warning("background_run_not_ended", response=run.id, run_id=run.run_id)
        if run.lost:
            self._log.warning("background_run_lost", response=run.id, run_id=run.run_id)
        else:
            run.stream.finish()

    def _keep(self, run: BackgroundRun) -> None:
        """Store the state of a response if it has changed."""
        if run.dirty and not run.lost:
            run.dirty = False
            self._kept.put(run.lease, run.caller, self.state(run))

    @staticmethod
    def state(run: BackgroundRun) -> KeptState:
        """Return the progress of a run of this process."""
        return KeptState(run.stream.resource, run.run_id, run.stream.leading, run.earlier.kept)

    async def drain(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` seconds for the responses to end. Release the rest to other processes, or
        fail them."""
        tasks = {run.task for run in self._open.values() if run.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def _foreground(ask: Ask) -> Ask:
    """Return the request as upstreams get it: without ``background``, and with ``stream`` set to true."""
    parts = {key: value for key, value in members(ask.body.raw).items() if key != "background"}
    payload = {key: value for key, value in ask.body.payload.items() if key != "background"}
    return replace(ask, body=Body(join_object({**parts, "stream": b"true"}), {**payload, "stream": True}))
