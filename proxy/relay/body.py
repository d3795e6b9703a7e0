"""The JSON body of a request, and how long it stays in memory."""

from collections.abc import Mapping
from typing import Any

import orjson

from proxy.wires.wire import Wire


class Body:
    """A JSON body that was parsed strictly: its bytes, and the parsed payload.

    A stream may stay open for long, and the conversation is by far the largest object kept for it. So no
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
