"""Admission: as many requests as the limits allow, and none once the server is draining."""

from collections.abc import Callable

from proxy.server.limits.limiter import RateLimiter
from proxy.server.limits.rules import ConcurrentStreams
from proxy.server.serving.draining import Draining
from proxy.server.serving.request import EdgeRequest

__all__ = ["AdmissionControl"]


class AdmissionControl:
    """Counts the requests of the API that are open, and knows the limits of those who send them.

    Whoever has entered leaves again, however the request ends.
    """

    def __init__(
        self,
        limiter: RateLimiter,
        streams: ConcurrentStreams,
        draining: Draining,
        limited: Callable[[str], None] = lambda limit: None,
    ) -> None:
        """``limited`` is told where all places are taken."""
        self.limiter = limiter
        self.draining = draining
        self._streams = streams
        self._limited = limited

    def enter(self, request: EdgeRequest) -> None:
        """Count a request as open; raises :class:`~proxy.errors.RequestError` (429) where too many are."""
        streams = self._streams
        if streams.open >= streams.limit:
            self._limited("streams")
            raise streams.refusal()
        streams.open += 1
        self.draining.begin(request)

    def leave(self, request: EdgeRequest) -> None:
        """The request is over."""
        self.draining.end(request)
        self._streams.open -= 1
