"""What one run has done so far, so that nothing in it happens twice (rule R5)."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from functools import partial

from proxy.events import ToolCall, ToolResult
from proxy.records import Limiter
from proxy.values import value_class

__all__ = ["AskedFor", "Claim", "RunContext", "RunLedger", "fingerprint"]


@dataclass(slots=True)
class Claim:
    """A place or an effect that somebody has taken; ``result`` is what came of it.

    ``invocation_id`` is the execution that caused it, once that is known, which may be another's.
    ``fingerprint`` tells equal calls from different ones without keeping their arguments.  ``begun``
    says, once there is a result, that an effect was begun: one that was not is anybody's to cause.
    ``untrusted`` says that a stranger's text is in the result.
    """

    invocation_id: str
    fingerprint: str
    result: asyncio.Future[ToolResult]
    begun: bool = False
    untrusted: bool = False


@value_class
class AskedFor:
    """The client's request that a run serves: what makes two of them the same, whether the client
    called it a repeat, and when it came in (seconds since the epoch)."""

    key: str
    is_repeat: bool
    asked_at: float


class RunLedger:
    """The calls of one run, by place (turn, seq) and by effect.  Belongs to one event loop.

    ``request`` is what the run was asked for, where repeats of it are to be recognised; ``caused`` are the
    executions of the effects that the model was answered for in it and in its repeats.
    """

    def __init__(self, max_calls: int = 1024, *, request: AskedFor | None = None) -> None:
        self.request = request
        self._max_calls = max_calls
        self._places: dict[tuple[int, int], Claim] = {}
        self._effects: dict[str, Claim] = {}
        self._answered: set[str] = set()
        self.caused: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._untrusted: tuple[int, str] | None = None

    def mark_untrusted(self, tool: str, turn: int = 0) -> None:
        """A stranger's text came into the conversation by ``tool`` in ``turn``; 0 is before the run."""
        if self._untrusted is None or turn < self._untrusted[0]:
            self._untrusted = (turn, tool)

    def untrusted_before(self, turn: int) -> str:
        """The tool whose untrusted result the model had read when it wrote this turn; empty if none.

        Calls of the very turn in which that tool was called were written before its result was read.
        """
        return self._untrusted[1] if self._untrusted is not None and self._untrusted[0] < turn else ""

    def again(self, request: AskedFor | None = None) -> "RunLedger":
        """The ledger of a run that repeats this one's request: places of its own, the same effects."""
        other = RunLedger(self._max_calls, request=request)
        other._effects = self._effects
        other.caused = self.caused
        return other

    def answered(self, invocation_id: str) -> bool:
        """Whether the model has been answered for this effect, of this run or an earlier attempt."""
        return invocation_id in self._answered

    def answer_for(self, invocation_id: str) -> None:
        """A call of this run caused this effect, equals it, or was not made because of it."""
        self._answered.add(invocation_id)
        self.caused.add(invocation_id)

    def next_number(self, tool: str) -> int:
        """The number that the next effect of a tool would have if nobody else had caused any.

        ``tool`` is :attr:`~proxy.records.EffectClaim.tool`.
        """
        return self._numbers.get(tool, 0)

    def take_number(self, tool: str, number: int) -> None:
        """An effect of this run has this number."""
        self._numbers[tool] = number + 1

    @property
    def full(self) -> bool:
        """Whether the run has made as many calls as the ledger holds."""
        return len(self._places) >= self._max_calls

    def forget_images(self) -> None:
        """The run is over: what is kept of its results for a repeat of the request is text."""
        for claim in (*self._places.values(), *self._effects.values()):
            claim.result.add_done_callback(partial(_slim, claim))

    def place(self, turn: int, seq: int) -> Claim | None:
        """Who has taken this place of the run."""
        return self._places.get((turn, seq))

    def take_place(self, turn: int, seq: int, claim: Claim) -> None:
        """Take a place for good."""
        self._places[turn, seq] = claim

    def effect(self, key: str) -> Claim | None:
        """Who has caused this effect, or is about to."""
        return self._effects.get(key)

    def take_effect(self, key: str, claim: Claim) -> None:
        """Take an effect before it starts."""
        self._effects[key] = claim

    def release_effect(self, key: str) -> None:
        """Give an effect back that never started."""
        self._effects.pop(key, None)


def _slim(claim: Claim, done: asyncio.Future[ToolResult]) -> None:
    """Put words in place of the images of a result that is kept."""
    if not done.cancelled() and done.result().images:
        claim.result = done.get_loop().create_future()
        claim.result.set_result(done.result().to_keep())


@value_class
class RunContext:
    """For whom and within what a call runs.

    ``request_id`` is the client's own id, for logs.  ``ledger`` is shared by all turns of a run;
    make the next turn's context with :meth:`at_turn`.  ``limiter`` counts this caller's calls, in place
    of the runner's own.  ``key`` is whose places for tools it takes: the client key that many callers
    may share, where a key's end users are callers of their own; the caller itself if empty.
    """

    run_id: str
    turn: int
    caller: str
    request_id: str = ""
    ledger: RunLedger = field(default_factory=RunLedger)
    limiter: Limiter | None = None
    key: str = ""

    def at_turn(self, turn: int) -> "RunContext":
        """The same run in another of its turns (from 1)."""
        return RunContext(
            self.run_id, turn, self.caller, self.request_id, self.ledger, self.limiter, self.key
        )


def fingerprint(call: ToolCall) -> str:
    """SHA-256 over a call's name and arguments as they came."""
    text = f"{call.name}\0{call.arguments}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
