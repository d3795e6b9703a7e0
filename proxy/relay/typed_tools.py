"""Replaces tools of special types by functions, for an upstream that does not know these types."""

from dataclasses import replace
from typing import Final

import orjson

from proxy.relay.ask import Ask
from proxy.relay.body import Body
from proxy.relay.routing.router import Route
from proxy.wires.typed_tools.functions import EVERY_TYPE, AsFunctions

__all__ = ["native_types", "with_functions"]

_CUSTOM: Final = "custom"
"""The type of tools whose input is text.  Chat has it, too, but few servers do."""


def native_types(route: Route) -> tuple[str, ...]:
    """Return the types of tools of the client's dialect that need not be replaced for an upstream."""
    native = route.served.native
    if route.served.text_calls is not None:
        return ()
    if not route.wire:
        return native
    return (_CUSTOM,) if not {_CUSTOM, EVERY_TYPE}.isdisjoint(native) and route.wire == "chat" else ()


def with_functions(ask: Ask, route: Route) -> tuple[Ask, AsFunctions | None]:
    """Return the request as its upstream is asked, and what was replaced; ``None`` for nothing.

    Raise :class:`~proxy.base.errors.RequestError` for a declaration that cannot be read.
    """
    served, permissions = route.served, ask.access.permissions
    mixes = bool(served.native and permissions.selections[served.upstream.name].offered)
    typed = ask.wire.as_functions(ask.body.payload, native_types(route), mixes=mixes)
    if typed is None:
        return ask, None
    return replace(ask, body=Body(orjson.dumps(typed.payload), typed.payload)), typed
