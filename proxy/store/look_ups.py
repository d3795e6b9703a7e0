"""Look-ups in a record that may be busy, or may not answer.

Requests look things up. What waits is answered together: one switch to a thread, or one round trip, for all
of it. So a look-up waits for one or two others, however many requests come at once.

The record can hang: a disk is gone, a server is frozen or behind a dead network. Each group of look-ups has
one time limit, which starts when the database gets it. The first that exceeds it starts a probe. Until the
probe is answered, all look-ups fail at once instead of waiting. A long queue says nothing about the record.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeAlias

from proxy.base.errors import StoreError, StoreUnavailable
from proxy.base.hard_timeout import HardTimeout, ends_in_time
from proxy.store.base import LOOK_UP_S
from proxy.store.rows import Row

_log = logging.getLogger(__name__)

_QUEUE_S: Final = 30.0
"""Seconds after which a look-up gives up although the record answers others: more than it can serve."""
_BATCH_VALUES: Final = 512
"""The most parameters in one batch, unless one query has more: that bounds the work for one answer."""
_FIRST_PROBE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0

_PROBE: Final = "SELECT count(*) FROM key_state"

Answer: TypeAlias = "Iterable[Any] | Exception"
"""The rows that a query found, or why it failed."""


class Query:
    """One look-up: a statement that reads, its values, and the future of its rows."""

    __slots__ = ("answer", "sql", "values")

    def __init__(self, sql: str, values: Row, answer: "asyncio.Future[Iterable[Any]]") -> None:
        self.sql = sql
        self.values = values
        self.answer = answer


class QueryBatch:
    """Look-ups that the database answers together.

    The database adds to ``steps`` as it gets on, from any thread; the time limit starts anew with each step.
    Once ``given_up`` is true, nobody waits for the rest.
    """

    __slots__ = ("given_up", "queries", "steps")

    def __init__(self, queries: Sequence[Query]) -> None:
        self.queries = queries
        self.steps = 0
        self.given_up = False


_Ask: TypeAlias = Callable[[QueryBatch], Coroutine[Any, Any, Sequence[Answer]]]


class LookUps:
    """Runs look-ups with a time limit, and fails them at once while the record does not answer.

    ``ask`` answers a batch, in the order of its queries; it may take long, and raises StoreError if it
    answers none. It is called at most ``lanes`` times at once, and once more to probe.
    """

    def __init__(self, ask: _Ask, lanes: int = 1) -> None:
        self._ask = ask
        self._lanes = lanes
        self._waiting = _Waiting()
        self._busy: set[asyncio.Task[None]] = set()
        self._prober: asyncio.Task[None] | None = None
        self._hard_timeout = HardTimeout()
        self._closed = False

    @property
    def is_unresponsive(self) -> bool:
        """Whether the record is known not to answer."""
        return self._prober is not None

    async def run(self, sql: str, values: Row, caller: str = "") -> Iterable[Any]:
        """Return the rows that a statement finds. Callers whose look-ups wait take turns.

        Raises :class:`~proxy.base.errors.StoreUnavailable` if the database needs more than
        :data:`~proxy.store.base.LOOK_UP_S`, or at once while the record is unresponsive. Errors of the
        look-up itself pass through.
        """
        if self._closed:
            raise StoreUnavailable("the record is closed")
        if self._prober is not None:
            raise StoreUnavailable("the record does not answer")
        query = Query(sql, values, asyncio.get_running_loop().create_future())
        self._waiting.put(caller, query)
        self._open_lane()
        try:
            async with asyncio.timeout(_QUEUE_S):
                return await query.answer
        except TimeoutError:
            raise StoreUnavailable(
                f"the record has more look-ups waiting than it answers in {_QUEUE_S:g} s"
            ) from None

    def close(self) -> None:
        """Cancel what is running, and fail what waits or comes later."""
        self._closed = True
        for task in (self._prober, *self._busy):
            if task is not None:
                task.cancel()
        self._fail_waiting("the record is closed")
        self._hard_timeout.close()

    def _open_lane(self) -> None:
        if self._waiting and len(self._busy) < self._lanes:
            lane = asyncio.get_running_loop().create_task(self._serve(), name="record-look-ups")
            self._busy.add(lane)
            lane.add_done_callback(self._lane_ended)

    def _lane_ended(self, lane: "asyncio.Task[None]") -> None:
        self._busy.discard(lane)
        self._open_lane()  # For what came since its last step, or whatever ended it.

    async def _serve(self) -> None:
        """Answer what waits, batch by batch, until nothing waits."""
        while batch := self._waiting.take(_BATCH_VALUES):
            _settle(batch, await self._answers(batch))

    async def _answers(self, batch: QueryBatch) -> Sequence[Answer]:
        try:
            return await self._hard_timeout.run(self._ask(batch), LOOK_UP_S, lambda: batch.steps)
        except StoreError as error:
            return [error] * len(batch.queries)
        except TimeoutError:
            batch.given_up = True
            self._went_away()
            return _all(batch, f"the record did not answer within {LOOK_UP_S:g} s")
        # The boundary of the lane: the error goes to those who asked, and those who wait get their turn.
        except Exception as error:  # noqa: BLE001
            _log.exception("look-ups in the record failed unexpectedly")
            return _all(batch, f"the record could not be read ({type(error).__name__})")
        except BaseException:  # Whatever ends this task, nobody may wait for it in vain.
            batch.given_up = True
            _settle(batch, _all(batch, "the record is closed"))
            raise

    def _fail_waiting(self, reason: str) -> None:
        while batch := self._waiting.take(_BATCH_VALUES):
            _settle(batch, _all(batch, reason))

    def _went_away(self) -> None:
        if self._prober is None:
            _log.error("the record does not answer: nothing is looked up in it until it does")
            self._prober = asyncio.get_running_loop().create_task(self._probe(), name="record-probe")
        self._fail_waiting("the record does not answer")

    async def _probe(self) -> None:
        """Probe until an answer comes in time. Only one probe runs at a time, however long it takes."""
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PROBE_S
        try:
            while True:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                asked = loop.create_task(self._ask(QueryBatch([Query(_PROBE, (), loop.create_future())])))
                try:
                    in_time = await ends_in_time(asked, LOOK_UP_S)
                    (answer,) = await asked
                except StoreError:
                    continue
                # As in _answers: only an answer ends the probe.
                except Exception:  # noqa: BLE001
                    _log.exception("a look-up in the record failed unexpectedly")
                    continue
                finally:
                    asked.cancel()
                if in_time and not isinstance(answer, Exception):
                    break
        finally:
            self._prober = None
        _log.warning("the record answers again")


class _Waiting:
    """The look-ups that wait. Callers take turns, so many look-ups of one do not delay those of another."""

    def __init__(self) -> None:
        self._of: dict[str, deque[Query]] = {}
        """By caller; whose turn it is stands first."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, caller: str, query: Query) -> None:
        self._of.setdefault(caller, deque()).append(query)

    def take(self, most_values: int) -> QueryBatch | None:
        """Remove and return the next look-ups with at most so many values, or one with more; ``None`` if
        nothing waits."""
        taken: list[Query] = []
        left = most_values
        while self._of:
            caller = next(iter(self._of))
            queries = self._of[caller]
            cost = len(queries[0].values) + 1
            if taken and cost > left:
                break
            del self._of[caller]
            query = queries.popleft()
            if queries:
                self._of[caller] = queries
            if not query.answer.done():  # Else its caller has left.
                taken.append(query)
                left -= cost
        return QueryBatch(taken) if taken else None


def _all(batch: QueryBatch, reason: str) -> list[Answer]:
    return [StoreUnavailable(reason) for _ in batch.queries]


def _settle(batch: QueryBatch, answers: Sequence[Answer]) -> None:
    for query, answer in zip(batch.queries, answers, strict=True):
        if query.answer.done():
            continue
        if isinstance(answer, Exception):
            query.answer.set_exception(answer)
        else:
            query.answer.set_result(answer)
