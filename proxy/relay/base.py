"""The ports of the relay, and what an operator can set about a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from proxy.upstreams.base import Headers

__all__ = ["ClientStream", "RunEvents", "RunSettings", "no_events"]

RunEvents = Callable[[str, Mapping[str, Any]], None]
"""Told what happens in a run, for a person who watches: ``(kind, facts)``, everything redacted."""


def no_events(kind: str, facts: Mapping[str, Any]) -> None:
    """Nobody watches."""


class ClientStream(Protocol):
    """The response to one client, whatever serves it."""

    @property
    def started(self) -> bool:
        """Whether status and headers have gone out, so that they can no longer change."""
        ...

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of the response."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes now; waits while the client does not read.  Raises ``ConnectionError``."""
        ...

    async def finish(self) -> None:
        """End the response properly."""
        ...

    def abort(self) -> None:
        """Close the connection so that the client sees that the response is incomplete."""
        ...


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Budgets and habits of a run; 0 tokens means no bound.  Times are seconds."""

    max_turns: int = 8
    max_calls: int = 32
    max_tokens: int = 0
    request_timeout_s: float = 300.0
    keepalive_s: float = 10.0
    parallel: bool = True
    retries: int = 2
    max_reply_bytes: int = 64 * 1024 * 1024
    max_argument_bytes: int = 8192

    def within(self, max_calls: int | None) -> "RunSettings":
        """The same, within a client's own bound on calls."""
        return self if max_calls is None else replace(self, max_calls=min(self.max_calls, max_calls))
