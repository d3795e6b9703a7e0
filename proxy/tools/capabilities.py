"""What a tool may be handed: a clock, an HTTP client, the facts of the call (rule T6).

A tool asks for a capability by the type of a parameter.  The parameter is then no part of the
schema, and the model cannot set it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, Protocol

__all__ = ["Capabilities", "Clock", "HttpClient", "HttpSource", "QueryParams"]

QueryParams = Mapping[str, str | int | float]
"""Query parameters of a URL, not yet encoded."""


class Clock(Protocol):
    """The time, so that a tool never asks the machine for it."""

    def now(self, tz: tzinfo) -> datetime:
        """The current time as an aware ``datetime`` in ``tz``."""
        ...


class HttpClient(Protocol):
    """Outgoing HTTP for one tool, limited to that tool's hosts and bounded in size and time."""

    async def get_json(self, url: str, params: QueryParams | None = None) -> Any:
        """The decoded JSON body of a 2xx answer to GET.

        Raises :class:`~proxy.errors.ToolFailure`, with words that are safe for the model, for
        anything else: a host that is not allowed, no connection, another status, no JSON, a body
        or a wait past its bound.
        """
        ...


HttpSource = Callable[[Sequence[str]], HttpClient]
"""Gives an HTTP client that reaches the named hosts only."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can hand to its tools.

    ``http`` makes a client for a tool's own hosts.  ``extra`` maps further parameter types to the
    value that is handed over for them.
    """

    clock: Clock | None = None
    http: HttpSource | None = None
    extra: Mapping[type, Any] = field(default_factory=dict)
