"""The phases of a stream writer, between passing bytes on and writing its own: one table for all dialects.

A writer begins by passing frames on. It holds frames back while it cannot know whether they may leave. From
the first hidden call on, it writes the stream itself.
"""

from enum import StrEnum
from typing import Final

from proxy.records.transitions import Transitions


class Phase(StrEnum):
    """What the writer does with a frame."""

    PASSING = "passing"
    """Send it as it came."""
    WAITING = "waiting"
    """Hold it until the owner of a call that has begun is known."""
    HOLDING = "holding"
    """Hold it to the end of its turn."""
    COMPOSING = "composing"
    """Write it anew, now and to the end of the stream."""


class Sign(StrEnum):
    """A fact in a frame, or at the end of a turn, that decides the next phase."""

    CERTAIN = "certain"
    """The owner of each call is known, and no call is hidden."""
    UNCERTAIN = "uncertain"
    """A call has begun that may be hidden."""
    OPEN = "open"
    """The frame may go out as it came only if its turn has no hidden call."""
    HIDDEN = "hidden"
    """A call or a turn is hidden, the turn pauses and will continue, or the frame has a defect to repair."""
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
        # Only the end of the turn decides.
        (HOLDING, CERTAIN): HOLDING,
        (HOLDING, UNCERTAIN): HOLDING,
        (HOLDING, OPEN): HOLDING,
        (HOLDING, HIDDEN): COMPOSING,
        (HOLDING, TURN_ENDED): HOLDING,
        # The writer cannot return to the upstream's bytes: ids, indices and the end are its own now.
        (COMPOSING, HIDDEN): COMPOSING,
        (COMPOSING, TURN_ENDED): COMPOSING,
    }
)
