"""Repeated requests, whose side effects must not happen again (rule R5).

SDKs repeat a request if they did not get its answer, for example after a time-out of theirs, although its
side effect has happened.  The repeat is a run of its own.  If it calls a tool with side effects that the
first run has called, it gets the result of the first call.  This process finds the call in its memory.  For
other processes, and for this one before a restart, the record has it under the same key.

Source of the header: openai-python and openai-node send ``x-stainless-retry-count`` with every attempt, and
no idempotency key by default.

Some clients repeat a request without saying so.  After a faulty stream, Claude Code sends the same body
without its ``stream``, with a retry count of 0.  So the same body within ten minutes after a run without a
complete answer is a repeat, too.  For a run of another process the record says how it ended.  It is read only
when a tool is about to have an effect.

A request can be repeated as long as its client has no answer to it.  If the client sends the same body anew
after an answer, later repeats belong to the new request, and the effects of the old one do not count for it.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from proxy.caches import CacheSize, declare
from proxy.effect_records import REPEATS_WITHIN_S, UNSAID_WITHIN_S
from proxy.tools.running.ledger import AskedFor, RunLedger
from proxy.values import value_class

__all__ = ["NO_ATTEMPT", "NO_REPEAT", "Attempt", "Idempotency", "Repeat", "repeat_of"]

_MAX_BYTES: Final = 32 * 2**20
_CAUSED_BYTES: Final = 1000
"""What a request takes beside its ledger."""

_TRAVEL: Final = frozenset({"stream", "stream_options"})
"""Members of a body that say how the answer travels, and nothing of what is asked."""

_WAITING: Final = 100
"""Most first attempts of one request that are known to be without an answer."""


@value_class
class Attempt:
    """What a client says of which request one is: ``key`` is what it calls it (``Idempotency-Key``).

    ``counts`` are its lines of ``x-stainless-retry-count``, of which one that is not 0 is enough.
    ``session`` is what it calls its conversation, if it names it in a header.
    """

    key: str = ""
    counts: Sequence[str] = ()
    session: str = ""


NO_ATTEMPT: Final = Attempt()
"""Of a request that says nothing of which one it is."""


class Repeat(NamedTuple):
    """Which request one is: ``key`` is the same for all that are the same, and empty where nobody knows.

    ``is_repeat`` says that its client calls it a repeat.
    """

    key: str = ""
    is_repeat: bool = False


NO_REPEAT: Final = Repeat()
"""Of a request that no other can be a repeat of."""


def repeat_of(
    caller: str, people: str, path: str, body: Mapping[str, Any], attempt: Attempt = NO_ATTEMPT
) -> Repeat:
    """What makes two requests of one person the same one, and whether this one says that it is a repeat.

    The same ``Idempotency-Key`` is the same request, whatever else its body says; else the same body is,
    streamed or not and in whatever order.  ``people`` is whom the body names: several may come with one
    caller's key, and none of them may read what was done for another, or take its place.
    """
    asked: list[Any]
    if attempt.key:
        asked = ["key", ascii(attempt.key)]
    else:
        said = {name: value for name, value in body.items() if name not in _TRAVEL}
        asked = ["body", ascii(attempt.session), said]
    # What a header says may be no text that JSON can hold.
    whole = orjson.dumps([ascii(caller), ascii(people), path, asked], option=orjson.OPT_SORT_KEYS)
    digest = hashlib.blake2b(whole, digest_size=24)
    again = any(count.isdecimal() and int(count[:9]) > 0 for count in attempt.counts)
    return Repeat(digest.hexdigest(), bool(attempt.key) or again)


@dataclass(slots=True)
class _Caused:
    """What was caused for requests that are the same, ``until`` when it is known.

    ``ledger`` is the last one's.  ``waiting`` has for each first attempt, with all of its repeats, until
    when it may be repeated, and the effects that nobody has been answered for yet; ``settled`` has those
    that somebody has.  ``unanswered`` says until when the same request is a repeat of one that ended without
    an answer, whatever its client says.
    """

    until: float
    ledger: RunLedger
    waiting: list[tuple[float, set[str]]] = field(default_factory=list)
    settled: set[str] = field(default_factory=set)
    unanswered: float = 0.0
    size: int = 0

    def measure(self) -> int:
        """What it takes in memory; its size is that from then on, and the difference is given back."""
        before, self.size = self.size, _CAUSED_BYTES + self.ledger.kept_bytes + 200 * len(self.settled)
        self.size += sum(200 * (1 + len(each)) for _, each in self.waiting if each is not self.ledger.caused)
        return self.size - before


def _settle_nothing(invocation_ids: Collection[str]) -> None:
    """No other process has to know."""


class Idempotency:
    """The effects of requests, by what makes a request the same; bounded, forgotten in time.

    Past ``max_bytes`` the oldest results are forgotten, and a repeat is told that its call was made and
    that what it gave is not known any more; the effect itself is forgotten after those.

    ``forget`` is told the execution of each effect that no repeat is to be answered with any more, and
    ``settle`` those that a client has the whole answer for.
    """

    def __init__(
        self,
        *,
        forget: Callable[[str], None],
        settle: Callable[[Collection[str]], None] = _settle_nothing,
        keep_s: float = REPEATS_WITHIN_S,
        most: int = 10_000,
        max_bytes: int = _MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._keep_s = keep_s
        self._most = most
        self._clock = clock
        self._now = now
        self._forget = forget
        self._settle = settle
        self._caused: OrderedDict[str, _Caused] = OrderedDict()
        self._max_bytes = max_bytes
        self._bytes = 0
        self._filled: OrderedDict[str, _Caused] = OrderedDict()
        declare("repeats", self._cache_size)

    def begin(self, key: str, *, is_repeat: bool) -> RunLedger:
        """The ledger of a run that begins.  The ledger of a repeat knows the effects of the first run.

        A request without ``is_repeat`` is a repeat, too, if the first one ended without an answer.  A client
        that sends an answered request anew wants new effects, and so do the repeats of the new one.
        """
        known = self._known(key)
        now = self._clock()
        is_repeat = is_repeat or (known is not None and now < known.unanswered)
        request = AskedFor(key, is_repeat, self._now(), is_known=known is not None)
        if known is None:
            return RunLedger(request=request)
        if is_repeat:
            return known.ledger.again(request)
        if all(until <= now for until, _ in known.waiting):
            self._drop(key)
            for invocation_id in known.settled:
                self._forget(invocation_id)
        return RunLedger(request=request)

    def caused(self, key: str, ledger: RunLedger) -> None:
        """A run is about to cause effects: a repeat of its request has to know of them.

        Without a key nothing can be a repeat of it.
        """
        if not key:
            return
        known = self._known(key) or _Caused(0.0, ledger)
        known.until, known.ledger = self._clock() + self._keep_s, ledger
        waiting = [each for each in known.waiting if each[1] is not ledger.caused]
        known.waiting = [*waiting[: _WAITING - 1], (known.until, ledger.caused)]
        if self._caused.get(key) is not known:
            self._drop(key)  # It was there, and too old.
        self._caused[key] = known
        self._caused.move_to_end(key)
        self._measure(key, known)

    def ended(self, key: str, ledger: RunLedger) -> None:
        """A run is over; what is kept of it is counted, also what comes later of a call that goes on.

        One that has caused effects, and that :meth:`answered` was not told of, left its client without an
        answer.
        """
        known = self._known(key)
        if known is not None and any(each[1] is ledger.caused for each in known.waiting):
            known.unanswered = self._clock() + UNSAID_WITHIN_S

        def measured() -> None:
            known = self._caused.get(key)
            if known is not None:
                self._measure(key, known)

        ledger.ended(measured)

    def answered(self, key: str, ledger: RunLedger) -> None:
        """The client has the whole answer of a run: there will be no repeat of its request."""
        if key and ledger.caused:
            self._settle(tuple(ledger.caused))
        known = self._known(key)
        if known is None or len(known.waiting) >= _WAITING:
            return  # Of so many some were left out, so that nobody knows who still waits.
        left = [each for each in known.waiting if each[1] is not ledger.caused]
        if len(left) < len(known.waiting):
            known.waiting = left
            known.unanswered = 0.0
            known.settled |= ledger.caused

    def _measure(self, key: str, known: _Caused) -> None:
        """Count what a request takes, and make room."""
        self._bytes += known.measure()
        self._filled[key] = known
        now = self._clock()
        while self._caused and next(iter(self._caused.values())).until <= now:
            self._drop(next(iter(self._caused)))
        while self._bytes > self._max_bytes and self._filled:
            _, oldest = self._filled.popitem(last=False)
            oldest.ledger.forget_results()
            self._bytes += oldest.measure()
        while self._caused and (len(self._caused) > self._most or self._bytes > self._max_bytes):
            self._drop(next(iter(self._caused)))

    def _drop(self, key: str) -> None:
        self._filled.pop(key, None)
        if (gone := self._caused.pop(key, None)) is not None:
            self._bytes -= gone.size

    def _cache_size(self) -> CacheSize:
        return CacheSize(self._bytes, self._max_bytes)

    def _known(self, key: str) -> _Caused | None:
        known = self._caused.get(key)
        return known if known is not None and known.until > self._clock() else None
