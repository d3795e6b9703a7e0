"""The JSON body of a request: how long it is held, and how its deciding fields are written."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.errors import RequestError
from proxy.wires.client_port import CarryingPort, ClientPort

__all__ = ["FURTHER_MODELS", "Body", "check_names", "check_switches", "without_carried"]

FURTHER_MODELS: Final = ("models", "fallbacks")
"""Fields in which providers take further models to fall back on."""

_SWITCHES: Final = ("stream", "background")
"""Fields on which it hangs whether use is reported."""

_DECIDED_ON: Final = frozenset(
    {
        *(
            "conversation",
            "include_usage",
            "model",
            "previous_response_id",
            "prompt",
            "stream_options",
            "tools",
        ),
        *FURTHER_MODELS,
        *_SWITCHES,
    }
)
"""Fields that say what a request may reach, where it goes, and how it is counted."""


class Body:
    """A JSON body that was read strictly: its bytes, and what they say.

    A stream may stay open for long, and a conversation is larger than all else that is kept for it.  So
    nobody keeps a part of it, and whoever sends it to the last who may be asked takes it.
    """

    __slots__ = ("payload", "raw")

    def __init__(self, raw: bytes, payload: Mapping[str, Any]) -> None:
        self.raw = raw
        self.payload = payload

    def take(self) -> bytes:
        """Its bytes, of which nothing is left here."""
        raw, self.raw, self.payload = self.raw, b"", {}
        return raw


def without_carried(port: ClientPort, body: Body) -> Body:
    """The body of a request without encrypted turns of the proxy's, which no upstream could read."""
    raw = port.without_carried(body.raw) if isinstance(port, CarryingPort) else body.raw
    return body if raw is body.raw else Body(raw, orjson.loads(raw))


def check_names(payload: Mapping[str, Any]) -> None:
    """Refuse a field that is one of those we decide on but for the case of its letters.

    Readers in Go take such a field for the same, and of two the last one (encoding/json folds names).
    Raises :class:`RequestError` (400).
    """
    for name in payload:
        if name not in _DECIDED_ON and (folded := name.casefold()) in _DECIDED_ON:
            raise RequestError(400, f"Write {folded!r} in lower case.", param=name[:40])


def check_switches(payload: Mapping[str, Any]) -> None:
    """Raise RequestError (400) for a ``stream`` or ``background`` that is neither true nor false.

    Some upstreams take 1 or "yes" for true: what comes is then another thing than what is read or counted.
    """
    for field in _SWITCHES:
        value = payload.get(field)
        if value is not None and value is not True and value is not False:
            raise RequestError(400, f"{field} must be true or false.", param=field)
