"""The bounds for what one server sends. A server past one of them loses a call or its session, and no more.

One process talks to all servers, so every bound is for one server.
"""

import asyncio
from typing import Final

from proxy.json.size import count_values

MAX_LINE: Final = 16 << 20
"""The most bytes of one message; decompressed, if the server compresses it."""

MAX_VALUES: Final = 100_000
"""The most JSON values of one message. A value of three bytes takes about a hundred in memory."""

NO_MESSAGE: Final = -32700
"""The code of the JSON-RPC error for a request whose answer cannot be read: "Parse error" of JSON-RPC 2.0."""

TOO_LONG: Final = -32413
"""The code of the JSON-RPC error for a request whose answer is too large."""

TOO_LONG_WORDS: Final = (
    f"the server's answer is larger than {MAX_LINE} bytes or has more than {MAX_VALUES} values, "
    "or its open answers are too large together"
)

TOO_MUCH: Final = "the server sent more than 30,000 messages or lines in 10 seconds"

_MAX_TOGETHER: Final = 2 * MAX_LINE
_UNASKED, _UNASKED_S = 30_000, 10.0


class PastBounds(Exception):
    """A server is past a bound of its session, which ends. The message has no text of the server."""


class Budget:
    """A limit of ``most`` events in ``every_s`` seconds."""

    def __init__(self, most: int, every_s: float = 1.0) -> None:
        self._most = most
        self._every_s = every_s
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()
        self._taken = 0

    def take(self) -> bool:
        """Count an event and return whether it is within the limit."""
        now = self._clock()
        if now - self._since >= self._every_s:
            self._since, self._taken = now, 0
        self._taken += 1
        return self._taken <= self._most


def unasked_budget() -> Budget:
    """Return the budget of a session for messages and lines, see :data:`TOO_MUCH`."""
    return Budget(_UNASKED, _UNASKED_S)


class Room:
    """The bytes of a server's answers that are not complete yet, over all its streams."""

    def __init__(self) -> None:
        self._taken = 0

    def take(self, size: int) -> bool:
        """Count bytes and return whether there is room for them."""
        self._taken += size
        return self._taken <= _MAX_TOGETHER

    def give_back(self, size: int) -> None:
        """Count bytes as handed on."""
        self._taken -= size


def has_too_many_values(message: bytes) -> bool:
    """Return whether a JSON text has more than :data:`MAX_VALUES` values; it need not be valid."""
    return count_values(message, MAX_VALUES) > MAX_VALUES
