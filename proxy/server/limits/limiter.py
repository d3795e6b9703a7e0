"""Applies limits to requests: admits or refuses them, and counts their use.

Responses carry OpenAI's ``x-ratelimit-*`` for requests and tokens if a limit of the proxy applies. They then
hide the upstream's headers of the same kind, which describe the shared provider key.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from proxy.base.caches import Memo, declare_lru
from proxy.base.errors import RequestError, ToolFailure
from proxy.http.own_headers import RATE_LIMITS
from proxy.rights.limit_rules import KeyLimits, Limit, LimitKind, LimitSet, LimitStatus, LimitsUnavailable
from proxy.server.limits.counters import Counters
from proxy.server.messages.request import new_ids

if TYPE_CHECKING:
    from proxy.rights.callers import Caller

_SDK_WAITS_S: Final = 60
"""The official clients obey a ``Retry-After`` up to this value; for a longer one they retry within
seconds."""

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_PLAN_BYTES: Final = 2000
_PLANS_BYTES: Final = 16 * 2**20
_MOST_TOKENS: Final = 10**12


class Admission:
    """One admitted request: its rate limit headers, and the counter of its tool calls and its use.

    A :class:`~proxy.records.rows.Meter`.
    """

    __slots__ = (
        "_caller",
        "_counters",
        "_lease",
        "_limits",
        "_open",
        "counts_usage",
        "headers",
        "parent",
    )

    def __init__(
        self,
        counters: Counters,
        caller: str,
        limits: LimitSet,
        headers: Mapping[str, str] = _NO_HEADERS,
        *,
        lease: str = "",
        on_error: Literal["open", "closed"] = "open",
    ) -> None:
        self._counters = counters
        self._caller = caller
        self._limits = limits
        self._lease = lease
        self._open = on_error == "open"
        self.headers = headers
        self.counts_usage = bool(limits.spending)
        """Whether a limit of tokens or of cost applies."""
        self.parent: Admission | None = None
        """The admission of the key behind a minted token, which also spends what its tokens spend."""

    def add_parent(self, parent: "Admission") -> None:
        """Add the admission of the key behind a token: its limits apply here, too."""
        self.parent = parent
        self.counts_usage = self.counts_usage or parent.counts_usage
        self.headers = self.headers or parent.headers

    @property
    def counts_cost(self) -> bool:
        """Whether a limit of cost applies."""
        own = any(limit.kind == "cost" for limit in self._limits.spending)
        return own or (self.parent is not None and self.parent.counts_cost)

    async def hit(self, kind: Literal["tool_calls"], caller: str) -> float | None:
        """Count a tool call; return ``None`` if it is within every limit, else the seconds until one is free.

        Raises :class:`~proxy.base.errors.ToolFailure` if it cannot be counted but must be.
        """
        # A token's own limit first: calls that exceed it must not use up its key's.
        wait_s = await self._own_hit()
        if wait_s is None and self.parent is not None:
            return await self.parent.hit(kind, caller)
        return wait_s

    async def _own_hit(self) -> float | None:
        if not self._limits.tool_calls:
            return None
        try:
            verdict = await self._counters.take(self._caller, self._limits.tool_calls, (), None, "")
        except LimitsUnavailable:
            if self._open:
                return None
            raise ToolFailure(
                "tool calls cannot be counted now, so the call was not made; try again later",
                code="rate_limited",
            ) from None
        return None if verdict.refused is None else verdict.wait_s

    def spend(self, tokens: int, cost: int) -> None:
        """Count the use; ``cost`` is in billionths. Never waits, never raises."""
        if self.parent is not None:
            self.parent.spend(tokens, cost)
        spent = []
        for limit in self._limits.spending:
            amount = min(tokens, _MOST_TOKENS) if limit.kind == "tokens" else cost
            if amount > 0:
                spent.append((limit, amount))
        if spent:
            self._counters.spend(self._caller, spent)

    def release(self) -> None:
        """Give the request's place back when the request has ended."""
        if self.parent is not None:
            self.parent.release()
        if self._lease:
            self._counters.release(self._caller, self._lease)


class RateLimiter:
    """The rate limiter, which admits requests within the limits of their callers.

    ``general`` applies if a caller has no limits of its own. ``on_error`` says whether requests are admitted
    while the counters cannot be reached.
    """

    def __init__(
        self,
        general: KeyLimits,
        counters: Counters,
        *,
        on_error: Literal["open", "closed"],
        limited: Callable[[str], None] = lambda kind: None,
    ) -> None:
        """``limited`` is called with the kind of each limit that refuses a request."""
        self._limited = limited
        self._general = general
        self._counters = counters
        self._on_error = on_error
        self._default = LimitSet.of(KeyLimits(), general)
        self._leases = new_ids("")
        self._plans: Memo[KeyLimits, LimitSet] = Memo("limit_plans", _PLANS_BYTES, _plan_bytes)

    def admit(self, caller: "Caller") -> Awaitable[Admission]:
        """Admit a request of this caller.

        Raises :class:`RequestError`: 429 naming the limit that is reached, 503 if limits cannot
        be counted and ``on_error`` is closed.
        """
        if caller.parent_counted_as is None:
            return self._admit(caller.counted_as, caller.limits)
        return self._admit_token(caller, caller.parent_counted_as)

    async def _admit_token(self, caller: "Caller", key: str) -> Admission:
        """Count a request for its token and for the key behind it."""
        admission = await self._admit(caller.counted_as, caller.limits)
        try:
            admission.add_parent(await self._admit(key, caller.parent_limits))
        except BaseException:  # A client that leaves meanwhile holds no place either.
            admission.release()
            raise
        return admission

    async def _admit(self, name: str, own: KeyLimits | None) -> Admission:
        """Count a request under one name of its caller."""
        limits = self._default if own is None else self._limits(own)
        lease = next(self._leases) if limits.streams is not None else ""
        headers = _NO_HEADERS
        if limits.requests or limits.spending or lease:
            try:
                verdict = await self._counters.take(
                    name, limits.requests, limits.spending, limits.streams, lease
                )
            except LimitsUnavailable:
                if self._on_error == "closed":
                    raise _uncounted() from None
                lease = ""
            else:
                if verdict.refused is not None:
                    self._limited(verdict.refused.kind)
                    raise _refusal(verdict.refused, verdict.wait_s, verdict.limit_statuses)
                headers = _headers(verdict.limit_statuses)
        return Admission(self._counters, name, limits, headers, lease=lease, on_error=self._on_error)

    def _limits(self, own: KeyLimits) -> LimitSet:
        known = self._plans.get(own)
        if known is None:
            known = self._plans.put(own, LimitSet.of(own, self._general))
        return known

    async def aclose(self) -> None:
        """Count what is still to be counted."""
        await self._counters.aclose()


def _plan_bytes(own: KeyLimits, _: LimitSet) -> int:
    limits = sum(map(len, (own.requests or (), own.tool_calls or (), own.tokens or (), own.cost or ())))
    return _PLAN_BYTES + 400 * limits


def _refusal(limit: Limit, wait_s: float, limit_statuses: Sequence[LimitStatus]) -> RequestError:
    seconds = max(1, math.ceil(wait_s))
    headers = _headers(limit_statuses)
    headers["Retry-After"] = str(seconds)
    headers["retry-after-ms"] = str(max(1, math.ceil(wait_s * 1000)))
    if seconds > _SDK_WAITS_S:
        headers["x-should-retry"] = "false"
    what = "open requests" if limit.kind == "concurrent_streams" else limit.kind
    return RequestError(
        429,
        f"Rate limit reached for {what}: {limit} (limits.{limit.kind}). Try again in {_duration(seconds)}.",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers=headers,
    )


def _uncounted() -> RequestError:
    return RequestError(
        503,
        "The proxy cannot count requests against its limits now. Try again in a moment.",
        type="server_error",
        code="limits_unavailable",
        headers={"Retry-After": "1"},
    )


def _headers(limit_statuses: Sequence[LimitStatus]) -> dict[str, str]:
    """Return OpenAI's headers; of several limits of one kind, they show the one with the least left."""
    headers = {}
    for limit, left, reset_s in limit_statuses if len(limit_statuses) == 1 else _tightest(limit_statuses):
        shown = RATE_LIMITS.get(limit.kind)
        if shown is not None:
            of_limit, of_left, of_reset = shown
            headers[of_limit] = f"{limit.amount}"
            headers[of_left] = f"{left}"
            headers[of_reset] = _duration(reset_s)
    return headers


def _tightest(limit_statuses: Sequence[LimitStatus]) -> Iterable[LimitStatus]:
    """Return for each kind the limit with the least left."""
    tightest: dict[LimitKind, LimitStatus] = {}
    for limit_status in limit_statuses:
        kind = limit_status.limit.kind
        if kind not in tightest or limit_status.left < tightest[kind].left:
            tightest[kind] = limit_status
    return tightest.values()


def _duration(seconds: float) -> str:
    """Return seconds in OpenAI's form: ``20ms``, ``1s``, ``6m0s``, ``24h0m0s``."""
    millis = round(seconds * 1000)  # Rounding removes the float error of the clock.
    if millis < 1000:
        return f"{millis}ms" if millis > 0 else "0s"
    return _whole_duration(-(-millis // 1000))


@lru_cache(maxsize=4096)
def _whole_duration(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    if not minutes:
        return f"{rest}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"


declare_lru("durations", _whole_duration, 300)
