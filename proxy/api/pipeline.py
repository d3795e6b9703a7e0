"""The stages of every API request: route, authenticate, admit; then its handler answers it."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Protocol

from aiohttp import hdrs, web
from msgspec.structs import replace

from proxy.api.context import Context
from proxy.api.own_paths import OwnPaths
from proxy.rights.callers import Caller
from proxy.server.auth.authenticate import Authenticator
from proxy.server.auth.permissions import TRACES, PermissionSets
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target, Targets
from proxy.server.middleware.admission import AdmissionControl
from proxy.server.websockets.session import WebSockets, no_websocket_here
from proxy.telemetry.hooks import RequestFacts
from proxy.wires.client_port import Trace
from proxy.wires.dialect import Kind


class EndpointHandler(Protocol):
    """The handler of one kind of requests."""

    def answer(self, context: Context) -> Awaitable[web.StreamResponse]:
        """Return the response, sent or still to be sent; raise the errors that clients are told."""


class Pipeline:
    """The pipeline of every request that passed the outer layers; the target alone selects the handler."""

    def __init__(
        self,
        *,
        targets: Targets,
        authenticator: Authenticator,
        admission: AdmissionControl,
        permissions: PermissionSets,
        own: OwnPaths,
        tokens: EndpointHandler,
        stages: Mapping[Kind, EndpointHandler],
        sockets: WebSockets,
    ) -> None:
        """``stages`` has the handlers by the kinds of their endpoints; ``other`` handles the kinds that have
        none."""
        self._target_of = targets
        self._authenticator = authenticator
        self._admission = admission
        self._permissions = permissions
        self._own = own
        self._tokens = tokens
        self._stages = stages
        self._passthrough = stages["other"]
        self._sockets = sockets

    async def serve(self, request: EdgeRequest, facts: RequestFacts) -> web.StreamResponse:
        """Return the response to a request; raise :class:`RequestError` and what the stages
        raise."""
        target = request.head[self._target_of]
        facts.endpoint, facts.operation_asked = target.label, target.endpoint.operation
        if target.below is None:
            return await self._own.answer(request, facts, target)
        facts.dialect = target.endpoint.dialect.name
        upgrades = hdrs.UPGRADE in request.headers and "websocket" in request.head.listed(hdrs.UPGRADE)
        if upgrades and target.endpoint.kind != "socket":
            # The bytes that follow may belong to another protocol, so they are not read as a request.
            raise no_websocket_here()
        control = self._admission
        control.draining.check()
        caller = self._authenticator.admit(request, target)
        if not isinstance(caller, Caller):
            caller = await caller
        facts.caller = caller.name
        if upgrades:
            # Its messages are admitted one by one.
            return await self._sockets.serve(request, facts, caller)
        return await self._admitted(request, facts, target, caller)

    async def serve_as(
        self, request: EdgeRequest, facts: RequestFacts, target: Target, caller: Caller
    ) -> web.StreamResponse:
        """Serve a request for a target as ``caller``, regardless of its sender; ``caller`` may see everything
        of server tools.

        Raises as :meth:`serve` does.
        """
        self._admission.draining.check()
        facts.operation_asked = target.endpoint.operation
        return await self._admitted(request, facts, target, caller, TRACES[-1])

    async def _admitted(
        self,
        request: EdgeRequest,
        facts: RequestFacts,
        target: Target,
        caller: Caller,
        trace_max: Trace | None = None,
    ) -> web.StreamResponse:
        """Admit a request within its caller's limits, and answer it."""
        control = self._admission
        control.enter(request)
        try:
            admission = await control.limiter.admit(caller)
            request.limit_headers = admission.headers
            try:
                permissions = self._permissions.of(caller.rights)
                if trace_max is not None:
                    permissions = replace(permissions, trace_max=trace_max)
                context = Context(request, facts, target, caller, permissions, admission)
                return await self._stage(context).answer(context)
            finally:
                admission.release()
        except asyncio.CancelledError:
            error = control.draining.cut_error(request)
            if error is None:
                raise
            raise error from None
        finally:
            control.leave(request)

    def _stage(self, context: Context) -> EndpointHandler:
        """Return the handler of an admitted request. Nothing below the proxy's own path goes to an
        upstream."""
        if (context.target.below or "").startswith("/toolrelay/"):
            return self._tokens
        return self._stages.get(context.target.endpoint.kind, self._passthrough)
