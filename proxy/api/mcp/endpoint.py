"""``/mcp``: the server tools for clients that run a model themselves, over streamable HTTP.

A client of the Model Context Protocol lists the tools that its key may use, and calls them. Each call takes
the same path as a model's calls. Every request is answered alone: in one piece, or, if it takes long or
reports progress, as a stream that ends with the answer.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

import orjson
import structlog
from aiohttp import hdrs, web
from msgspec import Struct
from msgspec.structs import replace
from multidict import istr

from proxy import __version__
from proxy.api.context import Context
from proxy.api.generate.owned_stream import AnyClientStream, ClientStreams
from proxy.api.generate.request_options import attempt_of
from proxy.api.generate.request_reader import RequestReader
from proxy.api.mcp.sessions import McpSessions
from proxy.base.caches import Derived
from proxy.base.errors import RequestError
from proxy.base.events import ToolCall, ToolProgress, ToolResult
from proxy.http.headers import Headers
from proxy.http.own_headers import RUN
from proxy.records.ids import row_ids
from proxy.records.rows import ToolEffect
from proxy.relay.ask import Identity
from proxy.relay.memory.idempotency import NO_REPEAT, repeat_of
from proxy.relay.passing.stopping import stopped
from proxy.relay.run.keepalive import Notifier, with_keepalive
from proxy.relay.starting.direct_calls import DirectCall, DirectCalls
from proxy.server.messages.errors import ERROR_CODE
from proxy.server.messages.request import EdgeRequest
from proxy.tools.access.catalog import Selection
from proxy.tools.contract.spec import ToolSpec
from proxy.wires.mcp import results
from proxy.wires.mcp.dialect import INTERNAL_ERROR, INVALID_REQUEST
from proxy.wires.mcp.messages import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Message,
    ProtocolFault,
    RoutingHeaders,
    read_message,
)

_VERSION: Final = istr("MCP-Protocol-Version")
_METHOD: Final = istr("Mcp-Method")
_NAME: Final = istr("Mcp-Name")
_SESSION: Final = istr("Mcp-Session-Id")
_JSON: Final = "application/json"
_LISTS_BYTES: Final = 16 << 20
_CODES: Final[Mapping[int, str]] = {
    HEADER_MISMATCH: "header_mismatch",
    INTERNAL_ERROR: "draining",
    INVALID_PARAMS: "invalid_params",
    METHOD_NOT_FOUND: "method_not_found",
    UNSUPPORTED_VERSION: "unsupported_version",
    results.REQUEST_CANCELLED: "cancelled",
}
"""The error codes in the log, by JSON-RPC code."""

_STREAM_HEAD: Final[Headers] = (
    ("Cache-Control", "no-cache, no-transform"),
    ("X-Accel-Buffering", "no"),
)


class _Asked(Struct, frozen=True):
    """A client's request: its message, its session, and the media types that it accepts as an answer.

    ``session`` is empty if the request names none.
    """

    context: Context
    message: Message
    session: str
    takes_json: bool
    takes_stream: bool


class McpHandler:
    """The handler of the path where tools are served."""

    def __init__(
        self,
        calls: DirectCalls,
        sessions: McpSessions,
        *,
        request_reader: RequestReader,
        clients: ClientStreams,
        keepalive_s: float,
    ) -> None:
        """``keepalive_s``: after this many seconds of silence a waiting client gets a keep-alive."""
        self._calls = calls
        self._sessions = sessions
        self._request_reader = request_reader
        self._clients = clients
        self._keepalive_s = keepalive_s
        self._run_ids = row_ids("run_")
        self._lists: Derived[Selection, tuple[Mapping[str, Any], ...]] = Derived(
            "mcp_lists", _LISTS_BYTES, lambda selection, _: 1000 + 4000 * len(selection.offered)
        )
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.mcp")

    async def answer(self, context: Context) -> web.StreamResponse:
        """Answer one message; see :class:`~proxy.api.pipeline.EndpointHandler`."""
        request = context.request
        _check_request(context)
        takes_json, takes_stream = _accepted(request, _stream_type(context))
        session = request.head.sole(_SESSION) or ""
        body = await self._request_reader.read(context)
        try:
            message = read_message(body.payload, _routing(request))
            if message is not None and not message.modern and session:
                self._check_session(context, session, message)
            if message is None or not message.is_request:
                return self._note(session, message)
            asked = _Asked(context, message, session, takes_json, takes_stream)
            return await self._answer(asked)
        except ProtocolFault as fault:
            return _refused(fault)

    def _check_session(self, context: Context, session: str, message: Message) -> None:
        """Refuse a session that is not the caller's; the client then begins a new one."""
        if message.method != "initialize" and not self._sessions.knows(session, context.caller.name):
            raise ProtocolFault(
                INVALID_REQUEST,
                "there is no such session; begin one with initialize",
                status=404,
                number=message.id,
            )

    def _note(self, session: str, message: Message | None) -> web.StreamResponse:
        """Handle a message that needs no answer: cancel a request, and ignore everything else."""
        if message is not None and message.method == "notifications/cancelled" and not message.modern:
            number = message.params.get("requestId")
            if isinstance(number, str | int):
                self._sessions.cancel(session, number)
        return web.Response(status=202)

    async def _answer(self, asked: _Asked) -> web.StreamResponse:
        """Answer a request. Raises :class:`~proxy.wires.mcp.messages.ProtocolFault`."""
        message = asked.message
        match message.method:
            case "initialize" if not message.modern:
                result = results.initialized(message, __version__)
                session = self._sessions.issue(asked.context.caller.name)
                return self._whole(asked, result, {_SESSION: session})
            case "ping" if not message.modern:
                return self._whole(asked, {})
            case "server/discover" if message.modern:
                return self._whole(asked, results.discovered(__version__))
            case "tools/list":
                tools = self._listed(asked.context.permissions.direct)
                return self._whole(asked, results.tool_list(tools, message, __version__))
            case "tools/call":
                return await self._call(asked)
        status = 404 if message.modern else 200
        text = f"this server has no method {message.method[:100]}"
        raise ProtocolFault(METHOD_NOT_FOUND, text, status=status, number=message.id)

    def _listed(self, selection: Selection) -> Sequence[Mapping[str, Any]]:
        """Return the tools of a selection in the form of a list's answer; it is built once."""
        lists = self._lists.of(selection.catalog)
        known = lists.get(selection)
        if known is None:
            known = tuple(map(_listed, selection.offered))
            lists.put(selection, known)
        return known

    @staticmethod
    def _whole(
        asked: _Asked, result: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        """Return an immediate answer, in the form that the client accepts."""
        body, kind = results.answer(asked.message.id, result), _JSON
        if not asked.takes_json:
            body, kind = results.as_event(body), _stream_type(asked.context)
        return web.Response(body=body, content_type=kind, headers=headers)

    # Calls.

    async def _call(self, asked: _Asked) -> web.StreamResponse:
        """Make a call; send progress and keep-alives to the client meanwhile."""
        context, message = asked.context, asked.message
        call = self._direct_call(asked)
        client = self._clients.open(context, call.identity.caller)
        client.set_header(RUN, call.identity.run_id)
        context.facts.run_id, context.facts.has_run = call.identity.run_id, True
        open_call = self._calls.open(call, lambda: client.stopped_by_server)

        progress = _ProgressEvents(message)

        async def tick(silent: bool) -> None:
            if asked.takes_stream and (data := results.KEEP_ALIVE if silent else progress.take()):
                await self._push(asked, client, data)

        bound = structlog.contextvars.bind_contextvars(run_id=call.identity.run_id)
        fault: ProtocolFault | None = None
        try:
            work = self._cancellable(asked, open_call.run(progress.progressed if progress.wanted else None))
            result = await with_keepalive(work, self._keepalive_s, tick, progress.notifier)
            payload = self._result(asked, call, result)
        except ProtocolFault as refusal:
            fault = refusal
        except asyncio.CancelledError:
            if not client.stopped_by_server:
                raise
            ended = stopped()
            if call.may_have_effect:
                # If a client repeated the call, it would repeat the effect (rule E3).
                client.set_header("x-should-retry", "false")
            fault = ProtocolFault(INTERNAL_ERROR, ended.message, status=ended.status, number=message.id)
        finally:
            structlog.contextvars.reset_contextvars(**bound)
        if fault is not None:
            context.facts.error_code = _CODES.get(fault.code, "invalid_request")
            await self._finish(asked, client, results.failure(fault), fault.status)
        else:
            await self._finish(asked, client, payload)
            open_call.answered()
        return client.response

    def _direct_call(self, asked: _Asked) -> DirectCall:
        """Return the call that a message asks for; raise :class:`~proxy.wires.mcp.messages.ProtocolFault` if
        invalid."""
        context, message = asked.context, asked.message
        tool, arguments = message.params.get("name"), message.params.get("arguments")
        status = 400 if message.modern else 200
        if not isinstance(tool, str):
            raise ProtocolFault(
                INVALID_PARAMS, "params.name must name a tool", status=status, number=message.id
            )
        if arguments is not None and not isinstance(arguments, dict):
            raise ProtocolFault(
                INVALID_PARAMS, "params.arguments must be an object", status=status, number=message.id
            )
        principal = self._request_reader.principal(context, None)
        repeat = NO_REPEAT
        if principal.is_person:
            attempt = replace(context.request.head[attempt_of], session=asked.session)
            content = {"name": tool, "arguments": arguments or {}}
            repeat = repeat_of(principal.name, "", context.target.path, content, attempt)
        run_id, request_id, key = next(self._run_ids), context.facts.request_id, context.caller.name
        return DirectCall(
            identity=Identity(run_id, request_id, principal.name, key, principal.is_person, principal.shown),
            wire=context.target.endpoint.dialect.wire,
            tool=tool,
            arguments=orjson.dumps(arguments or {}).decode(),
            policy=context.permissions.policy,
            selection=context.permissions.direct,
            meter=context.admission,
            repeat=repeat,
        )

    async def _cancellable(
        self, asked: _Asked, work: Coroutine[Any, Any, ToolResult | None]
    ) -> ToolResult | None:
        """Return the result of the work; raise :class:`~proxy.wires.mcp.messages.ProtocolFault` if the client
        cancels the request meanwhile."""
        number = asked.message.id
        task = asyncio.get_running_loop().create_task(work)
        with self._sessions.open(asked.session, number, task.cancel):
            try:
                return await task
            except asyncio.CancelledError:
                own = asyncio.current_task()
                if own is not None and own.cancelling():
                    raise
        text = "the request was cancelled; a tool that had begun may have taken effect all the same"
        raise ProtocolFault(results.REQUEST_CANCELLED, text, status=200, number=number)

    def _result(self, asked: _Asked, call: DirectCall, result: ToolResult | None) -> bytes:
        """Return the answer to a call. For a tool that the client may not use, raise
        :class:`~proxy.wires.mcp.messages.ProtocolFault`, with the same words whether or not the tool
        exists."""
        message = asked.message
        if result is None:
            text = f"there is no tool {call.tool[:200]} here; tools may change: list them again (tools/list)"
            status = 400 if message.modern else 200
            raise ProtocolFault(INVALID_PARAMS, text, status=status, number=message.id)
        body = results.call_result(message, __version__, result.content, result.images, failed=not result.ok)
        return results.answer(message.id, body)

    async def _push(self, asked: _Asked, client: AnyClientStream, data: bytes) -> None:
        """Send a piece of a stream; the first piece starts the stream."""
        if not client.started:
            client.start(200, ((hdrs.CONTENT_TYPE, _stream_type(asked.context)), *_STREAM_HEAD))
        await client.write(data)

    async def _finish(self, asked: _Asked, client: AnyClientStream, body: bytes, status: int = 200) -> None:
        """Send the answer, in one piece if no stream has begun and the client accepts that."""
        if client.started or (status == 200 and not asked.takes_json):
            await self._push(asked, client, results.as_event(body))
        else:
            head = ((hdrs.CONTENT_TYPE, _JSON), (hdrs.CONTENT_LENGTH, str(len(body))))
            client.start(status, head)
            if (wait := client.push(body, last=True)) is not None:
                await wait
        client.finish()


class _ProgressEvents:
    """The progress notifications of a call, if the client asked for them."""

    def __init__(self, message: Message) -> None:
        self._token = message.progress_token
        self._pending: list[bytes] = []
        self.notifier = Notifier()

    @property
    def wanted(self) -> bool:
        return self._token is not None

    def progressed(self, call: ToolCall, progress: ToolProgress) -> None:
        """Queue a notification of the call's progress."""
        if self._token is not None:
            event = results.progress(self._token, progress.done, progress.total, progress.message)
            self._pending.append(results.as_event(event))
            self.notifier.notify()

    def take(self) -> bytes:
        """Return the queued notifications and remove them."""
        data = b"".join(self._pending)
        self._pending.clear()
        return data


def _check_request(context: Context) -> None:
    """Refuse a request that does not follow this transport, before its body is read."""
    request, dialect = context.request, context.target.endpoint.dialect
    if context.target.below != dialect.prefix:
        raise RequestError(404, f"Nothing is served at {context.target.shown}.", code="not_found")
    if request.method != "POST":
        # There is no stream for messages without a request, and no session to end.
        raise RequestError(
            405,
            f"{request.method} is not served at {dialect.prefix}: each message is a POST of its own.",
            code="method_not_allowed",
            headers={"Allow": "POST"},
        )
    if request.content_type != _JSON:
        raise RequestError(
            415,
            f"A message must be JSON: send Content-Type: {_JSON}.",
            param="Content-Type",
            code="content_type_not_allowed",
        )


def _accepted(request: EdgeRequest, stream: str) -> tuple[bool, bool]:
    """Return whether a client accepts JSON, and whether it accepts an event stream; without ``Accept`` both.

    Raises :class:`~proxy.base.errors.RequestError` (406) if it accepts neither.
    """
    types = [part.partition(";")[0].strip().lower() for part in request.head.listed(hdrs.ACCEPT)]
    if not types:
        return True, True
    takes = [
        any(t in ("*/*", f"{kind.partition('/')[0]}/*", kind) for t in types) for kind in (_JSON, stream)
    ]
    if not any(takes):
        raise RequestError(
            406, f"Accept must name {_JSON} and {stream}.", param="Accept", code="not_acceptable"
        )
    return takes[0], takes[1]


def _stream_type(context: Context) -> str:
    return context.target.endpoint.dialect.framing.content_type


def _routing(request: EdgeRequest) -> RoutingHeaders:
    headers = request.headers
    return RoutingHeaders(
        headers.getall(_VERSION, ()), headers.getall(_METHOD, ()), headers.getall(_NAME, ())
    )


def _refused(fault: ProtocolFault) -> web.Response:
    """Return the answer to a message that cannot be served."""
    response = web.Response(status=fault.status, body=results.failure(fault), content_type=_JSON)
    response[ERROR_CODE] = _CODES.get(fault.code, "invalid_request")
    return response


def _listed(spec: ToolSpec) -> Mapping[str, Any]:
    """Return a tool in the form of a list's answer. Its hints come from the operator's effects; an unknown
    effect counts as the worst."""
    reads = spec.effect is ToolEffect.READ_ONLY
    hints = {
        "readOnlyHint": reads,
        "destructiveHint": not reads,
        "openWorldHint": spec.egress or spec.effect is ToolEffect.EXTERNAL_SIDE_EFFECT,
    }
    # Optional arguments stay optional, unlike in a wire's strict form: clients send what they have.
    return results.listed_tool(spec.name, spec.description, spec.schema_with_defaults, hints)
