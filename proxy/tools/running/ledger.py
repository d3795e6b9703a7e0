"""What one run has done so far, so that nothing in it happens twice (rule R5)."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import orjson

from proxy.background_records import Lease
from proxy.caches import text_bytes, value_bytes
from proxy.events import ToolCall, ToolResult
from proxy.records import Limiter
from proxy.tools.access.catalog import Catalog
from proxy.values import value_class

__all__ = ["NOT_KEPT", "AskedFor", "Claim", "RunContext", "RunLedger", "fingerprint"]

NOT_KEPT: Final = (
    "an earlier attempt of this request made this very call and it succeeded; it was not made again, "
    "and its result was not kept"
)
_NOT_KEPT_FAILURE: Final = "an earlier attempt of this very call failed"
_LEDGER_BYTES: Final = 2000
_CLAIM_BYTES: Final = 1500
"""What these take in memory beside what calls were given."""


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

    def keep(self, result: ToolResult) -> None:
        """Put another result in place of the one that came; whoever waited has that one."""
        self.result = self.result.get_loop().create_future()
        self.result.set_result(result)


@value_class
class AskedFor:
    """The client's request that a run serves: what makes two of them the same, whether it is a repeat, and
    when it came in (seconds since the epoch).

    ``is_known`` says that this process has served the same request before, and knows whether it is one.
    """

    key: str
    is_repeat: bool
    asked_at: float
    is_known: bool = False


class RunLedger:
    """The calls of one run, by place (turn, seq) and by effect.  Belongs to one event loop.

    ``request`` is what the run was asked for, where repeats of it are to be recognised; ``caused`` are the
    executions of the effects that the model was answered for in it and in its repeats.  ``lease`` is that of
    the background response that the run is of; ``None`` for any other run.
    """

    def __init__(self, max_calls: int = 1024, *, request: AskedFor | None = None) -> None:
        self.request = request
        self.lease: Lease | None = None
        self._max_calls = max_calls
        self._places: dict[tuple[int, int], Claim] = {}
        self._effects: dict[str, Claim] = {}
        self._answered: set[str] = set()
        self.caused: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._untrusted: tuple[int, str] | None = None
        self.claiming: asyncio.Lock | None = None
        """Whoever claims an effect holds it, where several runs share the effects."""

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

    def inner(self) -> "RunLedger":
        """The ledger of an agent's run inside of this one: places of its own, the same effects."""
        other = self.again(self.request)
        if self.claiming is None:
            self.claiming = asyncio.Lock()
        other.claiming = self.claiming
        other.lease = self.lease
        other._answered = self._answered
        other._numbers = self._numbers
        return other

    def repeats(self) -> None:
        """The request of the run is a repeat, as another process's record says."""
        if self.request is not None:
            self.request = replace(self.request, is_repeat=True)

    def answered(self, invocation_id: str) -> bool:
        """Whether the model has been answered for this effect, of this run or an earlier attempt."""
        return invocation_id in self._answered

    def answer_for(self, invocation_id: str) -> None:
        """A call of this run caused this effect, equals it, or was not made because of it."""
        self._answered.add(invocation_id)
        self.caused.add(invocation_id)

    def next_number(self, tool: str) -> int:
        """The number that the next effect of a tool would have if nobody else had caused any.

        ``tool`` is :attr:`~proxy.effect_records.EffectClaim.tool`.
        """
        return self._numbers.get(tool, 0)

    def take_number(self, tool: str, number: int) -> None:
        """An effect of this run has this number."""
        self._numbers[tool] = number + 1

    @property
    def full(self) -> bool:
        """Whether the run has made as many calls as the ledger holds."""
        return len(self._places) >= self._max_calls

    def ended(self, measured: Callable[[], object]) -> None:
        """The run is over: what is kept for a repeat of its request is its effects, and of these text.

        ``measured`` is called each time when another effect has come to its end, and what is kept with it.
        """
        self._places.clear()

        def slim(claim: Claim, done: asyncio.Future[ToolResult]) -> None:
            if not done.cancelled() and done.result().images:
                claim.keep(done.result().to_keep())
            measured()

        for claim in self._effects.values():
            claim.result.add_done_callback(partial(slim, claim))

    @property
    def kept_bytes(self) -> int:
        """The bytes of memory that the run keeps after its end."""
        return _LEDGER_BYTES + 200 * len(self.caused) + sum(map(_claim_bytes, self._effects.values()))

    def forget_results(self) -> None:
        """Keep of the effects only that they happened: a repeat is told so, in place of what they gave."""
        for claim in self._effects.values():
            if claim.result.done() and not claim.result.cancelled():
                claim.keep(_without_content(claim.result.result()))

    def place(self, turn: int, seq: int) -> Claim | None:
        """The call that has this place of the run."""
        return self._places.get((turn, seq))

    def take_place(self, turn: int, seq: int, claim: Claim) -> None:
        """Take a place for good."""
        self._places[turn, seq] = claim

    def effect(self, key: str) -> Claim | None:
        """The call that has caused this effect, or is about to."""
        return self._effects.get(key)

    def take_effect(self, key: str, claim: Claim) -> None:
        """Take an effect before it starts."""
        self._effects[key] = claim

    def release_effect(self, key: str) -> None:
        """Give an effect back that never started."""
        self._effects.pop(key, None)


def _claim_bytes(claim: Claim) -> int:
    if not claim.result.done() or claim.result.cancelled():
        return _CLAIM_BYTES
    kept = claim.result.result()
    shown = value_bytes([kept.redacted, kept.arguments_redacted])
    return _CLAIM_BYTES + text_bytes((kept.content, kept.safe_message)) + shown


def _without_content(result: ToolResult) -> ToolResult:
    """A result with words in place of what the call was given and gave."""
    message = NOT_KEPT if result.ok else _NOT_KEPT_FAILURE
    said: dict[str, Any] = {"ok": result.ok, "message": message}
    if not result.ok:
        said["error_code"] = result.error_code
    return ToolResult(
        result.call_id,
        ok=result.ok,
        content=orjson.dumps(said).decode(),
        error_code=result.error_code,
        safe_message="" if result.ok else message,
    )


@value_class
class RunContext:
    """For whom and within what a call runs.

    ``request_id`` is the client's own id, for logs.  ``ledger`` is shared by all turns of a run;
    make the next turn's context with :meth:`at_turn`.  ``limiter`` counts this caller's calls, in place
    of the runner's own.  ``key`` is whose places for tools it takes: the client key that many callers
    may share, where a key's end users are callers of their own; the caller itself if empty.  ``catalog``
    are the tools that it was planned with; ``None`` for those that are served when it calls.
    """

    run_id: str
    turn: int
    caller: str
    request_id: str = ""
    ledger: RunLedger = field(default_factory=RunLedger)
    limiter: Limiter | None = None
    key: str = ""
    catalog: Catalog | None = None

    def at_turn(self, turn: int) -> "RunContext":
        """The same run in another of its turns (from 1)."""
        return RunContext(
            self.run_id,
            turn,
            self.caller,
            self.request_id,
            self.ledger,
            self.limiter,
            self.key,
            self.catalog,
        )


def fingerprint(call: ToolCall) -> str:
    """SHA-256 over a call's name and arguments as they came."""
    text = f"{call.name}\0{call.arguments}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
