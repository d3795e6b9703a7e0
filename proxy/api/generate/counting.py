"""Counts the tokens of a request that contains items or choices of the proxy.

The upstream gets the chosen server tools themselves, functions in place of types of tools that it does not
know, the proxy's search in place of one that the client declares, the server tools that run its provider's,
and no encrypted turns, which it could not read.
"""

from collections.abc import Mapping
from typing import Final

import orjson

from proxy.api.context import Context
from proxy.api.generate.forwarder import Forwarder, Passthrough
from proxy.api.generate.request_reader import RequestReader
from proxy.relay.body import Body, without_carried
from proxy.relay.routing.router import Route
from proxy.relay.starting.runs import Runs
from proxy.relay.typed_tools import as_functions
from proxy.wires.wire import Wire

_NAMED: Final = b'"toolrelay'


class Counting(Passthrough):
    """The handler of the endpoints that count tokens; the keys of ``wires`` are the names of their
    dialects."""

    def __init__(
        self,
        request_reader: RequestReader,
        forwarder: Forwarder,
        runs: Runs,
        *,
        wires: Mapping[str, Wire],
    ) -> None:
        super().__init__(request_reader, forwarder, runs.prices, hooks=runs.hooks)
        self._wires = wires
        self._planner = runs.planner

    def _prepared(self, context: Context, body: Body, route: Route) -> Body:
        """Return the body with the chosen tools in place of what chose them.

        Raises :class:`~proxy.base.errors.RequestError` as a request for an answer would.
        """
        wire = self._wires.get(context.target.endpoint.dialect.name)
        if wire is None:
            return body
        selection = context.permissions.selections[route.served.upstream.name]
        search = None
        if (typed := as_functions(wire, body.payload, route, selection)) is not None:
            body, search = Body(orjson.dumps(typed.payload), typed.payload), typed.search
        if _NAMED not in body.raw and search is None and not wire.hosted_tools(body.payload):
            return body
        body = without_carried(wire, body)
        request = wire.parse(body.payload)
        raw = self._planner.with_tools(wire, body, request, context.permissions, route, search)
        return body if raw is body.raw else Body(raw, orjson.loads(raw))
