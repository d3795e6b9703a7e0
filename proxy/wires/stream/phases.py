"""How far a writer is from the upstream's own bytes: one table for the writers of all dialects.

A writer begins by handing on what comes.  It holds frames back while it is not certain what becomes of them,
and from the first hidden call on it makes the stream itself.
"""

from enum import StrEnum
from typing import Final

from proxy.transitions import Transitions

__all__ = ["CERTAIN", "COMPOSING", "HIDDEN", "HOLDING", "NEXT", "OPEN", "PASSING", "TURN_ENDED", "UNCERTAIN",
           "WAITING", "Phase", "Sign"]  # fmt: skip


class Phase(StrEnum):
    """What becomes of a frame."""

    PASSING = "passing"
    """It goes out as it came."""
    WAITING = "waiting"
    """It is held until it is certain whose call has begun."""
    HOLDING = "holding"
    """It is held to the end of its turn."""
    COMPOSING = "composing"
    """It is written anew, now and to the end of the stream."""


class Sign(StrEnum):
    """What decides that, in a frame or at the end of a turn."""

    CERTAIN = "certain"
    """The owner of each call is known, and none of them is hidden."""
    UNCERTAIN = "uncertain"
    """A call has begun, and it may be a hidden one."""
    OPEN = "open"
    """The frame may go out as it came only if its turn has no hidden call."""
    HIDDEN = "hidden"
    """A call or a turn is hidden from the client, the turn pauses and is gone on with, or the frame has a
    defect that is repaired."""
    TURN_ENDED = "turn ended"
    """The turn is over, and the client sees all of it."""


PASSING, WAITING, HOLDING, COMPOSING = Phase
CERTAIN, UNCERTAIN, OPEN, HIDDEN, TURN_ENDED = Sign

NEXT: Final = Transitions(
    {
        (PASSING, CERTAIN): PASSING,
        (PASSING, UNCERTAIN): WAITING,
        (PASSING, OPEN): HOLDING,
        (PASSING, HIDDEN): COMPOSING,
        (PASSING, TURN_ENDED): PASSING,
        (WAITING, CERTAIN): PASSING,
        (WAITING, UNCERTAIN): WAITING,
        (WAITING, OPEN): HOLDING,
        (WAITING, HIDDEN): COMPOSING,
        (WAITING, TURN_ENDED): PASSING,
        # Only the end of the turn tells.
        (HOLDING, CERTAIN): HOLDING,
        (HOLDING, UNCERTAIN): HOLDING,
        (HOLDING, OPEN): HOLDING,
        (HOLDING, HIDDEN): COMPOSING,
        (HOLDING, TURN_ENDED): HOLDING,
        # There is no way back to the upstream's bytes: ids, indices and the end are the writer's own.
        (COMPOSING, HIDDEN): COMPOSING,
        (COMPOSING, TURN_ENDED): COMPOSING,
    }
)
