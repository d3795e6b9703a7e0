"""The access middleware: request ids, an answer to every failure, and nothing left of an ended request."""

import asyncio
import gc
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web
from edge_requests import edge_request
from logged import logged_to
from raw_upstream import RawUpstream, whole
from running_proxy import make_config, running
from structlog.testing import capture_logs
from waiting import PATIENCE_S, until

from proxy.base.errors import UpstreamError
from proxy.records.rows import HiddenTurns
from proxy.relay.run.state import State
from proxy.server.auth.key_spellings import KeyFinder
from proxy.server.connections.client_address import TrustedProxies
from proxy.server.connections.draining import Draining
from proxy.server.connections.fairness import MOST_STARTED
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Targets
from proxy.server.middleware.access import AccessMiddleware
from proxy.server.middleware.cors import Cors
from proxy.server.middleware.page_guard import PageGuard
from proxy.telemetry.hooks import Hooks, RequestFacts
from proxy.wires.registry.table import SERVED

PAGE = "https://app.example.com"


class NoKeys:
    """An empty set of client keys."""

    def knows(self, secret: str) -> bool:
        return False

    def declared_at(self, text: str, starts: Sequence[int]) -> bool:
        return False

    async def refresh(self) -> None:
        return


def edge(
    fault: Exception | None = None, cors: Cors | None = None, seen: list[dict[str, Any]] | None = None
) -> AccessMiddleware:
    """Return the middleware around a handler that answers, or raises ``fault``."""

    async def serve(request: EdgeRequest, facts: RequestFacts) -> web.StreamResponse:
        if seen is not None:
            seen.append(structlog.contextvars.get_contextvars())
        if fault is not None:
            raise fault
        return web.Response(text="served")

    cors, targets = cors or Cors(), Targets(SERVED)
    return AccessMiddleware(
        serve,
        targets,
        guard=PageGuard(targets, cors=cors, hosts=None, needs_key=True, proxies=TrustedProxies()),
        cors=cors,
        draining=Draining(),
        hooks=Hooks(SERVED),
        models=(),
        holds_key=KeyFinder(NoKeys()).in_target,
    )


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-1.2_3", True),
        ("ptr_" + "a" * 43, True),
        ("", False),
        ("a b", False),
        ("x" * 129, False),
        ("tr_" + "a" * 43, False),
        ("id-tr_" + "a" * 43, False),
        ("trt_key_0123456789abcdef0123.e30.AA", False),
    ],
)
async def test_a_request_has_one_id(given: str, kept: bool) -> None:
    """The proxy keeps the client's request id if it may stand in a log; it replaces any other id, for example
    one that contains a token."""
    seen: list[dict[str, Any]] = []
    response = await edge(seen=seen).handle(edge_request(headers={"x-request-id": given}))
    request_id = response.headers["x-request-id"]
    assert (request_id == given) == kept
    assert kept or (request_id.startswith("req_") and len(request_id) == 36)
    assert seen == [{"request_id": request_id}]


async def test_nothing_of_a_request_is_left_for_the_next() -> None:
    """Requests of a connection share a task, so the logging context is empty after each, failed ones too."""
    await edge().handle(edge_request())
    assert structlog.contextvars.get_contextvars() == {}
    await edge(ZeroDivisionError()).handle(edge_request())
    assert structlog.contextvars.get_contextvars() == {}


async def test_who_leaves_before_its_turn_has_its_line() -> None:
    """A request that is cancelled while it waits for its turn to start has a log line with status 499."""
    with logged_to(out := io.StringIO()):
        served = edge()
        tasks = [asyncio.ensure_future(served.handle(edge_request())) for _ in range(MOST_STARTED + 1)]
        await asyncio.sleep(0)
        tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    statuses = [json.loads(line)["status"] for line in out.getvalue().splitlines()]
    assert sorted(statuses) == [200] * MOST_STARTED + [499]


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (ZeroDivisionError("secret"), 500),
        (ConnectionResetError(), 499),
        (UpstreamError("broken"), 502),
        (web.HTTPRequestEntityTooLarge(1, 2), 413),
    ],
)
async def test_every_failure_is_an_answer(fault: Exception, status: int) -> None:
    """Rule E1: each exception becomes an error in OpenAI's shape without internals, which pages may read."""
    request = edge_request(headers={"Origin": PAGE})
    response = await edge(fault, Cors([PAGE])).handle(request)
    assert isinstance(response, web.Response)
    assert response.status == status
    assert isinstance(response.body, bytes)
    assert response.body.startswith(b'{"error":')
    assert b"secret" not in response.body
    assert response.headers["Access-Control-Allow-Origin"] == PAGE
    assert response.headers["Server"] == "toolrelay"


@pytest.mark.parametrize(("gone", "status", "lines"), [(True, 499, []), (False, 500, ["internal_error"])])
async def test_a_lost_connection_is_the_clients_own_or_a_fault(
    gone: bool, status: int, lines: list[str]
) -> None:
    """A connection error is a 499 if the client has left; otherwise it is a 500, and the log has an error."""
    request = edge_request()
    request.transport.is_closing.return_value = gone  # type: ignore[union-attr]
    with capture_logs() as log:
        response = await edge(ConnectionRefusedError()).handle(request)
    assert response.status == status
    assert [line["event"] for line in log if line["log_level"] == "error"] == lines


async def test_a_request_s_memory_is_free_at_its_end() -> None:
    """A request, whose head has the client's key, is freed at its end without the garbage collector."""

    def left() -> int:
        return _alive(EdgeRequest)

    ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    async with (
        RawUpstream(*[whole(b"{}")] * 3) as upstream,
        # asyncio keeps the context of a cancelled timer until the timer would have fired.
        running(make_config({"base_url": upstream.url, "connect_timeout_s": 1}, allow=())) as proxy,
        proxy.connect() as conversation,
    ):
        gc.collect()
        before = left()
        gc.disable()
        try:
            for _ in range(3):
                conversation.writer.write(proxy.request(ask))
                assert (await conversation.answer()).status == 200
            await until(lambda: left() <= before)
        finally:
            gc.enable()


async def test_a_run_s_memory_is_free_at_its_end(tmp_path: Path) -> None:
    """A run with a tool call and its hidden turns are freed at its end without the garbage collector."""
    function = {"name": "core__calculate", "arguments": '{"expression": "1 + 1"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    turns = (
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "content": "It is late."},
    )
    said = [whole(json.dumps({"choices": [{"index": 0, "message": turn}]}).encode()) for turn in turns]
    async with (
        RawUpstream(*said * 3) as upstream,
        running(make_config(upstream.url, store={"url": f"sqlite:///{tmp_path}/r.db"})) as proxy,
        proxy.connect() as conversation,
    ):
        gc.collect()
        before = _alive(State) + _alive(HiddenTurns)
        gc.disable()
        try:
            for number in range(3):
                ask = {"model": "m", "messages": [{"role": "user", "content": f"{number}"}]}
                conversation.writer.write(proxy.request(ask))
                assert b"It is late." in (await conversation.answer()).body
                assert b'\\"result\\"' in upstream.requests[-1].body
                assert await proxy.services.store.wait_until_visible(PATIENCE_S)
            await until(lambda: _alive(State) + _alive(HiddenTurns) <= before)
        finally:
            gc.enable()


def _alive(kind: type[object]) -> int:
    return sum(type(one) is kind for one in gc.get_objects())
