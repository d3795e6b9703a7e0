"""Builds a stored request again for a background response whose process has ended, as its caller would send
it now."""

import orjson

from proxy.api.detached.stored_request import StoredRequest
from proxy.api.generate.request_reader import RequestReader
from proxy.api.routes import routes_for
from proxy.base.errors import RequestError
from proxy.records.ids import row_ids
from proxy.relay.ask import Access, Ask, Identity, RequestHead, RequestOptions
from proxy.relay.body import Body
from proxy.relay.starting.runs import Runs
from proxy.server.auth.permissions import TRACES, PermissionSets
from proxy.server.auth.tickets import Tickets
from proxy.server.limits.limiter import RateLimiter
from proxy.wires.wire import Wire


class StoredAskBuilder:
    """The builder of asks from stored requests, with the present rights and limits of their callers."""

    def __init__(
        self,
        wire: Wire,
        others: tuple[str, ...],
        *,
        runs: Runs,
        request_reader: RequestReader,
        tickets: Tickets,
        permissions: PermissionSets,
        limiter: RateLimiter,
    ) -> None:
        """``wire`` is the wire of all stored requests; ``others`` are further wires in which upstreams may be
        asked."""
        self._wire = wire
        self._others = others
        self._runs = runs
        self._request_reader = request_reader
        self._tickets = tickets
        self._permissions = permissions
        self._limiter = limiter
        self._run_ids = row_ids("run_")

    async def __call__(self, request: StoredRequest) -> Ask:
        """Build an ask for a new run; a :data:`~proxy.api.detached.take_over.AskAgain`."""
        caller = None if request.ticket is None else await self._tickets.caller(request.ticket)
        if caller is None:
            raise RequestError(
                401, "The credential that it came with is no longer valid.", code="invalid_api_key"
            )
        permissions = self._permissions.of(caller.rights)
        body = Body(request.body, orjson.loads(request.body))
        await self._request_reader.check_rights_of(
            caller.rights, permissions.router.permits, body, request.caller, refers=True
        )
        # It counts as a request but holds no place: it continues without a client, as before.
        admission = await self._limiter.admit(caller)
        admission.release()
        routes = routes_for(
            permissions.router,
            self._wire.dialect,
            self._runs.prices,
            body.payload,
            self._others,
            counts_cost=admission.counts_cost,
        )
        if len(routes) > 1:
            asked = self._wire.parse(body.payload)
            routes = self._runs.planner.routes_that_offer(
                self._wire, routes, asked, permissions, request.wanted
            )
        most = TRACES.index(permissions.trace_max)
        return Ask(
            Identity(
                next(self._run_ids),
                request.request_id,
                request.caller,
                request.key,
                request.is_person,
            ),
            self._wire,
            body,
            RequestHead(request.headers, request.query),
            RequestOptions(
                request.wanted,
                TRACES[min(most, TRACES.index(request.trace))],
                request.history,
                request.attempt,
                asks_by_call=request.asks_by_call,
            ),
            Access(permissions, routes, admission),
        )
