"""A client resumes a dropped stream at another worker of the same port; the two workers share a store."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agents_rig import Asked, Models, Turn
from client_keys import ALICE, BOB, bearer, declared
from probe_tools import WATCH, Watch
from raw_upstream import RawUpstream
from running_proxy import Answer, Conversation, Proxy, make_config, running
from waiting import LATE_S, until

from proxy.api.detached.shared_resumable import _OtherWorker
from proxy.net.channel import Channel
from proxy.server.peers import Answers, Peers

pytestmark = pytest.mark.both_loops

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


def say(asked: Asked) -> Turn:
    """Send a text and call a tool; after the tool's result, send another text."""
    return Turn("It is done.") if asked.results else Turn("Let me see.", calls=[(SLOW, {})])


@asynccontextmanager
async def workers(folder: Path) -> AsyncIterator[Workers]:
    """Run two workers of one server, which can ask each other."""
    peers = Peers(), Peers()

    def ask(other: Peers) -> Any:
        async def others(name: str, _: float) -> Answers:
            body = other.own_answer(name)
            return Answers() if body is None else Answers((body,))

        return others

    peers[0].ask_others, peers[1].ask_others = ask(peers[1]), ask(peers[0])
    async with RawUpstream(Models({"m": say})) as upstream, AsyncExitStack() as end_first:
        config = make_config(
            {"base_url": upstream.url, "wires": ("chat",)},
            modules=("probe_tools",),
            allow=(SLOW,),
            tools={"timeout_s": LATE_S, "keepalive_s": LATE_S},
            server={"send_timeout_s": LATE_S},
            store={"url": f"sqlite:///{folder / 'r.db'}"},
            keys={"alice": declared(ALICE), "bob": declared(BOB)},
        )
        first = await end_first.enter_async_context(running(config, peers=peers[0]))
        async with running(config, peers=peers[1]) as second:
            yield Workers(first, second, end_first)


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
    """The newest client gets the run, and the proxy cuts off the client that read at the other worker."""
    async with workers(tmp_path) as two:
        run_id, seen = await left(two.first, watch)
        async with two.second.sent(BODY, {**MINE, "x-toolrelay-resume": run_id}) as older:
            answer = await read_until(older, seen)
            async with two.first.sent(BODY, {**MINE, "x-toolrelay-resume": run_id}) as newer:
                await read_until(newer, seen)
                # The older client gets nothing more and no proper end.
                async for piece in older.pieces(answer):
                    answer.body += piece
                newer.leave()
        assert (answer.body, answer.clean) == (seen, False)
        async with two.second.sent(BODY, {**MINE, "x-toolrelay-resume": run_id}) as gone:
            await read_until(gone, seen)
            gone.leave()
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
            # A worker can ask no other about these ids: one is not UTF-8, the other is too long.
            strange = [await resume(worker, name) for name in ("run_\xff", "run_" + "0" * 2000)]
            assert [one.status for one in strange] == [404, 404]
        watch.go_on.set()
        assert (await resume(two.second, run_id)).status == 200


async def test_the_worker_with_the_run_ends(tmp_path: Path, watch: Watch) -> None:
    """If the worker with the run stops, a client at the other worker gets an error event, and later a 404."""
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
    assert after.status == 404


async def test_a_run_waits_for_a_client_of_another_worker_that_does_not_read() -> None:
    """The run waits once a few pieces are unread, and gets a connection error once that worker is gone."""
    near, far = socket.socketpair()
    channel = await Channel.over(near)
    stream = _OtherWorker(channel)
    piece = b"x" * (1 << 20)
    while (wait := stream.push(piece)) is None:
        pass
    waiting = asyncio.ensure_future(wait)
    assert channel.unread < 3 * len(piece)
    far.close()
    with pytest.raises(ConnectionError):
        await waiting
    with pytest.raises(ConnectionError):
        stream.push(piece)
    channel.close()
