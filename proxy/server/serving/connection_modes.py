"""What becomes of the bytes that a client sends on a connection: one table."""

from enum import StrEnum
from typing import Final

from proxy.transitions import Transitions

__all__ = ["NEXT", "REFUSAL", "REFUSED", "REQUESTS", "SWITCHED", "UPGRADE", "Event", "Mode"]


class Mode(StrEnum):
    """How a connection treats the bytes that a client sends."""

    REQUESTS = "requests"
    """They are parsed as requests."""
    SWITCHED = "switched"
    """They belong to the protocol that an upgrade named."""
    REFUSED = "refused"
    """They are thrown away: something before them was refused."""


class Event(StrEnum):
    """The events that end the requests of a connection."""

    UPGRADE = "upgrade"
    REFUSAL = "refusal"


REQUESTS, SWITCHED, REFUSED = Mode
UPGRADE, REFUSAL = Event

NEXT: Final = Transitions(
    {
        (REQUESTS, UPGRADE): SWITCHED,
        (REQUESTS, REFUSAL): REFUSED,
        # What was refused may be refused for another reason, too.
        (REFUSED, REFUSAL): REFUSED,
    }
)
