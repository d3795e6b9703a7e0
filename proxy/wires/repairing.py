"""Streams that are defective, and the writers that can put them right.

A writer hands on the upstream's bytes as long as it can.  Where these bytes would break clients, one that
repairs composes the stream instead, from the event on in which it sees the defect: the same events, with the
ids, indices, numbers and the end that clients need.  docs/doctor.md lists the defects.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

__all__ = ["CUT_OFF", "Failure", "RepairHabit", "RepairingWriter", "failure_of"]

RepairHabit = Literal["auto", "off", "always"]
"""What is done about an upstream's defective streams: composed where a defect is seen, never, or always."""

CUT_OFF = "The upstream's response ended before it was finished."
"""What a client is told of a stream whose composed end would claim that the model had finished."""


class RepairingWriter(ABC):
    """A :class:`~proxy.wires.client_port.StreamWriter` that can repair."""

    @abstractmethod
    def repair(self, *, always: bool, begun: bool = False, single_turn: bool = False) -> None:
        """Repair this stream; called before the first frame is written.

        ``always``: compose from the first frame on, else from the one on that shows a defect.  ``begun``:
        earlier bytes of the stream have gone out already, and had no defect.  ``single_turn``: no turn
        follows this one, so that nothing need be held back for another.
        """


class Failure(TypedDict):
    """What :meth:`~proxy.wires.client_port.StreamWriter.fail` takes."""

    message: str
    type: str
    code: str | None


def failure_of(error: Mapping[str, Any]) -> Failure:
    """What an upstream's error object says, which came inside a stream that is composed."""
    message, kind, code = error.get("message"), error.get("type"), error.get("code")
    return Failure(
        message=message if isinstance(message, str) and message else "The upstream reported an error.",
        type=kind if isinstance(kind, str) and kind else "upstream_error",
        code=str(code) if isinstance(code, str | int) else None,
    )
