"""Test support for authors: run one tool as the proxy does, with the test's own HTTP responses and clock.

It needs no server, no network and no configuration. A call goes through the same runner, validation,
redaction and bounds as a model's call, so a test here proves the same behaviour there.
"""

import asyncio
import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import msgspec
import orjson
from msgspec import Struct
from structlog.testing import capture_logs
from yarl import URL

from proxy.base.errors import ToolErrorCode
from proxy.base.events import ResultImage, ToolCall
from proxy.records.rows import NativeCall, ToolInvocationRecord
from proxy.tools.access.catalog import Registry
from proxy.tools.access.hosts import check_headers, may_call
from proxy.tools.access.policy import Policy
from proxy.tools.contract.capabilities import Capabilities, HttpFailure, QueryParams, TextPage
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.tools.running.runner import Runner

__all__ = ["FakeClock", "FakeHttp", "TestedCall", "ToolTester", "UnexpectedRequest"]


class UnexpectedRequest(AssertionError):
    """A tool's request for which the test has given no response."""


class FakeClock:
    """A clock that stands still until the test moves it. It begins at 2026-01-01 12:00 UTC."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def now(self, tz: tzinfo) -> datetime:
        """Return the time in ``tz``."""
        return self._now.astimezone(tz)

    def set(self, moment: str | datetime) -> None:
        """Set the time: an aware ``datetime``, or a text with a zone like ``2026-11-21T14:05:00+01:00``."""
        parsed = moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)
        if parsed.tzinfo is None:
            raise ValueError("give the moment with its zone, like 2026-11-21T14:05:00+01:00")
        self._now = parsed

    def advance(self, seconds: float) -> None:
        """Move the clock forward by so many seconds."""
        self._now += timedelta(seconds=seconds)


class FakeRequest(Struct, frozen=True):
    """A request that a tool made, with its ``body``."""

    method: str
    url: str
    params: Mapping[str, str]
    body: Any = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class _Answer(Struct, frozen=True):
    """A prepared response for a URL; with ``params``, only for exactly these parameters."""

    method: str
    url: str
    params: Mapping[str, str] | None
    body: Any
    status: int
    content_type: str


class FakeHttp:
    """An :class:`~proxy.tools.contract.capabilities.HttpClient` with responses that a test prepares.

    ``requests`` are the requests of the tool, in order. Like the real client, it calls only the tool's own
    ``hosts`` and refuses headers that a tool may not set.
    """

    def __init__(self) -> None:
        self.hosts: tuple[str, ...] = ()
        self.requests: list[FakeRequest] = []
        self.unexpected: UnexpectedRequest | None = None
        self._answers: list[_Answer] = []

    def answer(
        self,
        url: str,
        body: Any,
        *,
        status: int = 200,
        params: QueryParams | None = None,
        method: str = "GET",
        content_type: str = "text/html",
    ) -> None:
        """Prepare a response for ``url``: JSON, or text for ``get_text``; the newest matching response wins.

        With ``params``, only a request with exactly these parameters gets it. For a status other than 2xx
        the client raises as the real one does.
        """
        wanted = None if params is None else _texts(params)
        self._answers.insert(0, _Answer(method, url, wanted, copy.deepcopy(body), status, content_type))

    async def get_json(
        self, url: str, params: QueryParams | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Return the body of the prepared response."""
        check_headers(headers or {})
        return self._find(FakeRequest("GET", url, _texts(params or {}), None, dict(headers or {})))[0]

    async def post_json(
        self,
        url: str,
        body: Any,
        params: QueryParams | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the body of the prepared response."""
        check_headers(headers or {})
        posted = orjson.loads(orjson.dumps(body))
        return self._find(FakeRequest("POST", url, _texts(params or {}), posted, dict(headers or {})))[0]

    async def get_text(self, url: str) -> TextPage:
        """Return the prepared text as a page."""
        body, content_type = self._find(FakeRequest("GET", url, {}))
        if not isinstance(body, str):
            raise TypeError(f"the answer for {url} must be a str, since the tool asks for text")
        return TextPage(url, content_type, body)

    def _find(self, request: FakeRequest) -> tuple[Any, str]:
        if not may_call(URL(request.url), self.hosts):
            raise HttpFailure("this tool may not call that host")
        self.requests.append(request)
        for answer in self._answers:
            fits = answer.params is None or dict(answer.params) == dict(request.params)
            if (answer.method, answer.url) == (request.method, request.url) and fits:
                if not 200 <= answer.status < 300:
                    raise HttpFailure(
                        f"the service answered with status {answer.status}",
                        status=answer.status,
                        body=orjson.dumps(answer.body),
                    )
                return copy.deepcopy(answer.body), answer.content_type
        self.unexpected = UnexpectedRequest(
            f"no answer for {request.method} {request.url} {dict(request.params)}; "
            "give one with tester.http.answer(...)"
        )
        raise self.unexpected


@dataclass(frozen=True, slots=True)
class TestedCall:
    """The outcome of one call.

    ``content`` is the text that the model gets, with ``images`` beside it. ``redacted`` and
    ``arguments_redacted`` are what everyone else may see. ``exception`` is what the tool raised, unless it
    was a ``ToolFailure``.
    """

    __test__ = False  # Otherwise pytest would collect the class as a test because of its name.

    ok: bool
    content: str
    error_code: ToolErrorCode | None
    message: str
    redacted: Any
    arguments_redacted: Any
    exception: BaseException | None
    images: tuple[ResultImage, ...]
    seen: str = field(repr=False)

    @property
    def json(self) -> Any:
        """The content as JSON."""
        return json.loads(self.content)

    def assert_hidden(self, *texts: str) -> None:
        """Raise ``AssertionError`` if a text is in the record, the log or the redacted views of the call."""
        for text in texts:
            if text in self.seen or repr(text)[1:-1] in self.seen:
                raise AssertionError(f"{text!r} appears in the log and the record: {self.seen}")


class _Rows:
    """A record that keeps its rows, so that the test can search them."""

    def __init__(self) -> None:
        self.rows: list[ToolInvocationRecord] = []

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        self.rows.append(record)

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        self.rows.append(record)

    def put_native_call(self, record: NativeCall) -> None:
        """Ignore an original call."""


class ToolTester:
    """A test bench that runs one tool.

    Args:
        target: the function or class under ``@tool``.
        extra: values of further parameter types (:class:`~proxy.tools.contract.capabilities.Capabilities`).
        max_result_bytes, max_image_bytes: the limits of a result's text and images.
        keep_cache: cache results of a tool with ``cache_ttl_s`` between calls, as the proxy does; otherwise
            each call runs.

    Raises :class:`~proxy.base.errors.ConfigError` if the tool cannot load, which is a useful test in itself.
    """

    def __init__(
        self,
        target: Any,
        *,
        extra: Mapping[type, Any] | None = None,
        max_result_bytes: int = 32768,
        max_image_bytes: int = 4 << 20,
        keep_cache: bool = False,
    ) -> None:
        self.clock = FakeClock()
        self.http = FakeHttp()
        self.connections: list[str] = []
        capabilities = Capabilities(self.clock, self._http, extra or {}, self._connected)
        self._provider = FunctionProvider("tested", [target], capabilities)
        self._policy = Policy(
            allow=("*",), max_result_bytes=max_result_bytes, max_image_bytes=max_image_bytes
        )
        self._keep_cache = keep_cache
        self._runner: tuple[Runner, _Rows] | None = None
        self._crashes: list[BaseException] = []

    @property
    def spec(self) -> ToolSpec:
        """The tool's contract; ``spec.parameters`` is the schema that the model sees."""
        return self._provider.specs[0]

    def call(self, /, **arguments: Any) -> TestedCall:
        """Call the tool with arguments as JSON values. For tests that are not coroutines."""
        return asyncio.run(self.acall(**arguments))

    def call_text(self, text: str) -> TestedCall:
        """Call the tool with arguments as a model's text, valid or not."""
        return asyncio.run(self.acall_text(text))

    async def acall(self, /, **arguments: Any) -> TestedCall:
        """Do the same as :meth:`call`, for tests that are coroutines."""
        return await self.acall_text(json.dumps(arguments))

    async def acall_text(self, text: str) -> TestedCall:
        """Do the same as :meth:`call_text`, for tests that are coroutines.

        Raises :class:`UnexpectedRequest` if the test has prepared no response for one of the tool's requests,
        and any other ``AssertionError`` that the tool raised.
        """
        runner, rows = await self._ready()
        self._crashes.clear()
        self.http.unexpected = None
        before = len(rows.rows)
        call = ToolCall("call_1", self.spec.name, text, 0)
        with capture_logs() as lines:
            result = await runner.run(call, RunContext("run_1", 1, "tester", ledger=RunLedger()))
        exception = self._crashes[0] if self._crashes else None
        if self.http.unexpected is not None:
            raise self.http.unexpected
        if isinstance(exception, AssertionError):
            raise exception
        return TestedCall(
            ok=result.ok,
            content=result.content,
            error_code=result.error_code,
            message=result.safe_message,
            redacted=result.redacted,
            arguments_redacted=result.arguments_redacted,
            exception=exception,
            images=result.images,
            seen=repr((rows.rows[before:], lines, result.redacted, result.arguments_redacted)),
        )

    async def _ready(self) -> tuple[Runner, _Rows]:
        """Return a runner and its record; a new one for each call, unless the cache is to be kept."""
        if self._runner is None or not self._keep_cache:
            rows = _Rows()
            registry = await Registry.load([self._provider])
            runner = Runner(registry, self._policy, rows, None, self.clock, on_crash=self._crashed)
            self._runner = (runner, rows)
        return self._runner

    def _crashed(self, spec: ToolSpec, error: BaseException) -> None:
        self._crashes.append(error)

    def _http(self, hosts: Sequence[str]) -> FakeHttp:
        self.http.hosts = tuple(host.lower() for host in hosts)
        return self.http

    def _connected(self, name: str, hosts: Sequence[str]) -> FakeHttp:
        self.connections.append(name)
        return self._http(hosts)


def _texts(params: QueryParams) -> dict[str, str]:
    """Return query parameters as they are sent."""
    return {name: str(value) for name, value in params.items()}
