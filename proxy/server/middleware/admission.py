"""Admission: admits requests within the limits, and none while the server drains."""

from collections.abc import Callable

from proxy.rights.limit_rules import ConcurrentStreams
from proxy.server.connections.draining import Draining
from proxy.server.limits.limiter import RateLimiter
from proxy.server.messages.request import EdgeRequest


class AdmissionControl:
    """The counter of the open API requests, with the limits of their callers.

    Each :meth:`enter` needs a :meth:`leave`, however the request ends.
    """

    def __init__(
        self,
        limiter: RateLimiter,
        streams: ConcurrentStreams,
        draining: Draining,
        limited: Callable[[str], None] = lambda limit: None,
    ) -> None:
        """``limited`` is called with ``"streams"`` if all places are taken."""
        self.limiter = limiter
        self.draining = draining
        self._streams = streams
        self._limited = limited

    def enter(self, request: EdgeRequest) -> None:
        """Count a request as open; raise :class:`RequestError` (429) if too many are open."""
        streams = self._streams
        if streams.open >= streams.limit:
            self._limited("streams")
            raise streams.refusal()
        streams.open += 1
        self.draining.begin(request)

    def leave(self, request: EdgeRequest) -> None:
        """Count the request as ended."""
        self.draining.end(request)
        self._streams.open -= 1
