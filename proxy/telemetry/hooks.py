"""Provide the hooks that are called while a request is served.

They pass each event on to the observers: metrics, traces, the log. Each request has its
:class:`RequestFacts`, which a context variable provides in all tasks of the request. The relay, the runner
and the upstreams do not know this module; they call the hooks that they are given. Without observers, only
the access log reads the facts.
"""

import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from proxy.base.errors import UpstreamError
from proxy.base.events import Usage
from proxy.http.headers import Headers
from proxy.records.rows import ToolInvocationRecord
from proxy.telemetry.content import ContentReader, Exchange
from proxy.telemetry.refused_keys import REFUSALS, RefusedKeys
from proxy.upstreams.base import Upstream, UpstreamRequest, UpstreamResponse
from proxy.wires.registry.table import EndpointTable

OWN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})


class Operation(Struct, eq=False):
    """One request to an upstream.

    ``name`` is the GenAI operation, or empty if no model is asked. ``started_at`` is in nanoseconds since
    the epoch, and ``started`` in monotonic seconds. The times with ``_s`` are seconds since the start, or
    ``None`` if the request did not get that far. ``exchange`` is what is kept of its content, if anything is.
    ``error_type`` is one of the proxy's error codes, an HTTP
    status from 400 on, or ``cancelled``. ``cost`` is in billionths. ``context`` is a ``traceparent`` to
    send on, and ``span`` the tracer's own object.
    """

    name: str
    upstream: str
    path: str
    model: str
    stream: bool
    started_at: int
    started: float
    status: int = 0
    head_s: float | None = None
    first_chunk_s: float | None = None
    seconds: float = 0.0
    error_type: str = ""
    turn: int = 0
    response_id: str = ""
    response_model: str = ""
    finish_reason: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: int = 0
    context: str = ""
    conversation: str = ""
    span: Any = None
    exchange: Exchange | None = None


class ResponseProgress(Protocol):
    """The progress of a response: when its body began, in monotonic seconds, and the bytes sent so far.

    ``completed`` is its status once the whole body has been sent, and 0 before.
    """

    first_byte_at: float
    sent: int

    @property
    def completed(self) -> int: ...


class RequestFacts(Struct, eq=False):
    """The facts about one request, which are filled in while it is served.

    ``id_given`` is true if the client chose the id. ``endpoint`` is the class of the path, ``dialect`` the
    name of its dialect, empty for the proxy's own paths. ``operation_asked`` is the GenAI operation that the
    client requests, or empty. ``caller`` is the client's key, ``principal`` the key with its end user if the
    request names one. ``model`` is the name that the client sent, ``conversation`` the id of the conversation
    that it names, if it does. ``has_run`` is true if the request began
    the run ``run_id``. ``upstream``, its status and the seconds to its head belong to the last upstream
    request. ``usage`` and ``cost`` (in billionths) are those of a response that passed through, ``None`` if
    unknown. ``unstored`` is true if the client asked that nothing be stored of a run.
    ``error_code`` is set if the answer is one of the proxy's own errors or broke off; an upstream's
    error that passed through has none. ``started`` is in monotonic seconds. ``seconds``, and
    ``first_byte_s`` until the body began, are known at the end.
    """

    request_id: str
    method: str
    path: str
    started: float
    id_given: bool = False
    endpoint: str = "other"
    dialect: str = ""
    operation_asked: str = ""
    caller: str = ""
    principal: str = ""
    model: str = ""
    conversation: str = ""
    run_id: str = ""
    has_run: bool = False
    prompt_hash: str = ""
    upstream: str = ""
    upstream_status: int = 0
    upstream_s: float | None = None
    client: ResponseProgress | None = None
    operation: Operation | None = None
    usage: Usage | None = None
    cost: int | None = None
    status: int = 499
    error_code: str = ""
    seconds: float = 0.0
    first_byte_s: float | None = None
    sent: int = 0
    span: Any = None
    unstored: bool = False


class Observer:
    """The base class of metrics, traces and other observers.

    No method may wait or raise. An observer overrides the methods of the events that it needs.
    """

    def request_began(self, facts: RequestFacts, headers: Mapping[str, str]) -> None: ...

    def request_ended(self, facts: RequestFacts) -> None: ...

    def operation_began(self, operation: Operation, facts: RequestFacts | None) -> None: ...

    def operation_ended(self, operation: Operation) -> None: ...

    def invocation_ended(
        self, record: ToolInvocationRecord, seconds: float, facts: RequestFacts | None
    ) -> None: ...

    def run_ended(self, status: str) -> None: ...

    def agent_began(self, facts: RequestFacts, agent: str) -> None: ...

    def agent_left(self, facts: RequestFacts) -> None: ...

    def agent_ended(self, agent: str, status: str) -> None: ...

    def remembered(self, outcome: str, count: int) -> None: ...

    def limited(self, limit: str) -> None: ...

    def late(self, what: str) -> None: ...

    def orphaned(self, outcome: str) -> None: ...

    def hooked(self, point: str, name: str, outcome: str) -> None: ...


class Hooks:
    """The hooks, and the facts of the current request.

    >>> hooks = Hooks(SERVED, [metrics])
    >>> upstream = hooks.upstream(upstream)
    """

    def __init__(
        self,
        endpoints: EndpointTable,
        observers: Sequence[Observer] = (),
        keys: RefusedKeys | None = None,
        content: ContentReader | None = None,
    ) -> None:
        """Create the hooks.

        ``endpoints`` give the names of operations. ``keys`` logs when an upstream refuses the operator's
        key. ``content`` keeps what models are sent and answer; ``None`` keeps nothing.
        """
        self._content = content
        self._endpoints = endpoints
        self._keys = keys or RefusedKeys({})

        def told(hook: str) -> list[Any]:
            nobody = getattr(Observer, hook)
            return [getattr(each, hook) for each in observers if getattr(type(each), hook) is not nobody]

        # Looked up once, because each request calls most of them.
        self._request_began: list[Callable[[RequestFacts, Mapping[str, str]], None]]
        self._request_began = told("request_began")
        self._request_ended: list[Callable[[RequestFacts], None]] = told("request_ended")
        self._operation_began: list[Callable[[Operation, RequestFacts | None], None]]
        self._operation_began = told("operation_began")
        self._operation_ended: list[Callable[[Operation], None]] = told("operation_ended")
        self._invocation_ended: list[Callable[[ToolInvocationRecord, float, RequestFacts | None], None]]
        self._invocation_ended = told("invocation_ended")
        self._run_ended: list[Callable[[str], None]] = told("run_ended")
        self._agent_began: list[Callable[[RequestFacts, str], None]] = told("agent_began")
        self._agent_left: list[Callable[[RequestFacts], None]] = told("agent_left")
        self._agent_ended: list[Callable[[str, str], None]] = told("agent_ended")
        self._remembered: list[Callable[[str, int], None]] = told("remembered")
        self._limited: list[Callable[[str], None]] = told("limited")
        self._late: list[Callable[[str], None]] = told("late")
        self._orphaned: list[Callable[[str], None]] = told("orphaned")
        self._hooked: list[Callable[[str, str, str], None]] = told("hooked")
        self._facts: ContextVar[RequestFacts | None] = ContextVar("request-facts", default=None)

    @property
    def current(self) -> RequestFacts | None:
        """The facts of the request that the current task serves, or ``None``."""
        return self._facts.get()

    def begin(self, facts: RequestFacts, headers: Mapping[str, str]) -> "Token[RequestFacts | None]":
        """Report that a request has arrived; return a token for :meth:`end`."""
        for tell in self._request_began:
            tell(facts, headers)
        return self._facts.set(facts)

    def end(self, facts: RequestFacts, token: "Token[RequestFacts | None]") -> None:
        """Report that the response was sent or abandoned."""
        self._facts.reset(token)
        now = time.monotonic()
        facts.seconds = now - facts.started
        first = facts.client.first_byte_at if facts.client is not None else 0.0
        if first:
            facts.first_byte_s = first - facts.started
        operation = facts.operation
        if operation is not None:
            if operation.first_chunk_s is None and first:
                # Bytes that pass through are sent on at once, so the client's first byte is the upstream's.
                operation.first_chunk_s = first - operation.started
            if facts.status == 499:
                operation.error_type = operation.error_type or "cancelled"
            self._end_operation(facts, operation, now)
        for tell in self._request_ended:
            tell(facts)

    @contextmanager
    def run_context(self, run_id: str, model: str, agent: str = "") -> Iterator[None]:
        """Provide facts for a run that belongs to no request: one of ``agent``, or in the background."""
        outer = self._facts.get()
        facts = RequestFacts("", "", "", time.monotonic(), model=model, run_id=run_id)
        if outer is not None:
            facts.request_id, facts.caller, facts.span = outer.request_id, outer.caller, outer.span
            facts.conversation, facts.unstored = outer.conversation, outer.unstored
        for tell in self._agent_began if agent else ():
            tell(facts, agent)
        token = self._facts.set(facts)
        try:
            yield
        finally:
            self._facts.reset(token)
            if (operation := facts.operation) is not None:
                operation.error_type = operation.error_type or "cancelled"
                self._end_operation(facts, operation, time.monotonic())
            for leave in self._agent_left if agent else ():
                leave(facts)

    def limited(self, limit: str) -> None:
        """Report that a limit of this kind refused a request or call."""
        for tell in self._limited:
            tell(limit)

    def late(self, what: str) -> None:
        """Report that a record was not committed in time for a client's next request."""
        for tell in self._late:
            tell(what)

    def orphaned(self, outcome: str) -> None:
        """Report the outcome of a background response that no process ran."""
        for tell in self._orphaned:
            tell(outcome)

    def hooked(self, point: str, name: str, outcome: str) -> None:
        """Report what a hook of the operator did; a :data:`~proxy.hooks.chain.Counted`."""
        for tell in self._hooked:
            tell(point, name, outcome)

    def broken(self, error: UpstreamError) -> None:
        """Note that the upstream's response broke off after its head had arrived."""
        facts = self._facts.get()
        if facts is not None:
            facts.error_code = facts.error_code or error.code
            if facts.operation is not None:
                facts.operation.error_type = error.code

    def used(self, usage: Usage | None, cost: int | None) -> None:
        """Note the usage that a response reported while it passed through; ``cost`` is in billionths."""
        facts = self._facts.get()
        if usage is not None and facts is not None and facts.operation is not None:
            facts.usage, facts.cost = usage, cost
            facts.operation.input_tokens = usage.input_tokens
            facts.operation.output_tokens = usage.output_tokens
            facts.operation.cached_tokens = usage.cached_tokens
            facts.operation.cache_write_tokens = usage.cache_write_tokens
            facts.operation.reasoning_tokens = usage.reasoning_tokens
            facts.operation.cost = cost or 0

    def invocation_ended(self, record: ToolInvocationRecord, seconds: float) -> None:
        """Report that a tool call has ended, with success or not."""
        for tell in self._invocation_ended:
            tell(record, seconds, self._facts.get())

    def run_event(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Handle an event of a run; a :data:`~proxy.relay.base.RunEvents`."""
        if kind == "turn_finished":
            self._turn_finished(facts)
        elif kind == "run_started":
            if not facts.get("may_store", True) and (current := self._facts.get()) is not None:
                current.unstored = True
        elif kind == "run_finished":
            self._note_error(facts["error_code"])
            for outcome, count in facts.get("memory", {}).items():
                for tell_memory in self._remembered:
                    tell_memory(str(outcome), count)
            if agent := facts.get("agent"):
                for tell_agent in self._agent_ended:
                    tell_agent(str(agent), str(facts["status"]))
                return
            for tell in self._run_ended:
                tell(str(facts["status"]))

    def _note_error(self, code: str | None) -> None:
        """Note the error of a failed run as the error of its request."""
        facts = self._facts.get()
        if facts is not None and code and code != "client_gone":
            # An upstream chooses its own error codes, so they may be any text.
            facts.error_code = "upstream_error" if facts.upstream_status >= 400 else code

    def _turn_finished(self, turn: Mapping[str, Any]) -> None:
        facts = self._facts.get()
        operation = facts.operation if facts is not None else None
        if facts is None or operation is None:
            return
        operation.turn = turn["number"]
        operation.response_id = turn["response_id"]
        operation.response_model = turn["response_model"]
        operation.finish_reason = turn["finish_reason"] or ""
        operation.input_tokens = turn["input_tokens"]
        operation.output_tokens = turn["output_tokens"]
        operation.cached_tokens = turn.get("cached_tokens", 0)
        operation.cache_write_tokens = turn.get("cache_write_tokens", 0)
        operation.reasoning_tokens = turn.get("reasoning_tokens", 0)
        operation.cost = turn["cost"] or 0
        error = "cancelled" if turn["error_code"] == "client_gone" else turn["error_code"] or ""
        operation.error_type = operation.error_type or error
        if turn["first_chunk_at"]:
            operation.first_chunk_s = max(0.0, turn["first_chunk_at"] - operation.started_at / 1e9)
        self._end_operation(facts, operation, time.monotonic())

    # Requests to upstreams.

    def upstream(self, inner: Upstream) -> Upstream:
        """Wrap an upstream so that every request to it calls the hooks."""
        return _ObservedUpstream(inner, self)

    async def open(self, inner: Upstream, request: UpstreamRequest) -> UpstreamResponse:
        """Open ``request`` at ``inner``, and report its outcome."""
        facts = self._facts.get()
        name = self._endpoints.find(request.method, request.path).operation
        model = facts.model if facts is not None else ""
        # Positional arguments take a third of the time of keywords.
        operation = Operation(
            name, inner.name, request.path, model, request.expect_stream, time.time_ns(), time.monotonic()
        )
        if facts is not None:
            operation.conversation = facts.conversation
        if self._content is not None and not (facts is not None and facts.unstored):
            operation.exchange = self._content.begin(request)
            if operation.exchange is not None:
                request = request._replace(expect_stream=True)  # Without a coding, so that it can be read.
        for tell in self._operation_began:
            tell(operation, facts)
        if operation.context:
            request = request._replace(headers=_with_traceparent(request.headers, operation.context))
        try:
            response = await inner.open(request)
        except BaseException as error:
            # Report it and raise it again; a cancellation ends an upstream request as any failure does.
            operation.error_type = error.code if isinstance(error, UpstreamError) else "cancelled"
            self._note_head(facts, operation)
            self._end_operation(None, operation, time.monotonic())
            raise
        status = operation.status = response.status
        now = time.monotonic()
        operation.head_s = now - operation.started
        if status >= 400:
            operation.error_type = str(status)
            if status in REFUSALS:
                self._keys.refused(inner.name, status)
        elif self._keys.waiting:
            self._keys.worked(inner.name)
        self._note_head(facts, operation)
        if operation.exchange is not None and self._content is not None:
            response = self._content.copied(response, operation.exchange)
        if facts is None or not name:
            self._end_operation(None, operation, now)
        else:
            if facts.operation is not None:
                self._end_operation(facts, facts.operation, now)  # Asked again: the first request failed.
            facts.operation = operation
        return response

    @staticmethod
    def _note_head(facts: RequestFacts | None, operation: Operation) -> None:
        if facts is not None:
            facts.upstream = operation.upstream
            facts.upstream_status = operation.status
            facts.upstream_s = operation.head_s

    def _end_operation(self, facts: RequestFacts | None, operation: Operation, now: float) -> None:
        if facts is not None:
            facts.operation = None
        operation.seconds = now - operation.started
        for tell in self._operation_ended:
            tell(operation)


class _ObservedUpstream:
    """An upstream whose requests call the hooks. Its responses are not wrapped, so chunks cost nothing
    extra."""

    def __init__(self, inner: Upstream, hooks: Hooks) -> None:
        self.name = inner.name
        self._inner = inner
        # A partial saves the extra frame of a function.
        self.open: Callable[[UpstreamRequest], Coroutine[Any, Any, UpstreamResponse]]
        self.open = partial(hooks.open, inner)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _with_traceparent(headers: Headers, traceparent: str) -> list[tuple[str, str]]:
    """Return the headers with the proxy's ``traceparent`` instead of the client's."""
    kept = [pair for pair in headers if pair[0].lower() != "traceparent"]
    return [*kept, ("traceparent", traceparent)]
