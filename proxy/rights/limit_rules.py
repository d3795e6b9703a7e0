"""How much a caller may do: the limits as written, and the words for their state.

``counters.py`` counts them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from proxy.base.errors import ConfigError, RequestError, ToolRelayError
from proxy.relay.routing.prices import NANOS

if TYPE_CHECKING:  # Imported late: a process without limits saves two megabytes.
    from limits import RateLimitItem

LimitKind = Literal["requests", "tool_calls", "tokens", "cost", "concurrent_streams"]

_PERIODS: Final = ((31104000, "year"), (2592000, "month"), (86400, "day"), (3600, "hour"), (60, "minute"))
_MAX_AMOUNT: Final = 10**15
_MAX_WINDOW_S: Final = 10 * 366 * 86400
"""The longest window, in seconds."""

_MAX_TEXT: Final = 200
_MOST_LIMITS: Final = 16
_AMOUNT = re.compile(r"\d+(?:\.\d+)?(?=\s*(?:/|per\b))")


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one caller; ``None`` leaves the general setting in force, ``()`` sets no limit.

    Amounts of ``cost`` are billionths of the currency of the prices, as :func:`parse_cost_limits` reads them.
    """

    requests: "tuple[RateLimitItem, ...] | None" = None
    tool_calls: "tuple[RateLimitItem, ...] | None" = None
    tokens: "tuple[RateLimitItem, ...] | None" = None
    cost: "tuple[RateLimitItem, ...] | None" = None
    concurrent_streams: int | None = None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        limits = (self.requests, self.tool_calls, self.tokens, self.cost, self.concurrent_streams)
        object.__setattr__(self, "_hash", hash(limits))

    def __hash__(self) -> int:
        """Return the hash, which is computed once: each request looks up its limits by it."""
        return self._hash


class Limit(NamedTuple):
    """One limit: ``amount`` within ``seconds``; an amount of cost is in billionths."""

    kind: LimitKind
    amount: int
    seconds: int

    def __str__(self) -> str:
        """Return ``600 per minute``, ``0.5 per 2 hours``."""
        amount = f"{Decimal(self.amount) / NANOS:f}" if self.kind == "cost" else str(self.amount)
        if not self.seconds:
            return amount
        for seconds, name in (*_PERIODS, (1, "second")):
            if self.seconds % seconds == 0:
                count = self.seconds // seconds
                return f"{amount} per {name}" if count == 1 else f"{amount} per {count} {name}s"
        raise AssertionError("seconds are whole")


class LimitSet(NamedTuple):
    """All limits of one caller. ``spending`` are those of tokens and of cost."""

    requests: tuple[Limit, ...] = ()
    tool_calls: tuple[Limit, ...] = ()
    spending: tuple[Limit, ...] = ()
    streams: int | None = None

    @classmethod
    def of(cls, limits: KeyLimits, general: KeyLimits) -> "LimitSet":
        """Return ``limits``, with ``general`` in place of missing ones; only the caller's own limit of
        streams counts."""

        def chosen(
            kind: LimitKind,
            own: "tuple[RateLimitItem, ...] | None",
            others: "tuple[RateLimitItem, ...] | None",
        ) -> tuple[Limit, ...]:
            items = (others if own is None else own) or ()
            return tuple(dict.fromkeys(Limit(kind, item.amount, item.get_expiry()) for item in items))

        return cls(
            chosen("requests", limits.requests, general.requests),
            chosen("tool_calls", limits.tool_calls, general.tool_calls),
            chosen("tokens", limits.tokens, general.tokens) + chosen("cost", limits.cost, general.cost),
            limits.concurrent_streams,
        )


class LimitStatus(NamedTuple):
    """The state of one limit for a caller: what is left, and the seconds until the oldest use stops
    counting."""

    limit: Limit
    left: int
    reset_s: float


class LimitVerdict(NamedTuple):
    """The outcome of a request: taken, or ``refused`` by the limit with the longest wait."""

    refused: Limit | None
    wait_s: float
    limit_statuses: Sequence[LimitStatus]


class LimitsUnavailable(ToolRelayError):
    """Raised if the counters cannot be reached, so that the use of a caller is unknown."""


def parse_limits(setting: str, texts: Sequence[str]) -> "tuple[RateLimitItem, ...]":
    """Parse limits as written (``"600/minute"``, ``"5 per second"``); all of them apply together.

    Raises :class:`~proxy.base.errors.ConfigError` naming ``setting``.
    """
    items: list[RateLimitItem] = []
    for text in texts[: _MOST_LIMITS + 1]:
        items += _parsed(setting, text, text, "600/minute")
    return _few(setting, items)


def parse_cost_limits(setting: str, texts: Sequence[str]) -> "tuple[RateLimitItem, ...]":
    """Parse limits of cost as written (``"5/day"``, ``"0.50/hour"``); the amounts become billionths.

    Raises :class:`~proxy.base.errors.ConfigError` naming ``setting``.
    """
    items: list[RateLimitItem] = []
    for text in texts[: _MOST_LIMITS + 1]:
        whole = _AMOUNT.sub(lambda found: str(int(Decimal(found[0]) * NANOS)), text[:_MAX_TEXT])
        items += _parsed(setting, text, whole, "0.50/hour")
    return _few(setting, items)


def _parsed(setting: str, text: str, whole: str, example: str) -> "list[RateLimitItem]":
    from limits import parse_many  # Imported late, as above.

    # Clients write limits too, into their tokens: a run of spaces would take the parser's pattern hours, and
    # an endless window cannot be counted.
    try:
        parsed = parse_many(" ".join(whole.split())) if len(text) <= _MAX_TEXT else []
    except ValueError:
        parsed = []
    if not parsed or any(not 1 <= item.amount <= _MAX_AMOUNT or item.multiples < 1 for item in parsed):
        raise ConfigError(setting, f"{text[:80]!r} is not a limit", f'Write it like "{example}"')
    if any(item.get_expiry() > _MAX_WINDOW_S for item in parsed):
        raise ConfigError(
            setting, f"the window of {text[:80]!r} is longer than 10 years", "Choose a shorter time"
        )
    return parsed


def _few(setting: str, items: "Sequence[RateLimitItem]") -> "tuple[RateLimitItem, ...]":
    """Return the limits if they are few enough to check each request against all of them."""
    if len(items) > _MOST_LIMITS:
        raise ConfigError(setting, f"has more than {_MOST_LIMITS} limits", "Remove limits that others imply")
    return tuple(items)


class ConcurrentStreams:
    """The limit of open requests in this process; ``open`` is their present number."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ConfigError("limits.concurrent_streams", "must be 1 or more")
        self.limit = limit
        self.open = 0

    @staticmethod
    def refusal() -> RequestError:
        """Return the error for a client that exceeds a limit of places."""
        return RequestError(
            429,
            "Too many requests are open at the same time. Try again when one has ended.",
            type="rate_limit_error",
            code="rate_limit_exceeded",
            headers={"retry-after": "1"},
        )
