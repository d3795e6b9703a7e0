"""The outermost layer around each request: its id, its access line, and an answer for each failure."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Container
from contextvars import ContextVar

import structlog
from aiohttp import hdrs, web
from multidict import istr

from proxy.base.errors import RequestError, StoreError, UpstreamError
from proxy.http.own_headers import RUN
from proxy.server.auth.key_spellings import SHORTEST_KEY
from proxy.server.connections.draining import Draining
from proxy.server.connections.fairness import FairScheduler
from proxy.server.messages.errors import (
    ERROR_CODE,
    complete_error,
    error_response,
    of_http_exception,
    of_request_error,
    of_upstream_error,
    store_unavailable,
)
from proxy.server.messages.heads.head import Head
from proxy.server.messages.own_address import own_origin
from proxy.server.messages.request import EdgeRequest, new_ids
from proxy.server.messages.target import MAX_TARGET, Targets
from proxy.server.middleware.cors import Cors
from proxy.server.middleware.page_guard import PageGuard
from proxy.telemetry.hooks import Hooks, RequestFacts
from proxy.telemetry.log.access_log import AccessLog

_X_REQUEST_ID = istr("x-request-id")
_REQUEST_ID = re.compile(r"(?!(?:.*[._-])?trt?_[A-Za-z0-9_-]{20})[A-Za-z0-9._-]{1,128}\Z")
"""A client's own request id; one that contains a key or token is ignored, so that neither is logged or
recorded."""
_WITHHELD = "(withheld)"
"""Replaces a path that contains a key, or that is too long to be searched for one."""
_KEY_IN_ADDRESS = (
    "An API key must not be part of a URL, because logs keep URLs. Send it as 'Authorization: "
    "Bearer', and revoke this one."
)


def _own_id_and_path(head: Head) -> tuple[str, str]:
    """Return the client's own id for a request, empty if it is missing or unfit for a log, and the path for
    people."""
    given = head.headers.get(_X_REQUEST_ID)
    path = head.message.url.path[:200] if len(head.message.path) <= MAX_TARGET else _WITHHELD
    return given if given and _REQUEST_ID.match(given) else "", path


class AccessMiddleware:
    """The outermost layer: gives every request an id and each failure the form of its dialect; writes one
    access line per request."""

    def __init__(
        self,
        serve: Callable[[EdgeRequest, RequestFacts], Awaitable[web.StreamResponse]],
        targets: Targets,
        *,
        guard: PageGuard,
        cors: Cors,
        draining: Draining,
        hooks: Hooks,
        models: Container[str],
        holds_key: Callable[[Head], Awaitable[bool]],
    ) -> None:
        """The access line names a model only if it is one of ``models``.

        ``holds_key`` returns whether a request's target contains a key of the proxy.
        """
        self._holds_key = holds_key
        self._serve = serve
        self._targets = targets
        self._guard = guard
        self._cors = cors
        self._draining = draining
        self._hooks = hooks
        self._turns = FairScheduler(asyncio.get_running_loop())
        self._access = AccessLog(models)
        self._ids = new_ids("req_")
        # The name that structlog's ``bind_contextvars`` uses; that function takes ten times as long.
        self._logged_id = ContextVar[str](f"{structlog.contextvars.STRUCTLOG_KEY_PREFIX}request_id")
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.access")

    async def handle(self, request: EdgeRequest) -> web.StreamResponse:
        """Answer a request; only its cancellation is raised."""
        given, path = request.head[_own_id_and_path]
        # A short target has no room for a key, and an overlong one is refused unread.
        misplaced = len(request.raw_path) > SHORTEST_KEY and await self._holds_key(request.head)
        if misplaced:
            path = _WITHHELD
        request_id = given or next(self._ids)
        facts = RequestFacts(request_id, request.method, path, time.monotonic(), given != "")
        token = self._hooks.begin(facts, request.headers)
        # All lines that are logged while this request is served have its id.
        bound = self._logged_id.set(request_id)
        response: web.StreamResponse | None
        try:
            if (turn := self._turns.take()) is not None:
                await turn
            try:
                if misplaced:
                    raise RequestError(400, _KEY_IN_ADDRESS, code="key_in_address")
                response = self._guard.check(request)
                if response is None:
                    response = await self._serve(request, facts)
            except (RequestError, UpstreamError, StoreError, web.HTTPException, ConnectionError) as error:
                response = self._refusal(request, facts, error)
            except Exception:  # noqa: BLE001
                # The last boundary: whatever fails, the client gets an answer and the log the cause.
                response = self._failure(request, facts)
            facts.status = response.status
            if response.status >= 400 and isinstance(response, web.Response):
                facts.error_code = facts.error_code or response.get(ERROR_CODE, "")
                origin = request.head[own_origin]
                complete_error(self._targets.dialect(request.head), response, request_id, origin)
            facts.sent = facts.client.sent if facts.client is not None else response.body_length
        finally:
            if facts.status == 499 and facts.client is not None and (whole := facts.client.completed):
                # The client left after it got the whole response.
                facts.status, facts.sent = whole, facts.client.sent
            self._hooks.end(facts, token)
            self._logged_id.reset(bound)
            self._access.write(facts)
        if not response.prepared:
            self._complete(request, facts, response)
        return response

    def _refusal(
        self,
        request: EdgeRequest,
        facts: RequestFacts,
        error: RequestError | UpstreamError | StoreError | web.HTTPException | ConnectionError,
    ) -> web.StreamResponse:
        """Return the response for an expected error."""
        dialect = self._targets.dialect(request.head)
        if isinstance(error, RequestError):
            return of_request_error(error, dialect)
        if isinstance(error, UpstreamError):
            self._log.warning("upstream_failed", request_id=facts.request_id, error_code=error.code)
            return of_upstream_error(error, dialect)
        if isinstance(error, StoreError) and not request.started:
            # Only the record has what the request needs; requests that can do without it do not get here.
            self._log.error("record_unavailable", request_id=facts.request_id, reason=str(error))
            return store_unavailable(dialect)
        if isinstance(error, web.HTTPException):
            return of_http_exception(error, dialect)
        if isinstance(error, StoreError) or (
            (transport := request.transport) is not None and not transport.is_closing()
        ):
            # The error is about another connection than the client's.
            return self._failure(request, facts)
        # The client has gone; aiohttp drops what is returned.
        return error_response(499, "The client closed the connection.", code="client_gone", dialect=dialect)

    def _failure(self, request: EdgeRequest, facts: RequestFacts) -> web.StreamResponse:
        """Return the response for an internal fault; close the connection if a response has begun."""
        self._log.exception("internal_error", request_id=facts.request_id)
        if request.started and (transport := request.transport) is not None:
            transport.close()
        return error_response(
            500,
            "The proxy failed to handle this request.",
            type="server_error",
            code="internal_error",
            dialect=self._targets.dialect(request.head),
        )

    def _complete(self, request: EdgeRequest, facts: RequestFacts, response: web.StreamResponse) -> None:
        """Add the headers that every response has."""
        headers = response.headers
        headers.update(request.limit_headers)
        for name, value in self._cors.headers(request).items() if self._cors else ():
            headers.add(name, value)
        headers[_X_REQUEST_ID] = facts.request_id
        if facts.run_id:
            headers[RUN] = facts.run_id
        headers[hdrs.SERVER] = "toolrelay"
        if self._draining.closing or (hdrs.EXPECT in request.headers and not request.content.is_eof()):
            # A client that got no "100 Continue" may send its body or leave it out, so the next bytes are
            # ambiguous.
            response.force_close()
