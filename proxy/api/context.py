"""One request of the API, with everything that is settled about it before its body is read."""

from typing import NamedTuple

from proxy.rights.callers import Caller
from proxy.server.auth.permissions import Permissions
from proxy.server.limits.limiter import Admission
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target
from proxy.telemetry.hooks import RequestFacts


class Context(NamedTuple):
    """An admitted request; it is complete when it is made, and nothing in it changes.

    ``request`` is its HTTP, and ``facts`` are what metrics and logs say about it. ``target`` has its
    endpoint. ``permissions`` are the models, upstreams and tools that its caller may use. ``admission``
    counts its use.
    """

    request: EdgeRequest
    facts: RequestFacts
    target: Target
    caller: Caller
    permissions: Permissions
    admission: Admission
