"""Side effects in memory, for the store that forgets."""

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from proxy.caches import CacheSize, declare, text_bytes, value_bytes
from proxy.effect_records import REPEATS_WITHIN_S, EarlierEffect, EffectClaim, EffectResult
from proxy.records import ToolInvocationRecord

__all__ = ["MemoryEffects"]

_MOST: Final = 20_000
_MAX_BYTES: Final = 64 * 2**20
_CLAIM_BYTES: Final = 3000
"""What a claim takes whose arguments and result are not kept: as many as there may be fit."""


@dataclass(slots=True)
class _Effect:
    """One claimed effect, shared by its keys."""

    record: ToolInvocationRecord
    claim: EffectClaim
    at: float
    answered: bool = False
    result: EffectResult | None = None
    size: int = 0


class MemoryEffects:
    """Claims by key, as :class:`~proxy.effect_records.EffectLog` asks for them; the oldest make room.

    Where they come to too many bytes, what calls gave and were given is forgotten first, the oldest at first:
    a claim keeps an effect from happening twice also where its result is known no more.

    ``oldest`` tells from when on content is kept at this moment: results are.
    """

    def __init__(
        self, clock: Callable[[], float], oldest: Callable[[], float], *, max_bytes: int = _MAX_BYTES
    ) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._bytes = 0
        self._filled: OrderedDict[str, _Effect] = OrderedDict()
        declare("effects", self._cache_size)
        self._oldest = oldest
        self._claims: OrderedDict[str, _Effect] = OrderedDict()
        self._mine: dict[str, _Effect] = {}

    def claim(self, record: ToolInvocationRecord, claim: EffectClaim) -> EarlierEffect | None:
        """Take the effect, or give what is there already."""
        for key in claim.keys:
            taken = self._claims.get(key)
            if taken is not None and self._stands(taken, claim, key):
                return self._earlier(taken, another=key == claim.slot)
        effect = _Effect(record, claim, self._clock())
        self._mine[record.id] = effect
        self._sized(effect)
        for key in claim.keys:
            self._claims[key] = effect
            self._claims.move_to_end(key)
        while len(self._claims) > _MOST:
            self._gone(self._claims.popitem(last=False)[1])
        return None

    def find(self, claim: EffectClaim) -> EarlierEffect | None:
        """What became of a claimed effect."""
        found = self._claims.get(claim.place) or self._claims.get(claim.request)
        if found is None or found.at < self._clock() - REPEATS_WITHIN_S:
            return None
        return self._earlier(found)

    def number(self, claim: EffectClaim) -> dict[int, str]:
        """The effects of the claim's tool that are in its way, by number."""
        mine = f"{claim.tool}:"
        taken = {
            int(key.removeprefix(mine)): effect.record.id
            for key, effect in self._claims.items()
            if key.startswith(mine) and self._stands(effect, claim, key)
        }
        return dict(sorted(taken.items()))

    def unanswered(self, claim: EffectClaim) -> Collection[str]:
        """The runs of the effects of the claim's tool, for its request, that nobody has an answer for."""
        mine, since = f"{claim.tool}:", self._clock() - REPEATS_WITHIN_S
        return {
            effect.record.run_id
            for key, effect in self._claims.items()
            if key.startswith(mine) and effect.at >= since and not effect.answered
        }

    def settle(self, invocation_ids: Collection[str]) -> None:
        """Note that somebody has the answer of a run with these effects."""
        for invocation_id in invocation_ids:
            if (effect := self._mine.get(invocation_id)) is not None:
                effect.answered = True

    def closed(self, record: ToolInvocationRecord) -> None:
        """Take note of how an execution stands."""
        if (effect := self._mine.get(record.id)) is not None:
            effect.record = record
            self._sized(effect)

    def keep(self, invocation_id: str, result: EffectResult) -> None:
        """Keep what the model was given."""
        if (effect := self._mine.get(invocation_id)) is not None:
            effect.result = result
            self._sized(effect)

    def release(self, invocation_id: str) -> None:
        """Forget what an execution has claimed."""
        effect = self._mine.get(invocation_id)
        if effect is None:
            return
        self._gone(effect)
        for key in effect.claim.keys:
            if self._claims.get(key) is effect:
                del self._claims[key]

    def forget_results(self, run_ids: set[str]) -> None:
        """Forget what the calls of these runs gave."""
        for effect in self._mine.values():
            if effect.record.run_id in run_ids:
                effect.result = None
                self._sized(effect)

    def _gone(self, effect: _Effect) -> None:
        """An effect is found by its execution no more."""
        if self._mine.pop(effect.record.id, None) is not None:
            self._filled.pop(effect.record.id, None)
            self._bytes -= effect.size
            effect.size = 0

    def _sized(self, effect: _Effect) -> None:
        """Count what an effect takes, and make room."""
        record, result = effect.record, effect.result
        content = value_bytes([record.arguments_redacted, record.result_redacted])
        if result is not None:
            content += text_bytes((result.content, result.safe_message)) + value_bytes(result.redacted)
        self._bytes += _CLAIM_BYTES + content - effect.size
        effect.size = _CLAIM_BYTES + content
        self._filled[record.id] = effect
        while self._bytes > self._max_bytes and self._filled:
            _, oldest = self._filled.popitem(last=False)
            oldest.record = replace(oldest.record, arguments_redacted=None, result_redacted=None)
            oldest.result = None
            self._bytes += _CLAIM_BYTES - oldest.size
            oldest.size = _CLAIM_BYTES

    def _cache_size(self) -> CacheSize:
        return CacheSize(self._bytes, self._max_bytes)

    def _stands(self, taken: _Effect, claim: EffectClaim, key: str) -> bool:
        """Whether what is taken under a key is in the way of a claim."""
        if taken.at < self._clock() - REPEATS_WITHIN_S:
            return False
        return claim.yields_to(key, is_repeat=taken.claim.is_repeat, asked_at=taken.claim.asked_at)

    def _earlier(self, effect: _Effect, *, another: bool = False) -> EarlierEffect:
        record = effect.record
        if effect.at < self._oldest():
            effect.result = None
        shown = record.arguments_redacted if another else None
        return EarlierEffect(record.id, record.status, record.error_code, effect.result, another, shown)
