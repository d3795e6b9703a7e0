"""Detect repeated requests, whose side effects must not happen again (rule R5).

SDKs retry a request if they did not get its answer, for example after their own timeout, although its side
effect has happened. The repeat is a run of its own. If it calls a tool with side effects that the first
run has called, it gets the result of the first call. This process finds the call in its memory. For other
processes, and for this one after a restart, the record has it under the same key.

Source of the header: openai-python and openai-node send ``x-stainless-retry-count`` with every attempt, and
no idempotency key by default.

Some clients repeat a request without saying so. After a faulty stream, Claude Code sends the same body
without its ``stream``, with a retry count of 0. So the same body within ten minutes after a run without a
complete answer is a repeat, too. For a run of another process the record says how it ended. The record is
read only when a tool is about to have an effect.

A request can be repeated as long as its client has no answer to it. If the client sends the same body anew
after an answer, later repeats belong to the new request, and the effects of the old one do not count for it.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import orjson
from msgspec import Struct, field

from proxy.base.caches import CacheSize, declare
from proxy.records.effects import REPEATS_WITHIN_S, UNMARKED_REPEAT_WITHIN_S
from proxy.tools.running.ledger import NO_KEY, RequestKey, RunLedger, ServedRequest
from proxy.wires.registry.requests import TRANSPORT

_MAX_BYTES: Final = 32 * 2**20
_CAUSED_BYTES: Final = 1000
"""The memory of a request beside its ledger, in bytes."""

_WAITING: Final = 100
"""The most first attempts of one request that are tracked as being without an answer."""


class Attempt(Struct, frozen=True):
    """How a client identifies a request: ``key`` is its ``Idempotency-Key``.

    ``counts`` are its values of ``x-stainless-retry-count``; one that is not 0 marks a repeat. ``session``
    is the client's name of the conversation, if it sends one in a header.
    """

    key: str = ""
    counts: Sequence[str] = ()
    session: str = ""


NO_ATTEMPT: Final = Attempt()
"""The attempt of a request that does not identify itself."""


class Repeat(NamedTuple):
    """The identity of a request; ``is_repeat`` says that the client marks the request as a repeat."""

    key: RequestKey = NO_KEY
    is_repeat: bool = False


NO_REPEAT: Final = Repeat()
"""The identity of a request that no other request can repeat."""


def repeat_of(
    caller: str, people: str, path: str, body: Mapping[str, Any], attempt: Attempt = NO_ATTEMPT
) -> Repeat:
    """Return the identity of a person's request, and whether it is marked as a repeat.

    Requests with the same ``Idempotency-Key`` are the same, whatever their bodies say. Without a key,
    requests with equal bodies are the same, whether streamed or not, and in any order of members.
    ``people`` are the people that the body names. Several people may share one caller's key, and none of
    them may read what was done for another, or take its place.
    """
    counts = attempt.counts
    again = bool(counts) and any(count.isdecimal() and int(count[:9]) > 0 for count in counts)
    key = RequestKey(partial(_digest_of, caller, people, path, body, attempt))
    return Repeat(key, bool(attempt.key) or again)


def _digest_of(caller: str, people: str, path: str, body: Mapping[str, Any], attempt: Attempt) -> str:
    asked: list[Any]
    if attempt.key:
        asked = ["key", ascii(attempt.key)]
    else:
        said = {name: value for name, value in body.items() if name not in TRANSPORT}
        asked = ["body", ascii(attempt.session), said]
    # A header may hold text that JSON cannot express.
    whole = orjson.dumps([ascii(caller), ascii(people), path, asked], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(whole, digest_size=24).hexdigest()


class _Caused(Struct):
    """The effects of requests that are the same; known until ``until``.

    ``ledger`` is that of the last run. ``waiting`` has an entry for each first attempt together with its
    repeats: until when it may be repeated, and the effects for which no client has an answer yet.
    ``settled`` has the effects for which a client has one. Until ``unanswered`` an equal request repeats
    one that ended without an answer, even if its client does not say so.
    """

    until: float
    ledger: RunLedger
    waiting: list[tuple[float, set[str]]] = field(default_factory=list)
    settled: set[str] = field(default_factory=set)
    unanswered: float = 0.0
    size: int = 0

    def measure(self) -> int:
        """Update the size in memory, and return the difference to the former size."""
        before, self.size = self.size, _CAUSED_BYTES + self.ledger.kept_bytes + 200 * len(self.settled)
        self.size += sum(200 * (1 + len(each)) for _, each in self.waiting if each is not self.ledger.caused)
        return self.size - before


def _settle_nothing(invocation_ids: Collection[str]) -> None:
    """Do nothing: the default when no other process must know."""


class Idempotency:
    """The effects of requests by the identity of the request; bounded, with entries that expire.

    Past ``max_bytes`` the oldest results are dropped. Then a repeat learns that its call was made, and that
    its result is no longer known. After the results, the effects themselves are dropped.

    ``forget`` is called with the execution of each effect that no repeat can get any more. ``settle`` is
    called with those for which a client has the whole answer.
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

    def begin(self, key: RequestKey, *, is_repeat: bool) -> RunLedger:
        """Return the ledger of a run that begins. The ledger of a repeat knows the effects of the first
        run.

        A request without ``is_repeat`` is a repeat, too, if the first one ended without an answer. A client
        that sends an answered request anew wants new effects, and so do the repeats of the new one.
        """
        known = self._known(key)
        now = self._clock()
        is_repeat = is_repeat or (known is not None and now < known.unanswered)
        request = ServedRequest(key, is_repeat, self._now(), is_known=known is not None)
        if known is None:
            return RunLedger(request=request)
        if is_repeat:
            return known.ledger.for_repeat(request)
        if all(until <= now for until, _ in known.waiting):
            self._drop(key.digest)
            for invocation_id in known.settled:
                self._forget(invocation_id)
        return RunLedger(request=request)

    def caused(self, key: RequestKey, ledger: RunLedger) -> None:
        """Note that a run is about to cause effects, so that a repeat of its request knows of them.

        Do nothing without a key, because then no request can repeat this one.
        """
        if not (digest := key.digest):
            return
        known = self._known(key) or _Caused(0.0, ledger)
        known.until, known.ledger = self._clock() + self._keep_s, ledger
        waiting = [each for each in known.waiting if each[1] is not ledger.caused]
        known.waiting = [*waiting[: _WAITING - 1], (known.until, ledger.caused)]
        if self._caused.get(digest) is not known:
            self._drop(digest)  # The old entry has expired.
        self._caused[digest] = known
        self._caused.move_to_end(digest)
        self._measure(digest, known)

    def ended(self, key: RequestKey, ledger: RunLedger) -> None:
        """Note the end of a run, and count the memory of its ledger, also for calls that still go on.

        If the run caused effects and :meth:`answered` was not called for it, its client has no answer.
        """
        known = self._known(key)
        if known is not None and any(each[1] is ledger.caused for each in known.waiting):
            known.unanswered = self._clock() + UNMARKED_REPEAT_WITHIN_S

        def measured() -> None:
            known = self._kept(key)
            if known is not None:
                self._measure(key.digest, known)

        ledger.ended(measured)

    def answered(self, key: RequestKey, ledger: RunLedger) -> None:
        """Note that the client has the whole answer of a run, so its request will not be repeated."""
        if ledger.caused and key.digest:
            self._settle(tuple(ledger.caused))
        known = self._known(key)
        if known is None or len(known.waiting) >= _WAITING:
            return  # Some attempts were left out, so it is unknown which still wait.
        left = [each for each in known.waiting if each[1] is not ledger.caused]
        if len(left) < len(known.waiting):
            known.waiting = left
            known.unanswered = 0.0
            known.settled |= ledger.caused

    def _measure(self, key: str, known: _Caused) -> None:
        """Count the memory of a request, and make room."""
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

    def _kept(self, key: RequestKey) -> _Caused | None:
        """Return what is kept of a request; without any effects there is no need for its digest."""
        return self._caused.get(key.digest) if self._caused else None

    def _known(self, key: RequestKey) -> _Caused | None:
        known = self._kept(key) if self._caused else None
        return known if known is not None and known.until > self._clock() else None
