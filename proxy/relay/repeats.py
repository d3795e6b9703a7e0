"""A request that is sent again: its side effects are not caused again (rule R5).

SDKs repeat a request whose answer they did not get, after a time-out of theirs too, when the effect it
asked for has long happened.  The repeat is a run of its own, with one thing in common with the first:
a call of a tool with side effects that the first has made, or is making, is answered with what came of
it.  This process finds that in its memory; for what other processes did, or this one before it was
started again, there is the record, by the same key.  Source of the header: openai-python and
openai-node send ``x-stainless-retry-count`` with every attempt, and no idempotency key by default.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from proxy.records import REPEATS_WITHIN_S
from proxy.tools.ledger import AskedFor, RunLedger

__all__ = ["Repeats", "repeat_key"]


def repeat_key(
    caller: str, path: str, body: bytes, given: str = "", tries: Sequence[str] = ()
) -> tuple[str, bool]:
    """What makes two requests the same one, and whether this one says that it is a repeat.

    The same ``Idempotency-Key`` (``given``) is the same request, whatever its body; else the same body
    is.  ``tries`` is what its lines of ``x-stainless-retry-count`` say, of which one is enough.
    """
    word = b"key\0" + given.encode("utf-8", "surrogatepass") if given else b"body\0" + body
    digest = hashlib.blake2b(digest_size=24)
    for part in (caller.encode(), path.encode(), word):
        digest.update(len(part).to_bytes(8, "big") + part)
    again = any(count.isdecimal() and int(count[:9]) > 0 for count in tries)
    return digest.hexdigest(), bool(given) or again


class Repeats:
    """The effects of requests, by what makes a request the same; bounded, forgotten in time."""

    def __init__(
        self,
        *,
        keep_s: float = REPEATS_WITHIN_S,
        most: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._keep_s = keep_s
        self._most = most
        self._clock = clock
        self._now = now
        self._ledgers: OrderedDict[str, tuple[float, RunLedger]] = OrderedDict()

    def begin(self, key: str, *, is_repeat: bool) -> RunLedger:
        """The ledger of a run that begins; a repeat's knows the effects of the first."""
        request = AskedFor(key, is_repeat, self._now())
        known = self._ledgers.get(key)
        if is_repeat and known is not None and known[0] > self._clock():
            return known[1].again(request)
        return RunLedger(request=request)

    def caused(self, key: str, ledger: RunLedger) -> None:
        """A run is about to cause effects: a repeat of its request has to know of them."""
        self._ledgers.pop(key, None)
        self._ledgers[key] = (self._clock() + self._keep_s, ledger)
        while len(self._ledgers) > self._most:
            self._ledgers.popitem(last=False)
