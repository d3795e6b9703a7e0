"""What every request passes before a handler sees it."""

import ipaddress
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from proxy.errors import RequestError, UpstreamError
from proxy.records import Limiter
from proxy.server.client_stream import STARTED
from proxy.server.http_errors import error_response, of_http_exception, of_request_error, of_upstream_error
from proxy.server.limits import ConcurrentStreams

__all__ = ["REQUEST_ID", "Gate", "make_identify", "make_refuse_pages"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID = web.RequestKey("request_id", str)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def make_identify() -> Middleware:
    """Give every request an id and every failure OpenAI's shape; write one access line."""
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.access")

    @web.middleware
    async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else f"req_{uuid.uuid4().hex}"
        request[REQUEST_ID] = request_id
        started = time.monotonic()
        status = 499
        try:
            response = await _answer(request, handler, log, request_id)
            status = response.status
        finally:
            log.info(
                "request",
                request_id=request_id,
                method=request.method,
                path=request.path[:200],
                status=status,
                ms=round((time.monotonic() - started) * 1000, 1),
            )
        if not response.prepared:
            response.headers["x-request-id"] = request_id
            response.headers["Server"] = "toolrelay"
        return response

    return identify


async def _answer(
    request: web.Request,
    handler: Handler,
    log: structlog.typing.FilteringBoundLogger,
    request_id: str,
) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return of_request_error(error)
    except UpstreamError as error:
        log.warning("upstream_failed", request_id=request_id, error_code=error.code)
        return of_upstream_error(error)
    except web.HTTPException as error:
        return of_http_exception(error)
    except ConnectionError:
        # The client has gone; aiohttp drops what is returned.
        return error_response(499, "The client closed the connection.", code="client_gone")
    except Exception:
        # The last boundary: whatever it is, the client gets an answer and the log the cause.
        log.exception("internal_error", request_id=request_id)
        if request.get(STARTED) and (transport := request.transport) is not None:
            transport.close()
        return error_response(
            500, "The proxy failed to serve this request.", type="server_error", code="internal_error"
        )


def make_refuse_pages(*, loopback_only: bool) -> Middleware:
    """Refuse what a web page could make a browser send: it must not reach tools on loopback.

    With ``loopback_only`` the ``Host`` must be this machine's own name, which a page that rebinds
    its name in DNS cannot fake.
    """

    @web.middleware
    async def refuse_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in _METHODS:
            raise RequestError(405, f"The method {request.method[:20]} is not served.")
        headers = request.headers
        if loopback_only and not _is_own_name(headers.get("Host", "")):
            raise RequestError(
                403, "The Host header must name this machine (localhost).", code="host_not_allowed"
            )
        if "Origin" in headers or headers.get("Sec-Fetch-Site") == "cross-site":
            origin = headers.get("Origin", "")
            if urlsplit(origin).netloc != headers.get("Host", "") or not origin:
                raise RequestError(
                    403, "Requests from web pages of this origin are not allowed.", code="origin_not_allowed"
                )
        return await handler(request)

    return refuse_pages


def _is_own_name(host: str) -> bool:
    """Whether a Host header names this machine's loopback: nothing in DNS can fake such a name."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Gate:
    """Lets in as many requests as the limits allow, and none once the server is draining."""

    def __init__(self, limiter: Limiter, streams: ConcurrentStreams) -> None:
        self._limiter = limiter
        self._streams = streams
        self.draining = False

    async def enter(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request of the API within the limits."""
        if self.draining:
            raise RequestError(
                503,
                "The server is shutting down.",
                type="server_error",
                code="draining",
                headers={"Retry-After": "1", "Connection": "close"},
            )
        wait = await self._limiter.hit("requests", request.remote or "unknown")
        if wait is not None:
            seconds = max(1, round(wait + 0.5))
            raise RequestError(
                429,
                f"Rate limit reached. Try again in {seconds} s.",
                type="rate_limit_error",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(seconds)},
            )
        async with self._streams.lease():
            return await handler(request)
