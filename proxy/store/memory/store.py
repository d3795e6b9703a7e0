"""A store that forgets: everything in this process's memory, bounded, gone when it ends."""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from proxy.caches import CacheSize, declare, text_bytes, value_bytes
from proxy.effect_records import (
    UNANSWERED,
    UNSAID_WITHIN_S,
    EarlierAttempt,
    EarlierEffect,
    EffectClaim,
    EffectResult,
)
from proxy.errors import StoreUnavailable
from proxy.records import (
    RESULTS_KEPT_S,
    HiddenTurns,
    KeptResult,
    MessageRecord,
    NativeCall,
    ResponseRecord,
    RunRecord,
    SuspendedTurn,
    ToolInvocationRecord,
    TurnRecord,
)
from proxy.store.base import MAX_CALLED, CalledTool, PurgeFilter, RunDetail, RunFilter, UsageFilter, UsageRow
from proxy.store.memory.effects import MemoryEffects
from proxy.store.memory.keys import MemoryKeys
from proxy.store.memory.pins import MemoryPins
from proxy.store.memory.reports import count_usage, key_of, may_purge
from proxy.store.memory.threads import MemoryThreads
from proxy.store.shelf import (
    ContentPolicy,
    hidden_shelf,
    newest_two,
    oldest_kept,
    response_shelf,
    result_shelf,
    suspended_shelf,
)

__all__ = ["MAX_CONTENT_BYTES", "MemoryStore", "is_error"]

MAX_CONTENT_BYTES: Final = 64 * 2**20
"""Of each kind of content."""

_MAX_LISTED: Final = 1000
_MAX_ROW_BYTES: Final = 64 * 2**20
_ROW_BYTES: Final = 1000
"""What a row takes in memory beside its values of any length."""


def is_error(run: RunRecord) -> bool:
    """Whether ``errors_only`` lists this run."""
    return run.error_code is not None or run.status in ("failed", "interrupted")


@dataclass(slots=True)
class _Kept:
    run: RunRecord | None = None
    turns: dict[int, TurnRecord] = field(default_factory=dict)
    messages: dict[tuple[int, int], MessageRecord] = field(default_factory=dict)
    native_calls: dict[str, NativeCall] = field(default_factory=dict)
    content_at: float = 0.0
    content_bytes: int = 0
    row_bytes: int = 0
    invocations: dict[str, ToolInvocationRecord] = field(default_factory=dict)


class MemoryStore(MemoryKeys, MemoryPins):
    """:class:`~proxy.store.base.Store` for trials and tests.

    Holds the last ``max_runs`` runs in ``max_row_bytes`` and ``max_content_bytes`` each of messages,
    suspended turns, hidden turns, responses and large results, ``max_per_caller`` of one caller (0: no
    bound); what no longer fits goes, oldest first.  ``lost`` counts writes that came before ``start`` or
    after ``aclose``.
    """

    waiting = 0
    """Nothing waits: a write is done when it is made."""

    def __init__(
        self,
        *,
        content: ContentPolicy = "tools",
        keep_days: float = 30,
        clock: Callable[[], float] = time.time,
        max_runs: int = 1000,
        max_content_bytes: int = MAX_CONTENT_BYTES,
        max_row_bytes: int = _MAX_ROW_BYTES,
        max_per_caller: int = 0,
    ) -> None:
        MemoryKeys.__init__(self, clock)
        MemoryPins.__init__(self)
        self.lost = 0
        self._content = content
        self._keep_days = keep_days
        self._clock = clock
        self._max_runs = max_runs
        self._max_content_bytes = max_content_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._content_bytes = 0
        self._max_row_bytes = max_row_bytes
        self._row_bytes = 0
        declare("runs", self._rows_size)
        declare("messages", self._content_size)
        bounds = {"max_bytes": max_content_bytes, "max_per_caller": max_per_caller}
        self._suspended = suspended_shelf(self._oldest_kept, **bounds)
        self._hidden = hidden_shelf(self._oldest_kept, **bounds)
        self._responses = response_shelf(self._oldest_kept, **bounds)
        self._results = result_shelf(self._oldest_result, **bounds)
        self._effects = MemoryEffects(clock, self._oldest_kept)
        self._threads = MemoryThreads(clock, self._oldest_kept)
        self._open = False

    @property
    def sealed(self) -> bool:
        """Nothing is written, so nothing has to be masked."""
        return True

    @property
    def vault(self) -> None:
        """What is in memory is gone with the process, and no other sees it."""
        return None

    async def start(self) -> None:
        """Begin to take writes."""
        self._open = True

    async def aclose(self) -> None:
        """Take no more writes."""
        self._open = False

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        """Keep the row; as durable as memory is.  Raises :class:`StoreUnavailable` when closed."""
        if not self._open and durable:
            raise StoreUnavailable("the record is closed")
        self.close_invocation(record)

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        """Keep the row in place of an earlier one with its id."""
        if (kept := self._of(record.run_id)) is not None:
            before = kept.invocations.get(record.id)
            kept.invocations[record.id] = record
            self._rows_grew(kept, _call_bytes(record) - (_call_bytes(before) if before is not None else 0))
            self._effects.closed(record)

    async def claim_effect(self, record: ToolInvocationRecord, claim: EffectClaim) -> EarlierEffect | None:
        """Keep row and claim, or give what is there.  Raises :class:`StoreUnavailable` when closed."""
        if not self._open:
            raise StoreUnavailable("the record is closed")
        earlier = self._effects.claim(record, claim)
        if earlier is None:
            self.close_invocation(record)
        return earlier

    async def number_effects(self, claim: EffectClaim) -> Mapping[int, str]:
        """The effects of the claim's tool that are in its way, by number."""
        return self._effects.number(claim)

    async def find_effect(self, claim: EffectClaim) -> EarlierEffect | None:
        """What became of a claimed effect."""
        return self._effects.find(claim)

    async def earlier_attempt(self, claim: EffectClaim) -> EarlierAttempt:
        """How the run of an earlier request that is the same ended; all of them are of this process."""
        since = self._clock() - UNSAID_WITHIN_S
        ended = [kept.run for run in self._effects.unanswered(claim) if (kept := self._kept.get(run))]
        unanswered = any(
            run is not None and run.status in UNANSWERED and (run.ended_at or 0.0) >= since for run in ended
        )
        return "unanswered" if unanswered else "none"

    def settle_effects(self, invocation_ids: Collection[str]) -> None:
        """Note that a client has the whole answer of a run with these effects."""
        self._effects.settle(invocation_ids)

    def keep_effect(self, invocation_id: str, result: EffectResult) -> None:
        """Keep what the model was given of an effect."""
        self._effects.keep(invocation_id, result)

    def release_effect(self, invocation_id: str) -> None:
        """Free the claims of an execution that was never begun."""
        self._effects.release(invocation_id)

    def put_run(self, record: RunRecord) -> None:
        """Keep the run in place of an earlier one with its id."""
        if (kept := self._of(record.id)) is not None:
            before, kept.run = kept.run, record
            self._rows_grew(kept, _run_bytes(record) - (_run_bytes(before) if before is not None else 0))

    def put_turn(self, record: TurnRecord) -> None:
        """Keep a turn in place of an earlier one with its number."""
        if (kept := self._of(record.run_id)) is not None:
            if record.number not in kept.turns:
                self._rows_grew(kept, _ROW_BYTES)
            kept.turns[record.number] = record

    def put_messages(self, records: Sequence[MessageRecord]) -> None:
        """Keep messages, unless the policy is ``none``."""
        if self._content == "none":
            return
        for record in records:
            if (kept := self._of(record.run_id)) is None:
                continue
            place = (record.turn, record.seq)
            before = kept.messages.get(place)
            kept.messages[place] = record
            self._grew(kept, _message_bytes(record) - (_message_bytes(before) if before is not None else 0))
        self._make_room()

    def put_native_call(self, record: NativeCall) -> None:
        """Keep a call as it came in place of an earlier one, unless the policy is ``none``."""
        if self._content == "none" or (kept := self._of(record.run_id)) is None:
            return
        before = kept.native_calls.get(record.invocation_id)
        kept.native_calls[record.invocation_id] = record
        self._grew(kept, _native_bytes(record) - (_native_bytes(before) if before is not None else 0))
        self._make_room()

    def put_suspended(self, record: SuspendedTurn) -> None:
        """Hold a turn in place of an earlier one of its key."""
        if self._open:
            self._suspended.put(record)
        else:
            self.lost += 1

    async def find_suspended(self, key: str) -> SuspendedTurn | None:
        """The turn of that key, unless its days are over."""
        return self._suspended.find(key)

    async def find_all_suspended(self, keys: Sequence[str]) -> Mapping[str, SuspendedTurn]:
        """The same for some keys."""
        found = {key: self._suspended.find(key) for key in keys}
        return {key: turn for key, turn in found.items() if turn is not None}

    def put_hidden(self, record: HiddenTurns) -> None:
        """Keep hidden turns beside the variant of their key that came last before them."""
        if not self._open:
            self.lost += 1
            return
        self._hidden.put(record)
        variants = self._hidden.find_all(record.key)
        stay = newest_two(variants)
        for turns in variants:
            if turns not in stay:
                self._hidden.drop((turns.key, turns.variant))

    async def find_hidden(self, keys: Sequence[str]) -> Mapping[str, Sequence[HiddenTurns]]:
        """The variants of each key, unless their days are over, the newest first."""
        return {key: newest_two(self._hidden.find_all(key)) for key in keys}

    def put_response(self, record: ResponseRecord) -> None:
        """Keep a response in place of the caller's earlier one with its id."""
        if self._open:
            self._responses.put(record)
        else:
            self.lost += 1

    def put_threads(
        self,
        ids: Sequence[str],
        caller: str,
        untrusted: str,
        settled: Callable[[bool], None] | None = None,
    ) -> None:
        """Note what is known of threads."""
        self._threads.put(ids, caller, untrusted)
        if settled is not None:
            settled(True)

    async def find_threads(self, ids: Sequence[str], caller: str) -> Mapping[str, str]:
        """What was noted of threads."""
        return self._threads.find(ids, caller)

    async def find_response(self, response_id: str, caller: str) -> ResponseRecord | None:
        """The caller's own response of that id, unless its days are over."""
        return self._responses.find((response_id, caller))

    async def delete_response(self, response_id: str, caller: str) -> bool:
        """Forget a response of the caller's.  Raises :class:`StoreUnavailable` when closed."""
        if not self._open:
            raise StoreUnavailable("the record is closed")
        held = self._responses.find((response_id, caller)) is not None
        self._responses.drop((response_id, caller))
        return held

    def put_result(self, record: KeptResult) -> None:
        """Keep a large result."""
        if self._open:
            self._results.put(record)
        else:
            self.lost += 1

    async def find_result(self, handle: str, caller: str) -> KeptResult | None:
        """The caller's own result of that handle."""
        return self._results.find((handle, caller))

    async def list_runs(self, wanted: RunFilter) -> Sequence[RunRecord]:
        """Runs, newest first."""
        if wanted.before is None:
            below = None
        else:
            entry = self._kept.get(wanted.before)
            if entry is None or entry.run is None:
                return []
            below = (entry.run.started_at, entry.run.id)
        runs = [
            kept.run
            for kept in self._kept.values()
            if kept.run is not None
            and _fits(kept, kept.run, wanted)
            and (below is None or (kept.run.started_at, kept.run.id) < below)
        ]
        runs.sort(key=lambda run: (run.started_at, run.id), reverse=True)
        return runs[: max(0, min(wanted.limit, _MAX_LISTED))]

    async def get_run(self, run_id: str) -> RunDetail | None:
        """One run by its id, or by a prefix that fits exactly one."""
        kept = self._kept.get(run_id)
        if kept is None or kept.run is None:
            fitting = [
                other
                for key, other in self._kept.items()
                if other.run is not None and run_id and key.startswith(run_id)
            ]
            if len(fitting) != 1:
                return None
            kept = fitting[0]
        if kept.run is None:
            return None
        fresh = kept.content_at >= self._oldest_kept()
        return RunDetail(
            kept.run,
            [kept.turns[number] for number in sorted(kept.turns)],
            [kept.messages[place] for place in sorted(kept.messages)] if fresh else [],
            sorted(kept.invocations.values(), key=lambda row: (row.turn, row.seq, row.started_at, row.id)),
            [kept.native_calls[name] for name in sorted(kept.native_calls)] if fresh else [],
        )

    async def called_tools(self, run_ids: Sequence[str]) -> Mapping[str, Sequence[CalledTool]]:
        """The calls of some runs in their order."""
        found: dict[str, Sequence[CalledTool]] = {}
        left = MAX_CALLED
        for run_id in sorted(set(run_ids)):
            kept = self._kept.get(run_id)
            if kept is None or kept.run is None or not kept.invocations or not left:
                continue
            calls = sorted(
                kept.invocations.values(), key=lambda row: (row.turn, row.seq, row.started_at, row.id)
            )[:left]
            found[run_id] = [CalledTool(row.tool, row.status, row.error_code) for row in calls]
            left -= len(calls)
        return found

    async def usage(self, wanted: UsageFilter) -> Sequence[UsageRow]:
        """What was used, a row for each group, sorted by group."""
        kept = [(kept.run, list(kept.invocations.values())) for kept in self._kept.values()]
        return count_usage(wanted, [(run, calls) for run, calls in kept if run is not None])

    async def purge(self, wanted: PurgeFilter) -> int:
        """Delete runs with everything that hangs on them; how many.  All that fit go at once."""
        if not self._open:
            raise StoreUnavailable("the record is closed")
        gone = {
            key
            for key, kept in self._kept.items()
            if kept.run is not None and may_purge(wanted, kept.run, kept.invocations.values())
        }
        for key in gone:
            self._forget(key)
        self._suspended.drop_runs(gone)
        self._hidden.drop_runs(gone)
        self._responses.drop_runs(gone)
        self._results.drop_runs(gone)
        self._effects.forget_results(gone)
        return len(gone)

    async def scrub(self) -> str:
        """Nothing is written anywhere."""
        return ""

    async def settle(self, within_s: float) -> bool:
        """No other process ever finds it here; in this one it is there at once."""
        return self._open

    async def healthy(self) -> bool:
        """Whether writes are taken."""
        return self._open

    def _oldest_kept(self) -> float:
        return oldest_kept(self._clock(), self._keep_days)

    def _oldest_result(self) -> float:
        return max(self._oldest_kept(), self._clock() - RESULTS_KEPT_S)

    def _of(self, run_id: str) -> _Kept | None:
        if not self._open:
            self.lost += 1
            return None
        kept = self._kept.get(run_id)
        if kept is None:
            kept = self._kept[run_id] = _Kept()
            self._make_room()
        return kept

    def _forget(self, run_id: str) -> None:
        gone = self._kept.pop(run_id)
        self._content_bytes -= gone.content_bytes
        self._row_bytes -= gone.row_bytes

    def _rows_grew(self, kept: _Kept, by: int) -> None:
        kept.row_bytes += by
        self._row_bytes += by
        self._make_room()

    def _grew(self, kept: _Kept, by: int) -> None:
        kept.content_at = self._clock()
        kept.content_bytes += by
        self._content_bytes += by

    def _make_room(self) -> None:
        while len(self._kept) > self._max_runs or self._row_bytes > self._max_row_bytes:
            self._forget(next(iter(self._kept)))
        expired = self._oldest_kept()
        for kept in self._kept.values():
            too_old = kept.content_at < expired
            if not too_old and self._content_bytes <= self._max_content_bytes:
                break
            self._content_bytes -= kept.content_bytes
            kept.content_bytes = 0
            kept.messages.clear()
            kept.native_calls.clear()

    def _rows_size(self) -> CacheSize:
        return CacheSize(self._row_bytes, self._max_row_bytes)

    def _content_size(self) -> CacheSize:
        return CacheSize(self._content_bytes, self._max_content_bytes)


def _message_bytes(record: MessageRecord) -> int:
    texts = (record.content, record.content_json, record.tool_calls, record.function_call)
    return _ROW_BYTES + text_bytes(texts)


def _native_bytes(record: NativeCall) -> int:
    return _ROW_BYTES + text_bytes((record.payload,))


def _run_bytes(record: RunRecord) -> int:
    names = (record.request_id, record.caller, record.model, record.upstream, record.error_code)
    return (
        2 * _ROW_BYTES
        + text_bytes(names)
        + 100 * (len(record.offered) + len(record.withheld) + len(record.left_out))
    )


def _call_bytes(record: ToolInvocationRecord) -> int:
    return _ROW_BYTES + value_bytes([record.arguments_redacted, record.result_redacted])


def _fits(kept: _Kept, run: RunRecord, wanted: RunFilter) -> bool:
    return (
        (wanted.status is None or run.status == wanted.status)
        and (wanted.model is None or run.model == wanted.model)
        and (wanted.caller is None or wanted.caller in (run.caller, key_of(run.caller)))
        and (wanted.since is None or run.started_at >= wanted.since)
        and (wanted.until is None or run.started_at < wanted.until)
        and (wanted.begins is None or run.id.startswith(wanted.begins))
        and (not wanted.errors_only or is_error(run))
        and (wanted.tool is None or any(row.tool == wanted.tool for row in kept.invocations.values()))
    )
