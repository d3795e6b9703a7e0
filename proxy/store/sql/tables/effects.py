"""Side effects in SQL: claimed once among all processes that share the record.

The row of an invocation and its claims are one commit. If a claim exists already, the statement sets a NOT
NULL column to NULL, and the database refuses the whole commit. So nothing must be read first, and of two
processes that claim at the same moment one is refused.
"""

from collections.abc import Collection, Mapping
from functools import partial
from itertools import count
from typing import Any, Final

from msgspec.structs import replace

from proxy.records.effects import (
    REPEATS_WITHIN_S,
    UNANSWERED,
    UNMARKED_REPEAT_WITHIN_S,
    EarlierAttempt,
    EarlierEffect,
    EffectClaim,
    EffectResult,
)
from proxy.records.rows import ToolEffect, ToolInvocationRecord
from proxy.store import rows
from proxy.store.seal import CALLS, CLAIMS
from proxy.store.sql.base import SqlReader, select
from proxy.store.sql.tables.approvals import SqlApprovals
from proxy.store.sql.tables.background import lease_guard
from proxy.store.sql.writing.writer import RowRefused
from proxy.store.sql.writing.writes import Write

_PUT_INVOCATION: Final = rows.upsert(
    "tool_invocations",
    ("owner_id", *CALLS.columns, "sealed_by"),
    ("id",),
    fixed=("run_id", "turn", "seq", "call_id", "tool", "started_at"),
)
_WITHDRAW_INVOCATION: Final = (
    "UPDATE tool_invocations SET status = 'cancelled', ended_at = ? WHERE id = ? AND status = 'started'"
)
_CLAIM: Final = rows.Insert(
    "INSERT INTO effect_claims (key, is_repeat, asked_at, invocation_id, owner_id, created_at) VALUES ",
    "(?, ?, ?, ?, ?, ?)",
    f"""
    ON CONFLICT (key) DO UPDATE SET
        invocation_id = CASE
            WHEN effect_claims.invocation_id = excluded.invocation_id
                OR effect_claims.created_at < excluded.created_at - {REPEATS_WITHIN_S}
                OR (
                    excluded.is_repeat = 0
                    AND (effect_claims.is_repeat = 0 OR effect_claims.asked_at < excluded.asked_at)
                )
            THEN excluded.invocation_id
        END,
        is_repeat = excluded.is_repeat, asked_at = excluded.asked_at, owner_id = excluded.owner_id,
        created_at = excluded.created_at, result = NULL, sealed_by = NULL, answered = 0
    """,
)
_SETTLE: Final = "UPDATE effect_claims SET answered = 1 WHERE invocation_id = ?"
_RELEASE: Final = "DELETE FROM effect_claims WHERE invocation_id = ?"
_KEEP: Final = "UPDATE effect_claims SET result = ?, sealed_by = ? WHERE invocation_id = ?"
FORGET_RESULTS: Final = (
    "UPDATE effect_claims SET result = NULL, sealed_by = NULL WHERE created_at < ? AND result IS NOT NULL"
)
"""Results are content and expire; the fact that the effect happened does not."""

_FIND: Final = """
    SELECT c.key, c.is_repeat, c.asked_at, c.invocation_id, CASE WHEN c.created_at >= ? THEN c.result END,
        c.sealed_by, i.status, i.error_code, i.arguments_redacted, i.sealed_by
    FROM effect_claims c LEFT JOIN tool_invocations i ON i.id = c.invocation_id
    WHERE c.key IN (?, ?, ?) AND c.created_at >= ? ORDER BY c.created_at
"""
_SEALED: Final = '"<sealed>"'
"""JSON in place of the arguments and the result of a call, if the key that sealed them is missing."""
_STEP: Final = 32
_NUMBERED: Final = f"""
    SELECT key, is_repeat, asked_at, invocation_id FROM effect_claims
    WHERE key IN ({", ".join("?" * _STEP)}) AND created_at >= ?
"""

_ATTEMPTS: Final = f"""
    SELECT r.status, max(coalesce(r.ended_at, 0)) FROM effect_claims c
    JOIN tool_invocations i ON i.id = c.invocation_id JOIN runs r ON r.id = i.run_id
    WHERE c.key IN ({", ".join("?" * _STEP)}) AND c.answered = 0 AND c.created_at >= ?
        AND (r.status <> 'running' OR c.owner_id <> ?)
    GROUP BY r.status
"""


class SqlEffects(SqlApprovals):
    """The rows of invocations, and the claims of their effects."""

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        """Write the row of an execution that is about to start (rule R1).

        With ``durable`` it is committed on return; raises :class:`StoreUnavailable` if that
        fails.
        """
        if not durable:
            self.close_invocation(record)
            return
        row = (self._owner_id, *self._call_row(record))
        await self._writer.commit(_PUT_INVOCATION, [row], undo=partial(self._withdrawal, record.id))

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        """Queue the final state of the row; if its first state was lost, the row is inserted."""
        self._put(
            _PUT_INVOCATION,
            (self._owner_id,),
            self._call_row,
            (record,),
            needed=record.effect is not ToolEffect.READ_ONLY,
            state_of=("tool_invocations", record.id),
            later=record.status == "started",
        )

    async def claim_effect(self, record: ToolInvocationRecord, claim: EffectClaim) -> EarlierEffect | None:
        claim = _clean(claim)
        mine = (rows.clean_text(record.id), self._owner_id, self._clock())
        # A place is claimed at most once by right, so every later claim of it counts as a repeat.
        claims: list[rows.Row] = [
            (key, int(claim.is_repeat or key == claim.place), claim.asked_at, *mine) for key in claim.keys
        ]
        row = (self._owner_id, *self._call_row(record))
        try:
            await self._writer.commit(
                _CLAIM,
                claims,
                also=[
                    (_PUT_INVOCATION, [row]),
                    *self._use_of(claim.approval, record.id),
                    *lease_guard(claim.lease),
                ],
                undo=partial(self._withdrawal, record.id),
            )
        except RowRefused:
            earlier = await self._in_the_way(claim) or await self._used(claim)
            if earlier is None or earlier.invocation_id == record.id:
                raise
            return earlier
        return None

    async def number_effects(self, claim: EffectClaim) -> Mapping[int, str]:
        """Return the ids of the executions that block the claim's tool, by their number.

        Numbers have few gaps, left by effects that never began. So they are looked up by key in steps, until
        a step finds none; the table needs no index for that.
        """
        known: dict[int, str] = {}
        since = self._clock() - REPEATS_WITHIN_S
        for first in count(0, _STEP):
            numbers = {replace(claim, number=number).slot: number for number in range(first, first + _STEP)}
            claims = list(await self._look_up(_NUMBERED, (*numbers, since)))
            for key, is_repeat, asked_at, invocation_id in claims:
                if claim.is_blocked_by(key, is_repeat=bool(is_repeat), asked_at=asked_at):
                    known[numbers[key]] = invocation_id
            if not claims:
                break
        return dict(sorted(known.items()))

    async def _in_the_way(self, claim: EffectClaim) -> EarlierEffect | None:
        """Return the effect that refused a claim."""
        claims = {row[0]: row for row in await self._find_claims(*claim.keys)}
        for key in claim.keys:
            if key in claims and claim.is_blocked_by(
                key, is_repeat=bool(claims[key][1]), asked_at=claims[key][2]
            ):
                return self._earlier(claims[key], another=key == claim.slot)
        return None

    async def _used(self, claim: EffectClaim) -> EarlierEffect | None:
        """Return the execution that used the claim's approval, if the claims of that execution are gone."""
        used = await self._used_by(claim.approval) if claim.approval else None
        return None if used is None else EarlierEffect(*used)

    async def find_effect(self, claim: EffectClaim) -> EarlierEffect | None:
        claim = _clean(claim)
        claims = await self._find_claims(claim.place, claim.request or claim.place)
        return self._earlier(claims[0]) if claims else None

    async def _find_claims(self, *keys: str) -> list[rows.Row]:
        """Return the unexpired claims of up to three keys, the oldest first."""
        asked = (*keys, *keys[:1] * (3 - len(keys)))
        since = self._clock() - REPEATS_WITHIN_S
        return [tuple(row) for row in await self._look_up(_FIND, (self._oldest_kept(), *asked, since))]

    def _earlier(self, row: rows.Row, *, another: bool = False) -> EarlierEffect:
        invocation_id, value, sealed_by, status, error_code, arguments, call_sealed_by = row[3:]
        if value is not None:
            value = self._ring.open(CLAIMS, (invocation_id, value), sealed_by)[1]
        result = None if value is None else rows.read_effect(value)
        earlier = EarlierEffect(invocation_id, status or "success", error_code, result)
        if another:
            shown = self._shown(invocation_id, arguments, call_sealed_by)
            earlier = replace(earlier, another=True, arguments_redacted=shown)
        return earlier

    def _call_row(self, record: ToolInvocationRecord) -> rows.Row:
        """Return the row of a call with its arguments and result sealed."""
        row = CALLS.row(record)
        if record.arguments_redacted is None and record.result_redacted is None:
            return (*row, None)
        return self._ring.close(CALLS, row)

    async def _calls(self, db: SqlReader, run_id: str) -> list[ToolInvocationRecord]:
        """Return the calls of a run in order; values that no key can open read as sealed."""
        where = "run_id = ? ORDER BY turn, seq, started_at, id"
        stored = await select(db, CALLS.name, (*CALLS.columns, "sealed_by"), where, run_id)
        calls: list[ToolInvocationRecord] = []
        for *row, sealed_by in stored:
            if sealed_by is None or self._ring.opens(sealed_by):
                calls.append(CALLS.record(self._ring.open(CALLS, tuple(row), sealed_by)))
                continue
            known = dict(zip(CALLS.columns, row, strict=True))
            known |= {column: _SEALED for column in CALLS.sealed if known[column] is not None}
            calls.append(CALLS.record(tuple(known.values())))
        return calls

    def _shown(self, invocation_id: str, arguments: str | None, sealed_by: str | None) -> Any:
        """Open the arguments of a call alone; ``None`` if there are none or their key is missing."""
        if arguments is None or not (sealed_by is None or self._ring.opens(sealed_by)):
            return None
        known = {"id": invocation_id, "arguments_redacted": arguments}
        row = self._ring.open(CALLS, tuple(known.get(column) for column in CALLS.columns), sealed_by)
        return rows.read_json(row[CALLS.columns.index("arguments_redacted")])

    async def earlier_attempt(self, claim: EffectClaim) -> EarlierAttempt:
        """Return how the run of an earlier identical request ended.

        Only the first effects of the tool are checked, because a run has few.
        """
        now = self._clock()
        slots = [replace(claim, number=number).slot for number in range(_STEP)]
        asked = (*slots, now - REPEATS_WITHIN_S, self._owner_id)
        ended_by_status: dict[str, float] = dict(tuple(row) for row in await self._look_up(_ATTEMPTS, asked))
        if any(ended_by_status.get(status, 0.0) >= now - UNMARKED_REPEAT_WITHIN_S for status in UNANSWERED):
            return "unanswered"
        return "running" if "running" in ended_by_status else "none"

    def settle_effects(self, invocation_ids: Collection[str]) -> None:
        for invocation_id in invocation_ids:
            self._put(_SETTLE, (), lambda id_: (id_,), (invocation_id,))

    def keep_effect(self, invocation_id: str, result: EffectResult) -> None:
        if self._content == "none":
            return

        def encode(given: EffectResult) -> rows.Row:
            id_, value, sealed_by = self._ring.close(CLAIMS, (invocation_id, rows.effect_value(given)))
            return (value, sealed_by, id_)

        self._put(_KEEP, (), encode, (result,))

    def release_effect(self, invocation_id: str) -> None:
        self._put(_RELEASE, (), lambda id_: (id_,), (invocation_id,))

    def _withdrawal(self, invocation_id: str) -> Write:
        """Return the write that undoes an opening whose caller has stopped waiting."""
        id_ = rows.clean_text(invocation_id)
        return Write(_WITHDRAW_INVOCATION, [(self._clock(), id_)], also=[(_RELEASE, [(id_,)])])


def _clean(claim: EffectClaim) -> EffectClaim:
    """Replace what databases do not accept in the claim's place; its other keys are digests."""
    return claim if claim.place.isascii() else replace(claim, place=rows.clean_text(claim.place))
