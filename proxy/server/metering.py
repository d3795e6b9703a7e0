"""Use of requests that pass through, counted where tokens or cost are limited or an upstream is always asked.

Elsewhere nothing is read."""

from collections.abc import Mapping
from typing import Any, Final

from proxy.errors import RequestError
from proxy.relay.routing.prices import Price, Prices, estimated_usage
from proxy.relay.routing.router import Route
from proxy.server.auth.body_rights import check_names
from proxy.server.limits.limiter import Admission
from proxy.server.serving.request import EdgeRequest
from proxy.wires.dialects.table import ENDPOINTS, find_endpoint
from proxy.wires.json.splice import join_object, members
from proxy.wires.stream.usage_tap import UsageTap

__all__ = ["BY_BODY", "Metered", "ReadBody", "check_switches", "counted_by_body", "meter", "price_of"]

ReadBody = tuple[bytes, dict[str, Any] | None]
"""A JSON body that was read strictly: its bytes, and what they say or, if nothing hangs on it, ``None``."""

_ASKED: Final = frozenset(known.path for known in ENDPOINTS if known.usage == "asked")
"""Paths whose streams report usage only where they are asked to."""

_DECIDING: Final = ("stream", "background")
"""Fields on which it hangs whether use is reported."""

_FURTHER: Final = ("models", "fallbacks")
"""Fields in which providers take models to fall back on."""

BY_BODY: Final = frozenset(
    known.path for known in ENDPOINTS if known.body == "json" and known.usage == "told"
)
"""Paths whose body is looked into only where what it costs is counted."""


class Metered:
    """One request whose use is counted: ``body`` is what goes upstream, ``tap`` watches the response."""

    def __init__(self, admission: Admission, price: Price | None, body: bytes | None, *, strip: bool) -> None:
        self._admission = admission
        self._price = price
        self.body = body
        self.tap = UsageTap(strip=strip)

    @property
    def cost(self) -> int:
        """What the response cost, in billionths, as far as it said."""
        usage = self.tap.usage
        return self._price.cost(usage) if self._price and usage is not None else 0

    def settle(self) -> None:
        """Count what the response said, however it ended, or what it took at least.

        A client that goes before the end, where usage stands, would otherwise use what it likes.
        """
        usage = self.tap.usage
        if usage is None and self.tap.began and self.body is not None:
            usage = estimated_usage(self.body, self.tap.events)
        if usage is not None:
            self._admission.spend(usage.all_tokens, self._price.cost(usage) if self._price else 0)


def counted_by_body(request: EdgeRequest, below: str) -> bool:
    """Whether the body is looked into for the model alone whose use is counted."""
    return below in BY_BODY and request.admission.counts_usage


def meter(
    admission: Admission, prices: Prices, below: str, route: Route, read: ReadBody | None
) -> Metered | None:
    """How a POST to ``below`` is counted; ``None`` where it is not.

    ``read`` is its body, ``None`` where that is streamed.  Where nothing is limited, streams of an
    upstream with ``force_usage`` are counted all the same.

    Raises :class:`~proxy.errors.RequestError` for what could not be counted.
    """
    if not admission.counts_usage and not route.served.force_usage:
        return None
    body, payload = read if read is not None else (None, None)
    streams = payload is not None and below in _ASKED and payload.get("stream") is True
    if not admission.counts_usage and not streams:
        return None
    if find_endpoint("POST", below).usage == "none":
        return None
    if body is None or payload is None:
        # A form, or a path of the provider's own: it counts what it reports, but its model is not known.
        return Metered(admission, None, None, strip=False)
    price = price_of(admission, prices, route, payload)
    strip = False
    if streams:
        options = payload.get("stream_options")
        strip = not (isinstance(options, dict) and options.get("include_usage") is True)
        if strip:
            parts = members(body)
            given = members(parts["stream_options"]) if isinstance(options, dict) else {}
            asked = join_object({**given, "include_usage": b"true"})
            body = join_object({**parts, "stream_options": asked})
    return Metered(admission, price, body, strip=strip)


def check_switches(payload: Mapping[str, Any]) -> None:
    """Raise RequestError (400) for a ``stream`` or ``background`` that is neither true nor false.

    Some upstreams take 1 or "yes" for true: what comes is then another thing than what is read or counted.
    """
    for field in _DECIDING:
        value = payload.get(field)
        if value is not None and value is not True and value is not False:
            raise RequestError(400, f"{field} must be true or false.", param=field)


def price_of(admission: Admission, prices: Prices, route: Route, payload: Mapping[str, Any]) -> Price | None:
    """The price of the model that a request asks for.

    Raises :class:`~proxy.errors.RequestError` (400) where what it uses is limited and could not be
    counted: a model without a price under a limit of cost, an answer that comes later.
    """
    model = payload.get("model")
    named = model if isinstance(model, str) else ""
    price = prices.of(named, route.model)
    if not admission.counts_usage:
        return price
    if price is None and admission.counts_cost:
        raise RequestError(
            400,
            f"The model {named[:100]!r} has no price here, and cost is limited. Ask for another model.",
            param="model",
            code="model_not_priced",
        )
    _check_countable(admission, payload)
    return price


def _check_countable(admission: Admission, payload: Mapping[str, Any]) -> None:
    """Raise RequestError (400) for a body of which an upstream may make what is not counted."""
    check_names(payload)
    if isinstance(options := payload.get("stream_options"), dict):
        check_names(options)
    check_switches(payload)
    for field in _FURTHER:
        if admission.counts_cost and payload.get(field):
            raise RequestError(
                400,
                f"Cost is limited, and it is not known which of {field} will answer. Leave {field} out.",
                param=field,
            )
    if payload.get("background") is True:
        raise RequestError(
            400,
            "What a response in the background uses cannot be counted, and tokens or cost are limited. "
            "Leave background out.",
            param="background",
        )
