"""A dropped stream is resumed: the run goes on without its client, who gets all of it again."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agents_rig import Asked, Models, Turn
from chat_script import payloads_of, text_of
from client_keys import ALICE, BOB, bearer, declared
from probe_tools import WATCH, Watch
from raw_upstream import RawUpstream
from running_proxy import Answer, Proxy, make_config, running
from waiting import LATE_S, until

from proxy.http.headers import Headers
from proxy.relay.base import ClientStream
from proxy.server.detached import resumable
from proxy.server.detached.resumable import ResumableRuns

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
    """What the probe tools do in this test."""
    WATCH.reset()
    return WATCH


def model(tool: str = SLOW) -> Models:
    """A model that says a word, calls a tool and says what came of it."""

    def say(asked: Asked) -> Turn:
        return Turn("It is done.") if asked.results else Turn("Let me see.", calls=[(tool, {})])

    return Models({"m": say})


@asynccontextmanager
async def served(models: Models, **config: Any) -> AsyncIterator[Proxy]:
    """A proxy before an upstream that speaks Chat, asked in any dialect."""
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
    """Begin a stream and leave it while the tool runs; the run's id, and what was seen."""
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
    """The same request with the run's id."""
    return await proxy.ask(body, {"x-toolrelay-resume": run_id, **headers}, path=path)


@pytest.mark.parametrize(("path", "body"), DIALECTS)
async def test_a_dropped_stream_is_resumed_on_every_dialect(
    watch: Watch, path: str, body: dict[str, Any]
) -> None:
    """The client that comes back gets every byte that it had, and then the rest, as often as it asks."""
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
    """What is put together from both parts is one ordinary stream."""
    path, body = DIALECTS[0]
    async with served(model()) as proxy:
        run_id, _ = await left(proxy, path, body, watch)
        watch.go_on.set()
        await proxy.run_reaches("completed")
        answer = await resume(proxy, path, body, run_id)
    assert text_of(payloads_of(answer.body)) == "Let me see.\n\nIt is done."


async def test_a_reply_that_is_not_streamed_is_resumed_too(watch: Watch) -> None:
    """A client that left before anything was sent gets the whole answer."""
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
    """A run is resumed by its caller, with the request that it answers; an unknown id looks the same."""
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
    """After ``tools.resume_s`` seconds without a client a run is cancelled, and nothing of it is kept."""
    path, body = DIALECTS[0]
    async with served(model(), tools={"resume_s": 0.2}) as proxy:
        run_id, _ = await left(proxy, path, body, watch)
        await proxy.run_reaches("cancelled")
        assert watch.cancelled == ["slow"]

        async def gone() -> bool:
            return (await resume(proxy, path, body, run_id)).status == 404

        await until(gone)


async def test_without_the_header_a_run_ends_with_its_client(watch: Watch) -> None:
    """What did not ask to be resumed is not, and where it is switched off asking is an error."""
    path, body = DIALECTS[0]
    async with served(model(), tools={"resume_s": 0}) as proxy:
        refused = await proxy.ask(body, ON, path=path)
        assert (refused.status, refused.error["param"]) == (400, "x-toolrelay-resume")
        async with proxy.sent(body, path=path):
            await until(lambda: bool(watch.started))
        await proxy.run_reaches("cancelled")


async def test_what_is_kept_for_a_resumed_stream_is_bounded(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is too long to be kept reaches a client that stays, and cannot be resumed."""
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
    """A connection that takes one piece for each step of its reader."""

    stopped_by_server = False
    origin = ""
    started = True

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.ended = ""
        self._steps = asyncio.Semaphore(0)

    def blank_out(self, secrets: object) -> None: ...

    def set_header(self, name: str, value: str) -> None: ...

    def start(self, status: int, headers: Headers) -> None: ...

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
        """Take so many pieces more."""
        for _ in range(steps):
            self._steps.release()


async def turns() -> None:
    """Let every task go on as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


class KeptRun:
    """A run that has sent three pieces, whose client has left, and that goes on when it is told to."""

    def __init__(self) -> None:
        self.runs = ResumableRuns(LATE_S)
        self.more, self.last = asyncio.Event(), b"d"

    async def _work(self, stream: ClientStream) -> None:
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
        serving = asyncio.create_task(self.runs.serve("r", "me", b"", first, self._work))
        await turns()
        serving.cancel()
        await asyncio.wait({serving})

    def resumed(self) -> tuple[SlowClient, asyncio.Task[None]]:
        """A client that comes back."""
        client = SlowClient()
        return client, asyncio.create_task(self.runs.resume("r", "me", b"", client))


async def test_the_newest_of_two_clients_that_come_back_at_once_gets_the_stream() -> None:
    """The other one's connection is cut, and the run does not end because that one has left."""
    kept = KeptRun()
    await kept.left()
    older, losing = kept.resumed()
    await turns()
    newer, winning = kept.resumed()
    await turns()
    assert older.ended == "aborted"
    newer.read()
    await turns()
    assert isinstance(losing.exception(), ConnectionResetError)
    assert kept.runs._runs["r"].timer is None, "the run would end, though it has a client"
    kept.more.set()
    await asyncio.wait_for(winning, LATE_S)
    assert (b"".join(newer.got), newer.ended) == (b"abcd", "finished")
    assert older.got == [b"a"]
    await kept.runs.drain(1)


async def test_no_client_gets_a_stream_with_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that becomes too long while its client catches up: the connection is cut."""
    monkeypatch.setattr(resumable, "_MAX_BYTES", 10)
    kept = KeptRun()
    kept.last = b"d" * 11
    await kept.left()
    client, resuming = kept.resumed()
    await turns()
    kept.more.set()
    await turns()
    client.read()
    await asyncio.wait({resuming}, timeout=LATE_S)
    assert isinstance(resuming.exception(), ConnectionResetError)
    assert (client.got, client.ended) == ([b"a"], "aborted")
    await kept.runs.drain(1)


async def test_a_run_whose_client_is_gone_when_it_sends_ends_in_its_time_too() -> None:
    """The run may find a closed connection before the request of that client is cancelled."""
    kept = KeptRun()
    client = SlowClient()
    client.read()
    serving = asyncio.create_task(kept.runs.serve("r", "me", b"", client, kept._work))
    await turns()
    client.ended = "closed"
    run = kept.runs._runs["r"]
    run.stream.push(b"x")
    serving.cancel()
    await asyncio.wait({serving})
    assert run.timer is not None, "the run would go on without a client"
    await kept.runs.drain(1)
