"""Choose how an upstream is asked: in the client's dialect, in another one, or with calls in its text."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog

from proxy.relay.ask import Ask
from proxy.relay.offering.offer import Offer
from proxy.relay.routing.router import Route
from proxy.wires.client_port import ClientRequest
from proxy.wires.crossed import Crossing
from proxy.wires.crossed_links import CitingWire
from proxy.wires.text_calls.port import text_call_port
from proxy.wires.text_calls.rules import TextCallRules
from proxy.wires.upstream_port import BodyEditor, UpstreamPort
from proxy.wires.wire import Wire


def text_call_rules(route: Route, request: ClientRequest, offer: Offer) -> TextCallRules | None:
    """Return how the model's text is searched for calls in this request; ``None`` if it is not.

    A model whose prompt describes tools also gets the earlier calls of the conversation as text. The text
    of one that writes in channels is split without any tools, too.
    """
    text_calls = route.served.text_calls
    rules = text_calls.of(route.model) if text_calls is not None else None
    if rules is None or request.choices > 1:
        return None
    if rules.prompt:
        continues = request.continues is not None or bool(request.returned_calls())
        return rules if request.declared or offer or continues else None
    calls = (request.declared or offer) and not request.tools_forbidden
    return rules if calls or rules.form.channels else None


def port_of(
    route: Route, wire: Wire, wires: Mapping[str, Wire], request: ClientRequest, rules: TextCallRules | None
) -> UpstreamPort:
    """Return the port for asking an upstream: the client's own ``wire`` if nothing has to change.

    ``wires`` are the wires in which upstreams are asked, by name. ``rules`` say how the model's text is
    searched for calls.
    """
    if not route.wire and rules is None:
        return CitingWire(wire, request) if request.chosen.hosted else wire
    upstream = wires[route.wire] if route.wire else wire
    strict, profile = route.served.strict_bridge, route.served.profiles.of(upstream.dialect.wire, route.model)
    port: UpstreamPort
    if rules is None:
        port = Crossing(wire, upstream, request, profile, strict=strict)
    else:
        note = partial(_log_text_calls, route.served.upstream.name)
        port = text_call_port(wire, upstream, request, rules, note, profile, strict=strict)
    if isinstance(port, Crossing):
        port.ask_for(route.model, route.served.output_limit(route.model))
    return port


def _log_text_calls(upstream: str, facts: Mapping[str, Any]) -> None:
    """Log what was found in the text of a turn: the format, the number of calls, and repairs."""
    structlog.get_logger("proxy.relay").info("text_calls_read", upstream=upstream, **facts)


def editor_of(ask: Ask, route: Route, port: UpstreamPort, request: ClientRequest, offer: Offer) -> BodyEditor:
    """Return the editor of the body, without the entries that choose server tools: no upstream knows
    these."""
    raw, sent = ask.body.raw, request
    if request.chosen:
        raw, sent = ask.wire.without_chosen(raw, request, offer.shown)
    return port.editor(raw, sent, route.served.responses_state, caller=ask.identity.caller)
