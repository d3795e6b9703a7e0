"""The ports of the relay, and what an operator can set about a run."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from proxy.errors import UpstreamError
from proxy.http.headers import Headers
from proxy.http.secrets import Secrets

__all__ = ["ClientStream", "OnBroken", "RunEvents", "RunSettings", "ignore_broken", "no_events"]

RunEvents = Callable[[str, Mapping[str, Any]], None]
"""Told what happens in a run, for whoever watches: ``(kind, facts)``, everything redacted.

The kinds are ``run_started``, ``turn_finished``, ``tool_finished`` and ``run_finished``.
"""

OnBroken = Callable[[UpstreamError], None]
"""Told that an upstream's response broke after it had begun."""


def no_events(kind: str, facts: Mapping[str, Any]) -> None:
    """Nobody watches."""


def ignore_broken(error: UpstreamError) -> None:
    """Nobody counts."""


class ClientStream(Protocol):
    """The response to one client, whatever serves it."""

    @property
    def started(self) -> bool:
        """Whether status and headers have gone out, so that they can no longer change."""
        ...

    @property
    def cut_off(self) -> bool:
        """Whether a cancellation is the server's own end, so that the client is still there to be told."""
        ...

    @property
    def origin(self) -> str:
        """The address by which the client calls this server (``http://127.0.0.1:8080``), for errors to lead
        there; empty if unknown, and once the response has started."""
        ...

    def blank_out(self, secrets: Secrets | None) -> None:
        """From now on blank out what of these stands whole in a piece that is sent."""
        ...

    def set_header(self, name: str, value: str) -> None:
        """Send a header of ours with the response, in place of what was told by this name; none if empty.

        Comes too late once the response has started, and then does nothing.
        """
        ...

    def start(self, status: int, headers: Headers) -> None:
        """Begin the response; its head goes out with the first bytes, or with :meth:`flush`."""
        ...

    def flush(self) -> None:
        """Send now what waits to go out with what follows; does nothing where the client has gone."""
        ...

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        """Send bytes now.  What it returns is to be awaited before more is sent: the client does not
        read; ``None``: it does.  With ``last`` they wait for :meth:`finish` or :meth:`flush`, and go
        out in one write with what ends the response.  Raises ``ConnectionError``."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes now; waits while the client does not read.  Raises ``ConnectionError``."""
        ...

    def before_finish(self) -> Awaitable[None] | None:
        """What is to be awaited before :meth:`finish`: the record is to have something first that the
        client's next request is looked up in; ``None`` where there is nothing."""
        ...

    def finish(self) -> None:
        """End the response properly.  Raises ``ConnectionError``."""
        ...

    def abort(self) -> None:
        """Close the connection so that the client sees that the response is incomplete."""
        ...


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Budgets and habits of a run; 0 tokens or cost (in billionths) means no bound.  Times are seconds.

    ``budgets`` is the section that set the budgets, and ``calls_setting`` who set ``max_calls``.
    """

    max_turns: int = 8
    max_calls: int = 32
    max_tokens: int = 0
    max_cost: int = 0
    request_timeout_s: float = 300.0
    budgets: str = "tools"
    calls_setting: str = "tools.max_calls"
    keepalive_s: float = 10.0
    parallel: bool = True
    retries: int = 2
    max_reply_bytes: int = 64 * 1024 * 1024
    max_argument_bytes: int = 8192

    def within(self, max_calls: int | None) -> "RunSettings":
        """The same, within a client's own bound on calls."""
        if max_calls is None or max_calls >= self.max_calls:
            return self
        return replace(self, max_calls=max_calls, calls_setting="max_tool_calls of the request")
