"""Admission: the proxy counts open requests and refuses one too many."""

from typing import Any

import pytest

from proxy.base.errors import RequestError
from proxy.rights.limit_rules import ConcurrentStreams
from proxy.server.connections.draining import Draining
from proxy.server.middleware.admission import AdmissionControl


class Open:
    """A request as draining knows it: an object with a task."""

    def __init__(self) -> None:
        self.task = object()


async def test_open_requests_are_counted_and_leave_their_places() -> None:
    """A place that a request leaves is free again; one request too many gets a 429 and takes no place."""
    told: list[str] = []
    streams, draining = ConcurrentStreams(2), Draining()
    limiter: Any = None
    admission = AdmissionControl(limiter, streams, draining, told.append)
    requests: list[Any] = [Open(), Open(), Open()]
    first, second, third = requests
    admission.enter(first)
    admission.enter(second)
    with pytest.raises(RequestError) as caught:
        admission.enter(third)
    assert (caught.value.status, told) == (429, ["streams"])
    assert (streams.open, draining.open) == (2, 2)
    admission.leave(first)
    admission.enter(third)
    admission.leave(second)
    admission.leave(third)
    assert (streams.open, draining.open) == (0, 0)
