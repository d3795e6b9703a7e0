"""A database or a Redis that stops responding: the proxy waits for it once, not for each request."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import messages_script as messages
import pytest
from chat_script import payloads_of, text_of
from client_keys import ALICE, bearer, declared, made
from looping import ANSWER, ASK, CLIENT_TOOL, TIME, called, looping, messages_of
from own_servers import frozen, own_postgres, own_redis
from raw_upstream import whole
from running_proxy import Answer, Proxy
from sse_check import check_chat_stream
from waiting import LATE_S, PATIENCE_S, until

from proxy.store.look_ups import QueryBatch
from proxy.store.sql.store import SqlStore
from proxy.store.sqlite.store import SqliteStore

pytestmark = [pytest.mark.slow, pytest.mark.hurried]

UTC = '{"timezone":"UTC"}'
CALL = called(("call_s", TIME, UTC))
MIXED = called(("call_s", TIME, UTC), ("call_c", "mine", "{}"))
GONE = whole(b'{"error":{"message":"No such response","code":null}}', status="404 Not Found")
AGAIN: dict[str, Any] = {
    **ASK,
    "messages": [
        *ASK["messages"],
        {"role": "assistant", "content": "It is noon."},
        {"role": "user", "content": "And now?"},
    ],
}
Freeze = AbstractContextManager[None]


@contextmanager
def hung_disk(store: SqliteStore) -> Iterator[None]:
    """Block all threads of the SQLite store in a call, as if the disk never answered a read."""
    back = threading.Event()
    for db in (store._db, store._reader, store._looker):
        assert db is not None
        # Nobody awaits this future: the thread is busy, and later calls wait behind it.
        db._tx.put_nowait((asyncio.get_running_loop().create_future(), back.wait))
    try:
        yield
    finally:
        back.set()


@asynccontextmanager
async def proxy_over(kind: str, folder: Path, *scripts: Any, **config: Any) -> AsyncIterator[Any]:
    """Yield a proxy, its upstream, and what freezes its database."""
    if kind == "sqlite":
        url = f"sqlite:///{folder}/r.db"
        async with looping(*scripts, store={"url": url}, **config) as (proxy, upstream):
            store = proxy.services.store
            assert isinstance(store, SqliteStore)
            yield proxy, upstream, lambda: hung_disk(store)
    else:
        async with (
            own_postgres() as (url, pid),
            looping(*scripts, store={"url": url}, **config) as (proxy, upstream),
        ):
            yield proxy, upstream, lambda: frozen(pid)


def count_questions(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each query of the database is added from now on, except those that no request
    makes: the probe's, and the search for background responses without an owner."""
    store = proxy.services.store
    assert isinstance(store, SqlStore)
    asked: list[str] = []
    ask = store._look_ups._ask

    async def counted(batch: QueryBatch) -> Any:
        asked.extend(
            query.sql
            for query in batch.queries
            if "key_state" not in query.sql and "ORDER BY b.asked_at" not in query.sql
        )
        return await ask(batch)

    monkeypatch.setattr(store._look_ups, "_ask", counted)
    return asked


@pytest.fixture(autouse=True)
def patient_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give drivers longer timeouts than a test waits, so that only the proxy's deadlines end a wait."""
    monkeypatch.setattr("proxy.store.postgres.db.CONNECT_S", LATE_S)
    monkeypatch.setattr("proxy.store.postgres.db.COMMAND_S", LATE_S)
    monkeypatch.setattr("proxy.server.limits.redis._PROBE_S", (0.05, LATE_S))


async def in_time(asking: Any) -> Answer:
    """Return an answer; fail if it waits for the timeout of a driver."""
    async with asyncio.timeout(PATIENCE_S):
        answer: Answer = await asking
    return answer


async def test_a_frozen_record_delays_no_turn_with_a_thought_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the proxy cannot store a turn with thinking, the client gets its call all the same, in time."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    turn = messages.stream(messages.thinking("Hm."), messages.tool_use("toolu_1", "mine", {}))
    served = {"served": {"wires": ["anthropic"]}, "tools": {"keepalive_s": LATE_S}}
    async with proxy_over("sqlite", tmp_path, turn, **served) as (proxy, _, freeze):
        with freeze():
            answer = await in_time(proxy.ask({**ASK, "tools": [CLIENT_TOOL]}))
    read = check_chat_stream(answer.body, wants_usage=False)
    assert ([call.name for call in read.calls], read.finish) == (["mine"], "tool_calls")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_frozen_record_delays_one_look_up(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database is frozen, the proxy queries it once; afterwards it restores turns again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    scripts = (CALL, ANSWER, ANSWER, ANSWER, ANSWER)
    async with proxy_over(kind, tmp_path, *scripts) as (proxy, upstream, freeze):
        assert text_of(payloads_of((await proxy.ask(ASK)).body)) == "It is noon."
        await until(lambda: proxy.services.store.waiting == 0)
        asked = count_questions(proxy, monkeypatch)
        with freeze():
            for _ in range(3):
                answer = await in_time(proxy.ask(AGAIN))
                assert text_of(payloads_of(answer.body)) == "It is noon."
                # The proxy sent the client's own version.
                assert [m["role"] for m in messages_of(upstream.requests[-1])] == [
                    "user",
                    "assistant",
                    "user",
                ]
            assert len(asked) == 1
            for method in ("GET", "DELETE"):
                gone = await in_time(proxy.ask(None, method=method, path="/v1/responses/resp_1"))
                assert (gone.status, gone.error["code"]) == (503, "store_unavailable")
                assert gone.header("retry-after") == "1"
            assert len(asked) == 1
            ready = await in_time(proxy.get("/readyz"))
            assert (ready.status, ready.json) == (200, {"status": "ok", "record": "unavailable"})
        upstream.scripts = (GONE,)

        async def back() -> bool:
            answer: Answer = await proxy.get("/v1/responses/resp_1")
            return answer.status == 404

        await until(back)
        upstream.scripts = (ANSWER,)

        async def restores() -> bool:
            # On a busy machine the look-up may take longer than a request waits for it.
            return (await proxy.ask(AGAIN)).header("x-toolrelay-restored") is not None

        await until(restores)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_turn_that_a_frozen_record_cannot_hold_is_said(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a frozen database cannot store a turn with a client call, the client gets an error in time."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("proxy.relay.memory.commit_waiter.SUSPEND_WAIT_S", 1.0)
    async with proxy_over(kind, tmp_path, ANSWER, MIXED) as (proxy, _, freeze):
        await proxy.ask(ASK)
        await until(lambda: proxy.services.store.waiting == 0)
        with freeze():
            answer = await in_time(proxy.ask({**ASK, "tools": [CLIENT_TOOL]}))
            assert answer.clean
            assert payloads_of(answer.body)[-1]["error"]["code"] == "store_unavailable"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_keys_of_a_frozen_record_delay_one_request(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys in a frozen database stay valid for a while, and then get a 503 at once; declared keys work on."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    keys = {"alice": declared(ALICE)}
    async with proxy_over(kind, tmp_path, ANSWER, keys=keys) as (proxy, _, freeze):
        secret = await made(proxy.services.store)

        async def served() -> bool:
            answer: Answer = await proxy.ask(ASK, bearer(secret))
            return answer.status == 200

        await until(served)  # PostgreSQL announces the new key a moment later
        with freeze():
            for _ in range(3):
                assert (await in_time(proxy.ask(ASK, bearer(secret)))).status == 200
            monkeypatch.setattr("proxy.server.auth.key_ring._BLIND_S", 0.0)
            monkeypatch.setattr("proxy.server.auth.key_ring._CHECK_EVERY_S", 0.0)
            for _ in range(3):
                refused = await in_time(proxy.ask(ASK, bearer(secret)))
                assert (refused.status, refused.error["code"]) == (503, "keys_unavailable")
            assert (await in_time(proxy.ask(ASK, bearer(ALICE)))).status == 200
        monkeypatch.setattr("proxy.server.auth.key_ring._BLIND_S", 10.0)
        await until(served)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_reports_of_a_frozen_record_have_an_end(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database is frozen, reports get a 503 after a timeout; afterwards they work again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    keys = {"alice": declared(ALICE, admin=True)}
    async with proxy_over(kind, tmp_path, ANSWER, keys=keys) as (proxy, _, freeze):

        async def reads(path: str) -> Answer:
            return await in_time(proxy.ask(None, bearer(ALICE), method="GET", path=path))

        assert (await proxy.ask(ASK, bearer(ALICE))).status == 200
        await until(lambda: proxy.services.store.waiting == 0)
        (run,) = await proxy.runs()
        with freeze(), monkeypatch.context() as impatient:
            impatient.setattr("proxy.api.admin.admin.REPORT_S", 0.2)
            for path in ("/admin/runs", f"/admin/runs/{run.id}"):
                refused = await reads(path)
                assert (refused.status, refused.error["code"]) == (503, "store_unavailable")

        async def back() -> bool:
            return (await reads("/admin/runs")).status == 200

        await until(back)


@pytest.mark.parametrize("on_error", ["open", "closed"])
async def test_a_frozen_redis_delays_one_request(tmp_path: Path, on_error: str) -> None:
    """The proxy asks a frozen Redis once; requests then pass uncounted or get a 503, as configured."""
    async with own_redis(tmp_path) as (url, pid):
        limits = {"requests": ["1000/minute"], "tool_calls": ["1000/minute"], "storage": url}
        async with looping(CALL, ANSWER, limits={**limits, "on_error": on_error}) as (proxy, upstream):
            upstream.scripts = (CALL, ANSWER)

            async def counted() -> bool:
                return (await proxy.ask(ASK)).header("x-ratelimit-limit-requests") == "1000"

            await until(counted)
            with frozen(pid):
                counters: Any = proxy.services.limiter._counters
                sent = 0
                send = counters._line._send

                async def counting(*arguments: Any) -> Any:
                    nonlocal sent
                    sent += 1
                    return await send(*arguments)

                counters._line._send = counting
                for _ in range(5):
                    answer = await in_time(proxy.ask(ASK))
                    if on_error == "open":
                        assert answer.status == 200
                        assert answer.header("x-ratelimit-limit-requests") is None
                    else:
                        assert (answer.status, answer.error["code"]) == (503, "limits_unavailable")
                assert sent <= 1
            await until(counted)


async def test_a_dead_network_before_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If connections to the database stay open but silent, the proxy queries it once, as if it was frozen."""
    from store_postgres import SERVER, need_postgres, new_schema

    need_postgres()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with new_schema() as url, silent_wire(SERVER) as wire:
        through = wire.of(url)
        async with looping(CALL, ANSWER, ANSWER, store={"url": through}) as (proxy, _):
            await proxy.ask(ASK)
            await until(lambda: proxy.services.store.waiting == 0)
            asked = count_questions(proxy, monkeypatch)
            wire.silent = True
            for _ in range(3):
                answer = await in_time(proxy.ask(AGAIN))
                assert text_of(payloads_of(answer.body)) == "It is noon."
            assert len(asked) == 1
            wire.cut()

            async def back() -> bool:
                return (await proxy.ask(AGAIN)).header("x-toolrelay-restored") is not None

            await until(back)


class Wire:
    """Forwards connections to a server, and drops their data while it is silent."""

    def __init__(self, host: str, port: int, own_port: int) -> None:
        self.host, self.port, self.own_port = host, port, own_port
        self.silent = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, url: str) -> str:
        """Return a URL that goes through this wire."""
        return url.replace(f"{self.host}:{self.port}", f"127.0.0.1:{self.own_port}")

    def cut(self) -> None:
        """Break all connections and let new ones through."""
        self.silent = False
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        theirs_in, theirs_out = await asyncio.open_connection(self.host, self.port)
        self._writers |= {writer, theirs_out}
        ways = ((reader, theirs_out), (theirs_in, writer))
        await asyncio.gather(*(self._pump(*way) for way in ways), return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not self.silent:
                writer.write(data)
        writer.transport.abort()


@asynccontextmanager
async def silent_wire(server: str) -> AsyncIterator[Wire]:
    """Run a wire to a server."""
    from urllib.parse import urlsplit

    parts = urlsplit(server)
    wire = Wire(parts.hostname or "127.0.0.1", parts.port or 5432, 0)
    listening = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.own_port = listening.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        wire.cut()
        listening.close()
        await listening.wait_closed()


async def test_what_the_record_has_no_part_in_waits_for_nothing(tmp_path: Path) -> None:
    """If the disk hangs, requests that need no look-up in the database are served as usual."""
    async with proxy_over("sqlite", tmp_path, whole(b'{"ok":true}')) as (proxy, _, freeze):
        with freeze():
            assert (await in_time(proxy.ask({"input": "x"}, path="/v1/moderations"))).status == 200
            assert (await in_time(proxy.get("/healthz"))).status == 200
