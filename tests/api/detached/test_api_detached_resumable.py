"""Resumed streams: a run goes on without its client, which can come back and get the whole stream."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agents_rig import Asked, Models, Turn
from chat_script import payloads_of, text_of
from client_keys import ALICE, BOB, bearer, declared
from probe_tools import WATCH, Watch
from raw_upstream import RawUpstream
from running_proxy import Answer, Proxy, make_config, running
from waiting import LATE_S, until

from proxy.api.detached import resumable
from proxy.api.detached.logs.event_log import LocalLogs
from proxy.api.detached.resumable import ResumableRuns
from proxy.base.errors import RequestError
from proxy.http.headers import Headers
from proxy.relay.base import ClientStream
from proxy.relay.starting.runs import StartedRun

SLOW, BUY = "probe_tools__slow", "probe_tools__slow_buy"
ON = {"x-toolrelay-resume": "on"}
QUESTION: Any = [{"role": "user", "content": "Do it."}]
DIALECTS = [
    ("/v1/chat/completions", {"model": "m", "messages": QUESTION, "stream": True}),
    ("/v1/responses", {"model": "m", "input": "Do it.", "stream": True}),
    ("/v1/messages", {"model": "m", "max_tokens": 99, "messages": QUESTION, "stream": True}),
    ("/api/chat", {"model": "m", "messages": QUESTION}),
]


@pytest.fixture
def watch() -> Watch:
    """Return the record of what the probe tools do, reset for this test."""
    WATCH.reset()
    return WATCH


def model(tool: str = SLOW) -> Models:
    """Return a model that sends a text, calls a tool and, after its result, sends another text."""

    def say(asked: Asked) -> Turn:
        return Turn("It is done.") if asked.results else Turn("Let me see.", calls=[(tool, {})])

    return Models({"m": say})


@asynccontextmanager
async def served(models: Models, **config: Any) -> AsyncIterator[Proxy]:
    """Run a proxy in front of an upstream that speaks Chat Completions; clients may use any dialect."""
    tools = {"timeout_s": LATE_S, "keepalive_s": LATE_S, **config.pop("tools", {})}
    async with (
        RawUpstream(models) as upstream,
        running(
            make_config(
                {"base_url": upstream.url, "wires": ("chat",)},
                modules=("probe_tools",),
                allow=(SLOW, BUY),
                tools=tools,
                server={"send_timeout_s": LATE_S},
                **config,
            )
        ) as proxy,
    ):
        yield proxy


async def left(
    proxy: Proxy, path: str, body: Any, watch: Watch, headers: dict[str, str] | None = None
) -> tuple[str, bytes]:
    """Begin a stream, leave it while the tool runs, and return the run's id and the bytes received."""
    async with proxy.sent(body, {**ON, **(headers or {})}, path=path) as conversation:
        answer = await conversation.head()
        assert answer.status == 200
        async for piece in conversation.pieces(answer):
            answer.body += piece
            if b"see." in answer.body:
                break
        await until(lambda: bool(watch.started))
        conversation.leave()
    run_id = answer.header("x-toolrelay-run")
    assert run_id is not None
    return run_id, answer.body


async def resume(proxy: Proxy, path: str, body: Any, run_id: str, **headers: str) -> Answer:
    """Send the same request with the run's id."""
    return await proxy.ask(body, {"x-toolrelay-resume": run_id, **headers}, path=path)


@pytest.mark.parametrize(("path", "body"), DIALECTS)
async def test_a_dropped_stream_is_resumed_on_every_dialect(
    watch: Watch, path: str, body: dict[str, Any]
) -> None:
    """A client that resumes gets every byte that it had and then the rest, as often as it asks."""
    models = model()
    async with served(models) as proxy:
        run_id, seen = await left(proxy, path, body, watch)
        async with proxy.sent(body, {"x-toolrelay-resume": run_id}, path=path) as conversation:
            answer = await conversation.head()
            async for piece in conversation.pieces(answer):
                answer.body += piece
                if len(answer.body) >= len(seen):
                    watch.go_on.set()
        again = await resume(proxy, path, body, run_id)
        detail = await proxy.run_reaches("completed")
    assert answer.clean
    assert answer.body.startswith(seen)
    assert len(answer.body) > len(seen)
    assert again.body == answer.body
    assert again.header("content-type") == answer.header("content-type")
    assert again.header("x-toolrelay-run") == run_id == detail.run.id
    assert watch.finished == ["slow"]
    assert len(models.asked["m"]) == 2


async def test_a_resumed_stream_is_that_of_a_client_that_stayed(watch: Watch) -> None:
    """A client that resumes after the end of the run gets one ordinary stream with the whole text."""
    path, body = DIALECTS[0]
    async with served(model()) as proxy:
        run_id, _ = await left(proxy, path, body, watch)
        watch.go_on.set()
        await proxy.run_reaches("completed")
        answer = await resume(proxy, path, body, run_id)
    assert text_of(payloads_of(answer.body)) == "Let me see.\n\nIt is done."


async def test_a_reply_that_is_not_streamed_is_resumed_too(watch: Watch) -> None:
    """A client that left before the proxy sent anything gets the whole answer when it resumes."""
    body = {"model": "m", "messages": QUESTION}
    async with served(model()) as proxy:
        async with proxy.sent(body, ON):
            await until(lambda: bool(watch.started))
        (run,) = await proxy.runs()
        watch.go_on.set()
        await proxy.run_reaches("completed")
        answer = await resume(proxy, "/v1/chat/completions", body, run.id)
    assert answer.json["choices"][0]["message"]["content"] == "Let me see.\n\nIt is done."


async def test_nobody_else_resumes_a_run(watch: Watch) -> None:
    """Only its own caller with the same request resumes a run; to another caller its id looks unknown."""
    path, body = DIALECTS[0]
    keys = {"alice": declared(ALICE), "bob": declared(BOB)}
    async with served(model(), keys=keys) as proxy:
        run_id, _ = await left(proxy, path, body, watch, bearer(ALICE))
        stolen = await resume(proxy, path, body, run_id, **bearer(BOB))
        unknown = await resume(proxy, path, body, "run_" + "0" * 32, **bearer(BOB))
        other = {**body, "messages": [{"role": "user", "content": "Something else."}]}
        changed = await resume(proxy, path, other, run_id, **bearer(ALICE))
        watch.go_on.set()
        own = await resume(proxy, path, body, run_id, **bearer(ALICE))
    assert (stolen.status, unknown.status, changed.status, own.status) == (404, 404, 400, 200)
    assert stolen.error == unknown.error
    assert stolen.error["code"] == "run_not_resumable"


async def test_a_run_whose_client_does_not_come_back_ends(watch: Watch) -> None:
    """After ``tools.resume_s`` seconds without a client the proxy cancels a run and keeps nothing of it."""
    path, body = DIALECTS[0]
    async with served(model(), tools={"resume_s": 0.2}) as proxy:
        run_id, _ = await left(proxy, path, body, watch)
        await proxy.run_reaches("cancelled")
        assert watch.cancelled == ["slow"]

        async def gone() -> bool:
            return (await resume(proxy, path, body, run_id)).status == 404

        await until(gone)


@pytest.mark.parametrize("resume_s", [0, LATE_S], ids=["off", "on"])
async def test_without_the_header_a_run_ends_with_its_client(watch: Watch, resume_s: float) -> None:
    """A run without the header is cancelled with its client; with ``resume_s`` 0 the header is a 400."""
    path, body = DIALECTS[0]
    async with served(model(), tools={"resume_s": resume_s}) as proxy:
        async with proxy.sent(body, path=path):
            await until(lambda: bool(watch.started))
        detail = await proxy.run_reaches("cancelled")
        assert watch.cancelled == ["slow"]
        again = await resume(proxy, path, body, detail.run.id)
        assert (again.status, again.error["param"]) == (404 if resume_s else 400, "x-toolrelay-resume")
        if not resume_s:
            refused = await proxy.ask(body, ON, path=path)
            assert (refused.status, refused.error["param"]) == (400, "x-toolrelay-resume")
        assert len(await proxy.runs()) == 1


async def test_what_is_kept_for_a_resumed_stream_is_bounded(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is too large to keep reaches a client that stays, but cannot be resumed."""
    monkeypatch.setattr(resumable, "_MAX_BYTES", 300)
    path, body = DIALECTS[0]
    async with served(model()) as proxy:
        watch.go_on.set()
        answer = await proxy.ask(body, ON, path=path)
        run_id = answer.header("x-toolrelay-run")
        assert run_id is not None
        again = await resume(proxy, path, body, run_id)
        assert (await proxy.only_run()).run.status == "completed"
    assert text_of(payloads_of(answer.body)) == "Let me see.\n\nIt is done."
    assert again.status == 404
    assert json.loads(again.body)["error"]["code"] == "run_not_resumable"


class SlowClient:
    """A client connection that takes one piece of the stream for each step that the test allows."""

    stopped_by_server = False
    origin = ""
    started = True

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.ended = ""
        self._steps = asyncio.Semaphore(0)

    def blank_out(self, secrets: object) -> None: ...

    def set_header(self, name: str, value: str) -> None: ...

    def start(self, status: int, headers: Headers) -> None:
        self.started = True

    def flush(self) -> None: ...

    def push(self, data: bytes, last: bool = False) -> Any:
        if self.ended:
            raise ConnectionResetError("closed")
        self.got.append(data)
        return self._taken()

    async def _taken(self) -> None:
        await self._steps.acquire()
        if self.ended == "aborted":
            raise ConnectionResetError("closed")

    async def write(self, data: bytes) -> None:
        await self.push(data)

    def before_finish(self) -> None:
        return None

    def finish(self) -> None:
        self.ended = "finished"

    def abort(self) -> None:
        self.ended = "aborted"
        self.read()

    def read(self, steps: int = 99) -> None:
        """Take this many more pieces."""
        for _ in range(steps):
            self._steps.release()


async def turns() -> None:
    """Let every task go on as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


class KeptRun:
    """A run that has sent three pieces to a client that left; it goes on when the test sets ``more``."""

    def __init__(self) -> None:
        self.logs = LocalLogs()
        self.runs = ResumableRuns(self.logs, cast("Any", None), LATE_S)
        self.more, self.last = asyncio.Event(), b"d"

    def serve(self, client: ClientStream) -> Coroutine[Any, Any, None]:
        """Serve the run to its first client."""
        job = SimpleNamespace(identity=SimpleNamespace(run_id="r", caller="me"))
        stream = self.runs.keep(client, "r", "me", b"")
        return self.runs.serve(StartedRun(cast("Any", job), stream, cast("Any", self)), stream)

    async def run(self, job: Any, stream: ClientStream) -> None:
        stream.start(200, ())
        for piece in (b"a", b"b", b"c"):
            await stream.write(piece)
        await self.more.wait()
        await stream.write(self.last)
        stream.finish()

    async def left(self) -> None:
        """Serve the first client until it leaves."""
        first = SlowClient()
        first.read()
        serving = asyncio.create_task(self.serve(first))
        await turns()
        serving.cancel()
        await asyncio.wait({serving})

    def resumed(self) -> tuple[SlowClient, asyncio.Task[None]]:
        """Return a client that resumes the run, and the task that serves it."""
        client = SlowClient()
        client.started = False
        return client, asyncio.create_task(self.runs.resume("r", "me", b"", client))


async def test_two_clients_that_come_back_both_get_the_stream() -> None:
    """A connection that nobody reads any more does not keep its client from coming back over another one."""
    kept = KeptRun()
    await kept.left()
    older, stuck = kept.resumed()
    await turns()
    newer, winning = kept.resumed()
    newer.read()
    await turns()
    kept.more.set()
    await asyncio.wait_for(winning, LATE_S)
    assert (b"".join(newer.got), newer.ended) == (b"abcd", "finished")
    assert older.got == [b"a"]
    stuck.cancel()
    await kept.runs.drain(1)


async def test_a_run_does_not_wait_for_a_client_that_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first connection takes no more bytes, the run goes on as soon as the client reads elsewhere."""
    monkeypatch.setattr(resumable, "_FOLLOWED_S", 0.01)
    kept = KeptRun()
    first = SlowClient()
    serving = asyncio.create_task(kept.serve(first))
    await turns()
    assert first.got == [b"a"]
    newer, winning = kept.resumed()
    newer.read()
    kept.more.set()
    await asyncio.wait_for(winning, LATE_S)
    assert (b"".join(newer.got), newer.ended) == (b"abcd", "finished")
    assert (first.got, first.ended) == ([b"a"], "aborted")
    with pytest.raises(ConnectionResetError):
        await serving
    await kept.runs.drain(1)


async def test_no_client_gets_a_stream_with_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a run becomes too large to keep while its client catches up, the client's connection is cut."""
    monkeypatch.setattr(resumable, "_MAX_BYTES", 200)
    kept = KeptRun()
    kept.last = b"d" * 201
    await kept.left()
    client, resuming = kept.resumed()
    client.read(3)
    await turns()
    kept.more.set()
    await asyncio.wait({resuming}, timeout=LATE_S)
    assert isinstance(resuming.exception(), ConnectionResetError)
    assert (client.got, client.ended) == ([b"a", b"b", b"c"], "aborted")
    await kept.runs.drain(1)


async def test_a_run_that_is_read_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of a client that left ends after its time only if nobody reads it then."""
    kept = KeptRun()
    kept.runs._keep_s = 0.05
    await kept.left()
    client, resuming = kept.resumed()
    client.read()
    (run,) = kept.runs._runs.values()
    first = run.timer
    await until(lambda: run.timer is not first)
    resuming.cancel()
    await asyncio.wait({resuming})
    await asyncio.wait({run.task}, timeout=LATE_S)
    assert run.task.cancelled()
    late, refused = kept.resumed()
    await asyncio.wait({refused})
    assert isinstance(error := refused.exception(), RequestError)
    assert (error.status, late.got) == (404, [])


async def test_a_run_whose_client_is_gone_when_it_sends_ends_in_its_time_too() -> None:
    """If the run itself finds the connection closed first, the timer that ends it starts all the same."""
    kept = KeptRun()
    client = SlowClient()
    client.read()
    serving = asyncio.create_task(kept.serve(client))
    await turns()
    client.ended = "closed"
    (run,) = kept.runs._runs.values()
    run.stream.push(b"x")
    serving.cancel()
    await asyncio.wait({serving})
    assert run.timer is not None, "the run would go on without a client"
    await kept.runs.drain(1)
