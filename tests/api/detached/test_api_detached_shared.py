"""A client resumes a dropped stream at another worker or host; the two share a record and a Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agents_rig import Asked, Models, Turn
from client_keys import ALICE, BOB, bearer, declared
from msgspec.structs import replace
from own_servers import frozen, own_redis
from probe_tools import WATCH, Watch
from raw_upstream import RawUpstream
from redis.asyncio import Redis
from running_proxy import Answer, Conversation, Proxy, make_config, running
from waiting import LATE_S, PATIENCE_S, until

SLOW = "probe_tools__slow"
BODY: Any = {"model": "m", "messages": [{"role": "user", "content": "Do it."}], "stream": True}
MINE = bearer(ALICE)


@pytest.fixture
def watch() -> Watch:
    """Return the record of what the probe tools do, reset for this test."""
    WATCH.reset()
    return WATCH


@dataclass
class Workers:
    """Two workers; the test can end the first before the second."""

    first: Proxy
    second: Proxy
    end_first: AsyncExitStack
    redis: str
    redis_pid: int

    async def lose_logs(self) -> None:
        """Let every log expire."""
        async with Redis.from_url(self.redis) as client:
            await client.flushall()


def say(asked: Asked) -> Turn:
    """Send a text and call a tool; after the tool's result, send another text."""
    return Turn("It is done.") if asked.results else Turn("Let me see.", calls=[(SLOW, {})])


@asynccontextmanager
async def workers(folder: Path, *, resume_s: float = 60, shares: bool = True) -> AsyncIterator[Workers]:
    """Run two servers with one record and one Redis."""
    (folder / "redis").mkdir()
    async with (
        own_redis(folder / "redis", "--save", "") as (redis, redis_pid),
        RawUpstream(Models({"m": say})) as upstream,
        AsyncExitStack() as end_first,
    ):
        config = make_config(
            {"base_url": upstream.url, "wires": ("chat",)},
            modules=("probe_tools",),
            allow=(SLOW,),
            tools={"timeout_s": LATE_S, "keepalive_s": LATE_S, "resume_s": resume_s},
            server={"send_timeout_s": LATE_S},
            store={"url": f"sqlite:///{folder / 'r.db'}"},
            limits={"requests": (), "tool_calls": (), "storage": redis if shares else "memory://"},
            keys={"alice": declared(ALICE), "bob": declared(BOB)},
        )
        first = await end_first.enter_async_context(running(config))
        async with running(config) as second:
            yield Workers(first, second, end_first, redis, redis_pid)


async def left(worker: Proxy, watch: Watch) -> tuple[str, bytes]:
    """Begin a stream, leave it while the tool runs, and return the run's id and the bytes received."""
    async with worker.sent(BODY, {**MINE, "x-toolrelay-resume": "on"}) as conversation:
        answer = await read_until(conversation, b"see.")
        await until(lambda: bool(watch.started))
        conversation.leave()
    return answer.header("x-toolrelay-run") or "", answer.body


async def read_until(conversation: Conversation, words: bytes) -> Answer:
    """Read an answer until these words have come."""
    answer = await conversation.head()
    assert answer.status == 200
    async for piece in conversation.pieces(answer):
        answer.body += piece
        if words in answer.body:
            return answer
    raise AssertionError(f"ended without {words!r}: {answer.body!r}")


async def resume(worker: Proxy, run_id: str, body: Any = BODY, key: str = ALICE) -> Answer:
    """Send the same request with the run's id."""
    return await worker.ask(body, {**bearer(key), "x-toolrelay-resume": run_id})


async def test_a_stream_is_resumed_at_another_worker(tmp_path: Path, watch: Watch) -> None:
    """The client gets all bytes again and then the rest, during the run and after it, from one run only."""
    async with workers(tmp_path) as two:
        run_id, seen = await left(two.first, watch)
        async with two.second.sent(BODY, {**MINE, "x-toolrelay-resume": run_id}) as conversation:
            answer = await read_until(conversation, seen)
            watch.go_on.set()
            async for piece in conversation.pieces(answer):
                answer.body += piece
        again = [await resume(worker, run_id) for worker in (two.second, two.first)]
        assert len(await two.first.runs()) == 1
    assert answer.clean
    assert b"It is done." in answer.body
    for one in again:
        assert (one.body, one.clean) == (answer.body, True)
        for name in ("x-toolrelay-run", "content-type"):
            assert one.header(name) == answer.header(name)
    assert answer.header("x-toolrelay-run") == run_id
    assert watch.finished == ["slow"]


async def test_a_client_leaves_one_worker_and_comes_back_to_the_other(tmp_path: Path, watch: Watch) -> None:
    """A client reads at one worker, then at the other, and gets the whole stream in the end."""
    async with workers(tmp_path) as two:
        run_id, seen = await left(two.first, watch)
        for worker in (two.second, two.first, two.second):
            async with worker.sent(BODY, {**MINE, "x-toolrelay-resume": run_id}) as conversation:
                await read_until(conversation, seen)
                conversation.leave()
        watch.go_on.set()
        whole = await resume(two.second, run_id)
    assert whole.clean
    assert b"It is done." in whole.body


async def test_nobody_else_resumes_it_there_either(tmp_path: Path, watch: Watch) -> None:
    """At either worker, another caller gets the same 404 as for an unknown id, and another request a 400."""
    async with workers(tmp_path) as two:
        run_id, _ = await left(two.first, watch)
        for worker in (two.first, two.second):
            stolen, unknown = await resume(worker, run_id, key=BOB), await resume(worker, "run_" + "0" * 32)
            changed = await resume(worker, run_id, {**BODY, "temperature": 0})
            assert (stolen.status, unknown.status, changed.status) == (404, 404, 400)
            assert stolen.error == unknown.error
            assert {stolen.error["code"], changed.error["code"]} == {"run_not_resumable"}
            # Odd ids are unknown, too: one is not UTF-8, one is too long, one looks like an id and a caller.
            odd = ("run_\xff", "run_" + "0" * 2000, f"{run_id} config:alice")
            strange = [await resume(worker, name, key=BOB) for name in odd]
            assert [one.status for one in strange] == [404, 404, 404]
        watch.go_on.set()
        assert (await resume(two.second, run_id)).status == 200


async def test_the_worker_with_the_run_ends(tmp_path: Path, watch: Watch) -> None:
    """If the worker with the run stops, a client at the other worker gets an error event, also later."""
    async with workers(tmp_path) as two:
        run_id, seen = await left(two.first, watch)
        async with two.second.sent(BODY, {**MINE, "x-toolrelay-resume": run_id}) as conversation:
            answer = await read_until(conversation, seen)
            ending = asyncio.create_task(two.end_first.aclose())
            async for piece in conversation.pieces(answer):
                answer.body += piece
            await ending
        after = await resume(two.second, run_id)
    assert answer.clean
    assert b'"error"' in answer.body[len(seen) :]
    assert (after.status, after.body) == (200, answer.body)


async def test_a_run_that_is_read_elsewhere_goes_on(tmp_path: Path, watch: Watch) -> None:
    """A run whose client reads at another worker does not end, however long ago it left the first one."""
    async with workers(tmp_path, resume_s=0.3) as two:
        run_id, seen = await left(two.first, watch)
        async with two.second.sent(BODY, {**MINE, "x-toolrelay-resume": run_id}) as conversation:
            answer = await read_until(conversation, seen)
            await asyncio.sleep(1.0)  # Three times as long as a run goes on that nobody reads.
            watch.go_on.set()
            async for piece in conversation.pieces(answer):
                answer.body += piece
    assert answer.clean
    assert b"It is done." in answer.body


async def test_a_run_whose_process_died_is_run_anew(tmp_path: Path, watch: Watch) -> None:
    """If the record says that the process of a run died, the request that comes back gets a new run."""
    async with workers(tmp_path) as two:
        run_id, _ = await left(two.first, watch)
        (run,) = await two.first.runs()
        await two.end_first.aclose()
        await two.lose_logs()
        stranger = await resume(two.second, run_id, key=BOB)
        store = two.second.services.store
        store.put_run(replace(run, status="interrupted"))
        assert await store.wait_until_visible(PATIENCE_S)
        watch.go_on.set()
        answer = await resume(two.second, run_id)
        stolen = await resume(two.second, run_id, key=BOB)
    assert (stranger.status, stolen.status) == (404, 404)
    assert (answer.status, answer.clean) == (200, True)
    assert b"It is done." in answer.body
    assert answer.header("x-toolrelay-run") != run_id


async def test_a_redis_that_stands_still_breaks_no_run(tmp_path: Path, watch: Watch) -> None:
    """While Redis stands still, the client of a run gets all of it, and others cannot resume it. They can
    once Redis goes on."""
    async with workers(tmp_path) as two:
        async with two.first.sent(BODY, {**MINE, "x-toolrelay-resume": "on"}) as conversation:
            answer = await read_until(conversation, b"see.")
            run_id = answer.header("x-toolrelay-run") or ""
            with frozen(two.redis_pid):
                watch.go_on.set()
                async for piece in conversation.pieces(answer):
                    answer.body += piece
                meanwhile = await resume(two.second, run_id)
        assert answer.clean
        assert b"It is done." in answer.body
        assert meanwhile.status == 404

        async def resumes() -> bool:
            return (await resume(two.second, run_id)).body == answer.body

        await until(resumes)


async def test_without_redis_only_the_worker_with_the_run_resumes_it(tmp_path: Path, watch: Watch) -> None:
    """A worker that cannot read the run answers 404, and says why; the run itself goes on."""
    async with workers(tmp_path, shares=False) as two:
        run_id, _ = await left(two.first, watch)
        elsewhere = await resume(two.second, run_id)
        watch.go_on.set()
        here = await resume(two.first, run_id)
    assert (elsewhere.status, here.status) == (404, 200)
    assert "shares no Redis" in elsewhere.error["message"]
