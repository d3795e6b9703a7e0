"""Writers that can repair defective streams.

A writer forwards the upstream's bytes as long as it can. If these bytes would break clients, a repairing
writer composes the stream itself, from the first event with the defect on. The events are the same, but they
get the ids, indices, numbers and the end that clients need. docs/doctor.md lists the defects.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

RepairHabit = Literal["auto", "off", "always"]
"""When the proxy repairs an upstream's streams: from the first defect on (``auto``), never, or always."""

CUT_OFF = "The upstream's response ended before it was finished."
"""The error for a stream without its end: several clients would take it for a complete answer."""


class Failure(TypedDict):
    """The arguments of :meth:`~proxy.wires.client_port.StreamWriter.fail`."""

    message: str
    type: str
    code: str | None


def failure_of(error: Mapping[str, Any]) -> Failure:
    """Read an upstream's error object that came inside a composed stream."""
    message, kind, code = error.get("message"), error.get("type"), error.get("code")
    return Failure(
        message=message if isinstance(message, str) and message else "The upstream reported an error.",
        type=kind if isinstance(kind, str) and kind else "upstream_error",
        code=str(code) if isinstance(code, str | int) else None,
    )
