"""The JSON body of a request: how long it stays in memory, and how certain fields must be written."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.base.errors import RequestError
from proxy.wires.wire import Wire

__all__ = ["FURTHER_MODELS", "Body", "check_names", "check_switches", "without_carried"]

FURTHER_MODELS: Final = ("models", "fallbacks")
"""Fields in which providers accept further models to fall back on."""

_SWITCHES: Final = ("stream", "background")
"""Fields that decide whether usage is reported."""

_DECIDED_ON: Final = frozenset(
    {
        *(
            "conversation",
            "include_usage",
            "input",
            "model",
            "moderation",
            "plugins",
            "preset",
            "previous_response_id",
            "prompt",
            "route",
            "stream_options",
            "svg",
            "tools",
        ),
        *FURTHER_MODELS,
        *_SWITCHES,
    }
)
"""Fields that decide what a request may reach, where it goes, and how it is counted."""


class Body:
    """A JSON body that was parsed strictly: its bytes, and the parsed payload.

    A stream may stay open for long, and the conversation is by far the largest object kept for it.  So no
    code keeps a part of it, and the code that sends it to the last possible upstream takes it.
    """

    __slots__ = ("payload", "raw")

    def __init__(self, raw: bytes, payload: Mapping[str, Any]) -> None:
        self.raw = raw
        self.payload = payload

    def release(self) -> bytes:
        """Return the bytes and release them; after this, the body is empty."""
        raw, self.raw, self.payload = self.raw, b"", {}
        return raw


def without_carried(port: Wire, body: Body) -> Body:
    """Return the body without encrypted turns of the proxy's, which no upstream could read."""
    raw = port.without_carried(body.raw)
    return body if raw is body.raw else Body(raw, orjson.loads(raw))


def check_names(payload: Mapping[str, Any]) -> None:
    """Refuse a field whose name differs from a field that the proxy decides on only in upper and lower case.

    Readers in Go treat the two as the same field, and use the last one (encoding/json folds names).  Raise
    :class:`RequestError` (400).
    """
    for name in payload:
        if name not in _DECIDED_ON and (folded := name.casefold()) in _DECIDED_ON:
            raise RequestError(400, f"Write {folded!r} in lower case.", param=name[:40])


def check_switches(payload: Mapping[str, Any]) -> None:
    """Raise RequestError (400) for a ``stream`` or ``background`` that is neither true nor false.

    Some upstreams treat 1 or "yes" as true.  Then their answer would not be what the proxy expects and
    counts.
    """
    for field in _SWITCHES:
        value = payload.get(field)
        if value is not None and value is not True and value is not False:
            raise RequestError(400, f"{field} must be true or false.", param=field)
