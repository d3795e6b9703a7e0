"""A request as those who plan and run it know it: without its HTTP, whoever sent it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from proxy.http.headers import Headers
from proxy.records import Meter
from proxy.relay.body import Body
from proxy.relay.memory.idempotency import NO_ATTEMPT, Attempt
from proxy.relay.memory.local import LocalResponses
from proxy.relay.nested import Nested
from proxy.relay.offer import Wanted
from proxy.relay.routing.router import Route, Router
from proxy.tools.access.catalog import Selection
from proxy.tools.access.policy import Policy
from proxy.values import value_class
from proxy.wires.client_port import Trace
from proxy.wires.wire import Wire

__all__ = ["Access", "Ask", "Detached", "Identity", "RequestHead", "RequestOptions", "UpstreamPermissions"]


class UpstreamPermissions(Protocol):
    """A caller's rights at each upstream, by the upstream's name."""

    @property
    def router(self) -> Router:
        """The upstreams and models that they may use."""
        ...

    @property
    def policies(self) -> Mapping[str, Policy]:
        """What of their policy holds there."""
        ...

    @property
    def selections(self) -> Mapping[str, Selection]:
        """The tools that they are offered there."""
        ...

    @property
    def acts(self) -> bool:
        """Whether any of these tools has effects."""
        ...


@value_class
class Identity:
    """Who asks, and the ids of the request and of its run.

    ``caller`` is who asks, as the record calls them, and ``key`` the client key that they came with.
    ``is_person`` says that the caller is one person, whatever the body says.
    """

    run_id: str
    request_id: str
    caller: str
    key: str
    is_person: bool


@value_class
class RequestHead:
    """What upstreams may see of a request beside its body; the query has no question mark."""

    headers: Headers = ()
    query: str = ""


@value_class
class Detached:
    """A run that goes on without its client, for ``time_s`` seconds at most.

    ``response_id`` is the id under which its response is kept, in place of the one that it gets.
    ``takes_over`` is the id of the run whose response it is to finish in place of that, empty for none.
    ``before_end`` is awaited before anything of its answer is kept: it raises
    :class:`~proxy.errors.NotOnRecord` if the response is not this run's to end.
    """

    response_id: str
    time_s: float
    before_end: Callable[[], Awaitable[None]]
    takes_over: str = ""


@value_class
class RequestOptions:
    """The options of a request for the proxy itself, with their defaults.

    ``wanted`` are the chosen tools, ``None`` if it chose none.  ``history`` says whether the proxy looks up
    and remembers answers.  ``attempt`` says whether it repeats another request.  ``asks_by_call`` says that
    the client declared the function by which it can be asked for approvals.  ``detached`` is set if no client
    waits for the answer.
    """

    wanted: Wanted | None = None
    trace: Trace = "silent"
    history: bool = True
    attempt: Attempt = NO_ATTEMPT
    detached: Detached | None = None
    asks_by_call: bool = False


@value_class
class Access:
    """What the one who asks may use: ``routes`` are the upstreams that may answer, in order.

    ``meter`` counts what the request uses; ``None`` where nothing is limited.
    """

    permissions: UpstreamPermissions
    routes: Sequence[Route]
    meter: Meter | None = None


@value_class
class Ask:
    """One request of a wire with server tools, whoever sent it and whoever answers it.

    ``local`` are responses that only the client's connection knows; ``None`` where it remembers none.
    ``nested`` says inside of which run an agent's run is; ``None`` for a run of its own.
    """

    identity: Identity
    wire: Wire
    body: Body
    head: RequestHead
    options: RequestOptions
    access: Access
    local: LocalResponses | None = None
    nested: Nested | None = None
