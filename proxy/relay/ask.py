"""A request as the planner and the run see it: independent of HTTP and of who sent it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from proxy.hooks.placeholders import Placeholders
from proxy.http.headers import Headers
from proxy.records.rows import Meter
from proxy.relay.body import Body
from proxy.relay.memory.idempotency import NO_ATTEMPT, Attempt
from proxy.relay.memory.local import LocalResponses
from proxy.relay.nested import Nested
from proxy.relay.offering.wanted import Wanted
from proxy.relay.routing.router import Route, Router
from proxy.tools.access.catalog import Selection
from proxy.tools.access.policy import Policy
from proxy.tools.contract.provider import Person
from proxy.wires.client_port import Trace
from proxy.wires.wire import Wire


class UpstreamPermissions(Protocol):
    """A caller's rights at each upstream, by the upstream's name."""

    @property
    def router(self) -> Router:
        """The upstreams and models that the caller may use."""

    @property
    def policies(self) -> Mapping[str, Policy]:
        """The policy that holds for the caller at each upstream."""

    @property
    def selections(self) -> Mapping[str, Selection]:
        """The tools that the caller is offered at each upstream."""

    @property
    def acts(self) -> bool:
        """Whether any of these tools has effects."""


class Identity(Struct, frozen=True):
    """The caller, and the ids of the request and of its run.

    ``caller`` is the caller's name in the record, and ``key`` the client key of the request. ``is_person``
    says that the caller is one person, whatever the body says; ``shown`` is the name that people know.
    """

    run_id: str
    request_id: str
    caller: str
    key: str
    is_person: bool
    shown: str = ""

    @property
    def person(self) -> Person | None:
        """The caller, if it is one person."""
        return Person(self.caller, self.shown) if self.is_person else None


class RequestHead(Struct, frozen=True):
    """The part of a request beside its body that upstreams may see; the query has no question mark."""

    headers: Headers = ()
    query: str = ""


class Detached(Struct, frozen=True):
    """A run that continues without its client, for at most ``time_s`` seconds.

    ``response_id`` and ``asked_at``, in seconds since the epoch, are the id and the time of its response,
    in place of those that the upstream gives it.
    ``takes_over`` is the id of the run whose response this run finishes instead; empty for none.
    ``before_end`` is awaited before any part of the answer is stored. It raises
    :class:`~proxy.base.errors.NotOnRecord` if this run has no right to end the response.
    """

    response_id: str
    asked_at: float
    time_s: float
    before_end: Callable[[], Awaitable[None]]
    takes_over: str = ""


class RequestOptions(Struct, frozen=True):
    """The options of a request for the proxy itself, with their defaults.

    ``wanted`` are the chosen tools, ``None`` if it chose none. ``history`` says whether the proxy looks up
    and remembers answers. ``attempt`` says whether the request repeats another one. ``asks_by_call`` says
    that the client declared the function through which the proxy asks for approvals. ``detached`` is set if
    no client waits for the answer. ``originals`` are the placeholders that hooks have put into the request,
    and may add to it while it runs; ``None`` if no hook does.
    """

    wanted: Wanted | None = None
    trace: Trace = "silent"
    history: bool = True
    attempt: Attempt = NO_ATTEMPT
    detached: Detached | None = None
    asks_by_call: bool = False
    originals: Placeholders | None = None


class Access(Struct, frozen=True):
    """What the caller may use. ``routes`` are the upstreams that may answer, in order.

    ``meter`` counts what the request uses; ``None`` if nothing is limited.
    """

    permissions: UpstreamPermissions
    routes: Sequence[Route]
    meter: Meter | None = None


class Ask(Struct, frozen=True):
    """One request of a wire with server tools, independent of who sent it and which upstream answers it.

    ``local`` holds the responses that only the client's connection knows; ``None`` if it remembers none.
    ``nested`` links the run of an agent to the run that called it; ``None`` for any other run.
    """

    identity: Identity
    wire: Wire
    body: Body
    head: RequestHead
    options: RequestOptions
    access: Access
    local: LocalResponses | None = None
    nested: Nested | None = None
