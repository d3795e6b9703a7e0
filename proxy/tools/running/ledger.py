"""The ledger of the calls that one run has made, so that no call happens twice (rule R5)."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from proxy.base.caches import text_bytes, value_bytes
from proxy.base.events import ImageSource, ToolCall, ToolResult
from proxy.hooks.placeholders import Placeholders
from proxy.records.background import Lease
from proxy.records.rows import Limiter, join_sources
from proxy.tools.access.catalog import Catalog
from proxy.tools.contract.provider import Person

NOT_KEPT: Final = (
    "an earlier attempt of this request made this very call and it succeeded; it was not made again, "
    "and its result was not kept"
)
_NOT_KEPT_FAILURE: Final = "an earlier attempt of this very call failed"
_LEDGER_BYTES: Final = 2000
_CLAIM_BYTES: Final = 1500
"""The bytes that a ledger and a claim take in memory beside the results."""


@dataclass(slots=True)
class Claim:
    """A place or an effect that a call has taken; ``result`` is its outcome.

    ``invocation_id`` is the execution that caused it, once that is known; it may be another call's.
    ``fingerprint`` tells equal calls from different ones without keeping their arguments. Once there is a
    result, ``begun`` says whether the effect was begun; if not, another call may cause it. ``untrusted``
    says that the result contains text from an untrusted source.
    """

    invocation_id: str
    fingerprint: str
    result: asyncio.Future[ToolResult]
    begun: bool = False
    untrusted: bool = False

    def keep(self, result: ToolResult) -> None:
        """Replace the result; tasks that were waiting have got the original one."""
        self.result = self.result.get_loop().create_future()
        self.result.set_result(result)


class RequestKey:
    """A digest that is the same for equal requests, empty if it is unknown which requests are equal.

    It is computed when it is first read, because most requests cause no effect and need none. Then the
    request that it was computed from is released: a ledger may be kept for repeats.
    """

    __slots__ = ("_compute", "_digest")

    def __init__(self, compute: Callable[[], str]) -> None:
        self._compute: Callable[[], str] | None = compute
        self._digest = ""

    @property
    def digest(self) -> str:
        if self._compute is not None:
            self._digest, self._compute = self._compute(), None
        return self._digest


NO_KEY: Final = RequestKey(str)
"""The key of a request that no other request can repeat."""


class ServedRequest(Struct, frozen=True):
    """The client's request that a run serves.

    ``key`` identifies it. ``asked_at`` is when it came in, in seconds since the epoch.
    ``is_known`` says that this process has served the same request before, so ``is_repeat`` is reliable.
    """

    key: RequestKey
    is_repeat: bool
    asked_at: float
    is_known: bool = False


class RunLedger:
    """The calls of one run, by place (turn, seq) and by effect. Belongs to one event loop.

    ``request`` is the client's request, if repeats of it are to be recognised. ``caused`` has the ids of the
    executions whose effects the model knows from this run and its repeats. ``lease`` is the lease of the
    background response that the run belongs to; ``None`` for any other run.
    """

    def __init__(self, max_calls: int = 1024, *, request: ServedRequest | None = None) -> None:
        self.request = request
        self.lease: Lease | None = None
        self._max_calls = max_calls
        self._places: dict[tuple[int, int], Claim] = {}
        self._effects: dict[str, Claim] = {}
        self._answered: set[str] = set()
        self.caused: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._untrusted: dict[str, int] = {}
        self.claiming: asyncio.Lock | None = None
        """A call holds it while it claims an effect, if several runs share the effects."""

    def mark_untrusted(self, sources: str, turn: int = 0) -> None:
        """Note that ``sources`` brought untrusted text into the conversation in ``turn``; 0 means earlier.

        See :func:`proxy.records.rows.join_sources`.
        """
        self._untrusted[sources] = min(turn, self._untrusted.get(sources, turn))

    def untrusted_before(self, turn: int) -> str:
        """Return the sources of the untrusted text that the model had read when it wrote this turn; ``""`` if
        none.

        The model wrote the calls of one turn before it read the result of any of them.
        """
        read = [(since, sources) for sources, since in self._untrusted.items() if since < turn]
        return join_sources(*(sources for _, sources in sorted(read)))

    def for_repeat(self, request: ServedRequest | None = None) -> "RunLedger":
        """Return the ledger for a run that repeats the request: with its own places and the same effects."""
        other = RunLedger(self._max_calls, request=request)
        other._effects = self._effects
        other.caused = self.caused
        return other

    def inner(self) -> "RunLedger":
        """Return the ledger for an agent's run inside this one: with its own places and the same effects."""
        other = self.for_repeat(self.request)
        if self.claiming is None:
            self.claiming = asyncio.Lock()
        other.claiming = self.claiming
        other.lease = self.lease
        other._answered = self._answered
        other._numbers = self._numbers
        return other

    def mark_repeat(self) -> None:
        """Mark the run's request as a repeat, because the record has an attempt of another process."""
        if self.request is not None:
            self.request = replace(self.request, is_repeat=True)

    def answered(self, invocation_id: str) -> bool:
        """Return whether the model knows the outcome of this effect, of this run or of an earlier attempt."""
        return invocation_id in self._answered

    def answer_for(self, invocation_id: str) -> None:
        """Note that the model gets this effect's outcome, from the call that caused it or met it."""
        self._answered.add(invocation_id)
        self.caused.add(invocation_id)

    def next_number(self, tool: str) -> int:
        """Return the number of the tool's next effect, if no other attempt has caused any.

        ``tool`` is :attr:`~proxy.records.effects.EffectClaim.tool`.
        """
        return self._numbers.get(tool, 0)

    def take_number(self, tool: str, number: int) -> None:
        """Note that an effect of this run has this number."""
        self._numbers[tool] = number + 1

    @property
    def full(self) -> bool:
        """Whether the ledger has the most calls that it may have."""
        return len(self._places) >= self._max_calls

    def ended(self, measured: Callable[[], object]) -> None:
        """Keep, after the run's end, only its effects, for a repeat of the request, and only their text.

        ``measured`` is called whenever another effect has ended, since the kept bytes then change.
        """
        self._places.clear()

        def slim(claim: Claim, done: asyncio.Future[ToolResult]) -> None:
            if not done.cancelled() and done.result().images:
                claim.keep(done.result().without_images())
            measured()

        for claim in self._effects.values():
            claim.result.add_done_callback(partial(slim, claim))

    @property
    def kept_bytes(self) -> int:
        """The bytes of memory that the run keeps after its end."""
        return _LEDGER_BYTES + 200 * len(self.caused) + sum(map(_claim_bytes, self._effects.values()))

    def forget_results(self) -> None:
        """Keep only that the effects happened: a repeat gets this message instead of their results."""
        for claim in self._effects.values():
            if claim.result.done() and not claim.result.cancelled():
                claim.keep(_without_content(claim.result.result()))

    def place(self, turn: int, seq: int) -> Claim | None:
        """Return the call that has taken this place of the run, or ``None``."""
        return self._places.get((turn, seq))

    def take_place(self, turn: int, seq: int, claim: Claim) -> None:
        """Take a place for good."""
        self._places[turn, seq] = claim

    def effect(self, key: str) -> Claim | None:
        """Return the call that has caused this effect or is about to, or ``None``."""
        return self._effects.get(key)

    def take_effect(self, key: str, claim: Claim) -> None:
        """Take an effect before it starts."""
        self._effects[key] = claim

    def release_effect(self, key: str) -> None:
        """Release an effect that was never started."""
        self._effects.pop(key, None)


def _claim_bytes(claim: Claim) -> int:
    if not claim.result.done() or claim.result.cancelled():
        return _CLAIM_BYTES
    kept = claim.result.result()
    shown = value_bytes([kept.redacted, kept.arguments_redacted])
    return _CLAIM_BYTES + text_bytes((kept.content, kept.safe_message)) + shown


def _without_content(result: ToolResult) -> ToolResult:
    """Return the result with a fixed message in place of the call's arguments and output."""
    message = NOT_KEPT if result.ok else _NOT_KEPT_FAILURE
    content: dict[str, Any] = {"ok": result.ok, "message": message}
    if not result.ok:
        content["error_code"] = result.error_code
    return ToolResult(
        result.call_id,
        ok=result.ok,
        content=orjson.dumps(content).decode(),
        error_code=result.error_code,
        safe_message="" if result.ok else message,
    )


class RunContext(Struct, frozen=True):
    """The run, the turn and the caller of a call.

    ``request_id`` is the client's own id, for logs. All turns of a run share the ``ledger``; :meth:`at_turn`
    makes the next turn's context. ``limiter`` counts this caller's calls instead of the runner's own.
    ``key`` is the client key whose places for tools the call takes, since the end users of one key may be
    separate callers; if empty, the caller's own. ``catalog`` has the tools that the run was planned with;
    ``None`` for those that are served at the time of the call. ``images`` gives images of the conversation;
    ``None`` if calls may have none. ``person`` is the caller, if that is one person. ``keeps`` allows that
    content is stored for other processes; a client may ask that none is. ``originals`` are the placeholders
    of the request, to which hooks may add; ``None`` if its answer restores none.
    """

    run_id: str
    turn: int
    caller: str
    request_id: str = ""
    ledger: RunLedger = field(default_factory=RunLedger)
    limiter: Limiter | None = None
    key: str = ""
    catalog: Catalog | None = None
    keeps: bool = False
    images: ImageSource | None = None
    originals: Placeholders | None = None
    person: Person | None = None

    def at_turn(self, turn: int) -> "RunContext":
        """Return the context of another turn of the run; turns count from 1."""
        return RunContext(
            self.run_id,
            turn,
            self.caller,
            self.request_id,
            self.ledger,
            self.limiter,
            self.key,
            self.catalog,
            self.keeps,
            self.images,
            self.originals,
            self.person,
        )


def fingerprint(call: ToolCall) -> str:
    """Return the SHA-256, in hex, of a call's name and arguments as they came."""
    text = f"{call.name}\0{call.arguments}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
