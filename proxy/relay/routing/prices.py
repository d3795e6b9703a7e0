"""The tokens that turns use, and their cost.

Amounts are whole numbers of billionths of a currency, so that no amount is rounded twice.
"""

import re
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Final, Protocol

from msgspec import Struct

from proxy.base.events import Usage
from proxy.base.globs import fits

NANOS: Final = 10**9
"""Billionths in one unit of the currency: a price of 0.15 for a million tokens is 150 for one token."""

_PER: Final = 10**6
_MAX_TOKENS: Final = 10**12
"""The most tokens of one turn that are counted; a larger number from an upstream is not a real count."""

_TOKEN_BYTES: Final = 4
"""The average number of bytes of text in one token; fewer in languages that do not use Latin letters."""

_BLOB: Final = re.compile(rb"[A-Za-z0-9+/_-]{512,}")
"""An image or a sound in base64, whose length says nothing about its tokens."""


def to_nanos(amount: float) -> int:
    """Convert an amount, exactly as it was written, to billionths."""
    return int((Decimal(repr(amount)) * NANOS).to_integral_value(ROUND_HALF_UP))


def cost_number(nanos: int | None) -> float | None:
    """Convert billionths to a number for machines: the nearest float, exact to fifteen digits."""
    return None if nanos is None else nanos / NANOS


def cost_text(nanos: int | None) -> str:
    """Write billionths for people: every digit, at least two decimals; a dash if there is no price."""
    if nanos is None:
        return "-"
    whole, _, rest = f"{Decimal(nanos) / NANOS:f}".partition(".")
    return f"{whole}.{rest.rstrip('0').ljust(2, '0')}"


class Price(Struct, frozen=True):
    """Prices for a million tokens of each kind, in billionths.

    ``reasoning`` is for output tokens that the model thought with, ``image_input`` for input tokens of images
    (both ``None``: as all others). ``request`` is for each model response. ``tiers`` are the prices of turns
    with more input tokens than a number, which ascends.
    """

    input: int
    cached_input: int
    cache_write: int
    output: int
    reasoning: int | None = None
    image_input: int | None = None
    request: int = 0
    tiers: "tuple[tuple[int, Price], ...]" = ()

    def cost(self, usage: Usage) -> int:
        """Return the cost of a turn in billionths, with halves rounded up."""
        for start, dearer in reversed(self.tiers):
            if usage.input_tokens > start:
                return dearer.cost(usage)
        received = min(usage.input_tokens, _MAX_TOKENS)
        cached = min(usage.cached_tokens, received)
        written = min(usage.cache_write_tokens, received - cached)
        # Some totals include reasoning, which is billed as output but shown in no other field.
        sent = min(max(usage.output_tokens, usage.total_tokens - usage.input_tokens), _MAX_TOKENS)
        whole = (received - cached - written) * self.input + sent * self.output
        whole += cached * self.cached_input + written * self.cache_write
        if self.reasoning is not None:
            whole += min(usage.reasoning_tokens, sent) * (self.reasoning - self.output)
        if self.image_input is not None:
            images = min(image_tokens(usage), received - cached - written)
            whole += images * (self.image_input - self.input)
        return self.request + (2 * whole + _PER) // (2 * _PER)


FREE: Final = Price(0, 0, 0, 0)
"""The price of the models of an upstream that costs nothing."""


def image_tokens(usage: Usage) -> int:
    """Return the input tokens of images, as OpenAI's image API reports them: ``image_tokens`` of
    ``input_tokens_details`` (openai-python, ``types/images_response.py``)."""
    details = usage.native.get("input_tokens_details")
    count = details.get("image_tokens") if isinstance(details, dict) else None
    return count if type(count) is int and count > 0 else 0


class ModelPrices(Protocol):
    """The list prices of a provider."""

    def of(self, name: str) -> Price | None:
        """Return the price of a model by the provider's name for it, or ``None``."""


class Priced(Protocol):
    """The part of an upstream that says what its models cost."""

    @property
    def free(self) -> bool: ...

    @property
    def listed(self) -> ModelPrices | None: ...


def estimated_usage(request: bytes, events: int) -> Usage:
    """Estimate the least usage of a turn without reported usage: it was broken off, or its upstream does not
    report usage.

    ``request`` is the body that went upstream, ``events`` the number of events in the answer. Each event
    counts as one token, because upstreams that stream token by token send one in each.
    """
    received = len(_BLOB.sub(b"", request)) // _TOKEN_BYTES
    return Usage(received, events, received + events)


class Prices:
    """Prices by model.

    A model is looked up by the name that the client used, then by the upstream's name. For each name, an
    exact entry takes precedence over the first pattern (``gpt-4o*``) that fits.
    """

    def __init__(self, prices: Mapping[str, Price] | None = None) -> None:
        self._prices = dict(prices or {})
        self._patterns = [name for name in self._prices if any(sign in name for sign in "*?[")]

    def __len__(self) -> int:
        return len(self._prices)

    def at(self, upstream: Priced, *names: str) -> Price | None:
        """Return the price of a model at an upstream, or ``None``.

        ``names`` are the one that the client used and the upstream's. Configured prices take precedence over
        the provider's list.
        """
        if upstream.free:
            return FREE
        price = self.of(*names)
        return price if price is not None or upstream.listed is None else upstream.listed.of(names[-1])

    def of(self, *names: str) -> Price | None:
        """Return the price of the first of ``names`` that has one, or ``None``."""
        for name in names if self._prices else ():
            if (exact := self._prices.get(name)) is not None:
                return exact
            for pattern in self._patterns:
                if fits(name, pattern):
                    return self._prices[pattern]
        return None
