"""Several upstreams for one model: in which order they are asked, and when the next one is asked.

Once an upstream has answered with a response head, the request belongs to it. Later turns go to it, and
nothing is asked twice after the first byte of an answer. Before that, another upstream takes its place if
the failure permits it: no connection, no answer in time, an answer that breaks off in its head, 408, 429 and
5xx. Any other 4xx is about the request, so the client gets it (rule E2).
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import structlog
from msgspec import Struct

from proxy.base.errors import ToolRelayError, UpstreamError
from proxy.relay.routing.router import Route, ServedUpstream
from proxy.upstreams.base import PulledResponse, UpstreamRequest, UpstreamResponse
from proxy.wires.registry.hosted_tools import acting_tool
from proxy.wires.registry.requests import background_of, continued_by, conversation_of, prompt_of
from proxy.wires.responses.dialect import RESPONSES

_TOO_MANY = 429
_TRY_LATER = frozenset({408, _TOO_MANY})
_NOT_FOUND = frozenset({400, 404})
_MAX_ERROR_BYTES = 1024 * 1024


class NextUpstream(ToolRelayError):
    """This upstream gave no answer for the client, and another upstream can be asked."""


class FallbackRules(Struct, frozen=True):
    """The failures after which a request may go to another upstream.

    ``unsent``: the upstream certainly did not work on it. ``failed``: the upstream may have worked on it.
    ``unknown``: the upstream does not know the response that the body continues. ``absent``: it does not
    know the response that the path names.
    """

    unsent: bool = False
    failed: bool = False
    unknown: bool = False
    absent: bool = False


NO_FALLBACK = FallbackRules()
"""For a request that belongs to one upstream."""

FALLBACK_IF_ABSENT = FallbackRules(absent=True)
"""For a request about one stored response."""


def fallback_rules_of(payload: Mapping[str, Any]) -> FallbackRules:
    """Return how freely a request may move to another upstream, judged by its body.

    What one provider stores (a conversation, a stored prompt, a background job) is unknown to another. A
    tool that the provider runs, and that may change something, must not run twice.
    """
    prompt = prompt_of(payload)
    if prompt is not None and isinstance(prompt.value, dict):
        return NO_FALLBACK
    if any(member and member.value for member in (background_of(payload), conversation_of(payload))):
        return NO_FALLBACK
    previous = continued_by(payload)
    acts = acting_tool(payload) is not None
    return FallbackRules(unsent=True, failed=not acts, unknown=bool(previous and previous.value))


class Candidates:
    """The upstreams that may answer one request, in the order in which they are asked.

    An upstream whose breaker is open is skipped. If the breakers of all are open, this says nothing about
    any of them, and all are asked as if there were no breakers. The same holds for a request about
    something that only one of them has.
    """

    def __init__(self, routes: Sequence[Route], rules: FallbackRules) -> None:
        self._left = list(routes)
        self._rules = rules
        self._failure: UpstreamError | None = None
        particular = not rules.unsent or rules.unknown
        self._forced = particular or not any(route.served.breaker.ready for route in routes)

    @classmethod
    def of(cls, routes: Sequence[Route], payload: Mapping[str, Any]) -> "Candidates":
        """Return the candidates for a request with this body. The body is read only if there are
        several."""
        return cls(routes, fallback_rules_of(payload) if len(routes) > 1 else NO_FALLBACK)

    def any(self, wanted: Callable[[Route], bool]) -> bool:
        """Return whether one of those that have not been asked satisfies ``wanted``."""
        return any(map(wanted, self._left))

    @property
    def last(self) -> bool:
        """Whether no upstream is left to be asked."""
        return not self._left

    @property
    def failure(self) -> UpstreamError | None:
        """The failure of the first upstream that gave no answer, if any."""
        return self._failure

    def next(self) -> Route:
        """Return the next upstream to ask: the first, or another one after :class:`NextUpstream`."""
        while True:
            route = self._left.pop(0)
            if self._forced or route.served.breaker.admit() or not self._left:
                return route

    def pin(self, asked: Route, upstream: str, *, bound: bool) -> Route:
        """Return the upstream that a conversation belongs to, if it has not been asked yet, else ``asked``.

        If the conversation is ``bound`` to it, no other upstream is asked. Otherwise the others are asked
        after it, or before it if it keeps failing.
        """
        home = next((route for route in self._left if route.served.upstream.name == upstream), asked)
        if bound:
            self._left.clear()
        elif home is not asked:
            if not home.served.breaker.admit():
                return asked
            self._left.remove(home)
            self._left.insert(0, asked)
        return home

    async def ask(self, route: Route, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request to one of them and return its response's head.

        Raise :class:`NextUpstream` if the next upstream may be asked. Otherwise raise what
        :meth:`~proxy.upstreams.base.Upstream.open` raises.
        """
        served = route.served
        try:
            response = await served.upstream.open(request)
        except UpstreamError as error:
            _failed(served)
            if not self._has_more() or not (self._rules.failed or (self._rules.unsent and error.unsent)):
                raise
            raise self._passed_over(route, error) from error
        status = response.status
        _answered(served, status)
        if status < 400:
            return response
        if status in _NOT_FOUND and (self._rules.absent or self._rules.unknown):
            body = await response.read(_MAX_ERROR_BYTES)
            unknown = RESPONSES.quirks.unknown_response
            if not (unknown.search(body) if self._rules.unknown else status == 404):
                return BufferedResponse(response, body)
            if self._has_more():
                await response.aclose()
                raise NextUpstream
            if self._failure is not None:
                # The upstream that failed may have the response, so a 404 would be wrong.
                await response.aclose()
                raise self._failure
            return BufferedResponse(response, body)
        failed = self._rules.failed and (status in _TRY_LATER or status >= 500)
        if not self._has_more() or not (failed or (self._rules.unsent and status == _TOO_MANY)):
            return response
        await response.aclose()
        failure = UpstreamError(f"upstream {route.served.upstream.name!r} answered {status}", status=status)
        raise self._passed_over(route, failure)

    def _has_more(self) -> bool:
        """Return whether one of those that have not been asked may be asked."""
        return any(self._forced or other.served.breaker.ready for other in self._left)

    def _passed_over(self, route: Route, failure: UpstreamError) -> NextUpstream:
        self._failure = self._failure or failure
        structlog.get_logger("proxy.relay").warning(
            "upstream_passed_over",
            upstream=route.served.upstream.name,
            error_code=failure.code,
            status=failure.status,
        )
        return NextUpstream()


async def ask(served: ServedUpstream, request: UpstreamRequest) -> UpstreamResponse:
    """Send a request to an upstream without a fallback, and report the outcome to its breaker.

    Raise what :meth:`~proxy.upstreams.base.Upstream.open` raises.
    """
    try:
        response = await served.upstream.open(request)
    except UpstreamError:
        _failed(served)
        raise
    _answered(served, response.status)
    return response


def _answered(served: ServedUpstream, status: int) -> None:
    if status >= 500:
        _failed(served)
    elif served.breaker.in_a_row:
        served.breaker.succeeded()


def _failed(served: ServedUpstream) -> None:
    if served.breaker.failed():
        structlog.get_logger("proxy.relay").warning("breaker_opened", upstream=served.upstream.name)


class BufferedResponse(PulledResponse):
    """A response whose body was already read."""

    def __init__(self, response: UpstreamResponse, body: bytes) -> None:
        self._response = response
        self._body = body
        self.status = response.status
        self.headers = response.headers
        self.content_type = response.content_type

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body in one piece."""
        if self._body:
            yield self._body

    async def read(self, limit: int) -> bytes:
        """Return the first ``limit`` bytes of the body."""
        return self._body[:limit]

    async def aclose(self) -> None:
        """Close the response."""
        await self._response.aclose()
