"""Define the modes of a connection: how it treats the bytes that a client sends."""

from enum import StrEnum
from typing import Final

from proxy.records.transitions import Transitions


class Mode(StrEnum):
    """How a connection treats the bytes that a client sends."""

    REQUESTS = "requests"
    """Parse the bytes as requests."""
    SWITCHED = "switched"
    """Pass the bytes to the protocol that an upgrade named."""
    REFUSED = "refused"
    """Discard the bytes: an earlier request was refused."""


class ConnectionEvent(StrEnum):
    """The events that end the requests of a connection."""

    UPGRADE = "upgrade"
    REFUSAL = "refusal"


REQUESTS, SWITCHED, REFUSED = Mode
UPGRADE, REFUSAL = ConnectionEvent

NEXT: Final = Transitions(
    {
        (REQUESTS, UPGRADE): SWITCHED,
        (REQUESTS, REFUSAL): REFUSED,
        # A refused connection may be refused again for another reason.
        (REFUSED, REFUSAL): REFUSED,
    }
)
