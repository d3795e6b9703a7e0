"""Count the usage of requests that pass through.

Usage is counted if tokens or cost are limited, or if the proxy always asks an upstream for it. In all other
cases nothing is read.
"""

from collections.abc import Mapping
from typing import Any

from proxy.base.errors import RequestError
from proxy.records.rows import Meter
from proxy.relay.body import Body
from proxy.relay.routing.prices import Price, Prices, estimated_usage
from proxy.relay.routing.router import Route
from proxy.wires.dialect import Dialect, Endpoint
from proxy.wires.registry.requests import FURTHER_MODELS, background_of, check_counted, with_usage_asked
from proxy.wires.stream.usage_tap import UsageTap


class Metered:
    """One request whose usage is counted: ``body`` goes upstream, and ``tap`` reads the response."""

    def __init__(
        self, meter: Meter, price: Price | None, body: bytes | None, *, dialect: Dialect, strip: bool
    ) -> None:
        self._meter = meter
        self._price = price
        self.body = body
        self.tap = UsageTap(strip=strip, framing=dialect.framing, fields=dialect.usage)

    @property
    def cost(self) -> int | None:
        """The cost of the response in billionths, as far as it has reported usage; ``None`` if unknown."""
        usage = self.tap.usage
        return self._price.cost(usage) if self._price and usage is not None else None

    def settle(self) -> None:
        """Count the usage that the response reported, however it ended, or else an estimate of the least
        usage.

        Without the estimate, a client that leaves before the end, where usage is reported, would pay
        nothing.
        """
        usage = self.tap.usage
        if usage is None and self.tap.began and self.body is not None:
            usage = estimated_usage(self.body, self.tap.events)
        if usage is not None:
            self._meter.spend(usage.all_tokens, self._price.cost(usage) if self._price else 0)


def meter(
    counting: Meter, prices: Prices, endpoint: Endpoint, route: Route, body: Body | None
) -> Metered | None:
    """Return how a POST to an endpoint is counted; ``None`` if it is not.

    ``body`` is ``None`` if it is streamed. Streams of an upstream with ``force_usage`` are counted even if
    nothing is limited. Raise :class:`RequestError` for a request that could not be counted.
    """
    if not counting.counts_usage and not route.served.force_usage:
        return None
    streams = body is not None and endpoint.usage == "on_request" and body.payload.get("stream") is True
    if not counting.counts_usage and not streams:
        return None
    if endpoint.usage == "none":
        return None
    if body is None or not endpoint.model:
        # A form, or a path of the provider's own: reported usage is counted, but the model is unknown.
        return Metered(counting, None, None, dialect=endpoint.dialect, strip=False)
    raw = body.raw
    price = price_of(counting, prices, route, body.payload)
    strip = False
    if streams:
        raw = with_usage_asked(endpoint.dialect, raw, body.payload)
        strip = raw is not body.raw
    return Metered(counting, price, raw, dialect=endpoint.dialect, strip=strip)


def price_of(meter: Meter | None, prices: Prices, route: Route, payload: Mapping[str, Any]) -> Price | None:
    """Return the price of the model that a request asks for.

    Raise :class:`RequestError` (400) if its usage is limited but could not be counted: a model
    without a price under a limit of cost, or an answer that comes later.
    """
    model = payload.get("model")
    named = model if isinstance(model, str) else ""
    price = prices.at(route.served, named, route.model)
    if meter is None or not meter.counts_usage:
        return price
    if price is None and meter.counts_cost:
        raise RequestError(
            400,
            f"The model {named[:100]!r} has no price here, and cost is limited. Ask for another model.",
            param="model",
            code="model_not_priced",
        )
    _check_countable(meter, payload)
    return price


def _check_countable(meter: Meter, payload: Mapping[str, Any]) -> None:
    """Raise RequestError (400) for a body whose answer an upstream could produce without being counted."""
    check_counted(payload)
    for field in FURTHER_MODELS:
        if meter.counts_cost and payload.get(field):
            raise RequestError(
                400,
                f"Cost is limited, and the proxy cannot know which of {field} will answer. Leave {field} "
                "out.",
                param=field,
            )
    if (background := background_of(payload)) is not None and background.value is True:
        raise RequestError(
            400,
            "The proxy cannot count what a background response uses, and tokens or cost are limited. "
            f"Leave {background.name} out.",
            param=background.name,
        )
