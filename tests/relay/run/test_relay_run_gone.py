"""Clients that leave: what is cancelled, what goes on, and what the record says (rule E4)."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from chat_script import call, content, finish, role, stream
from looping import ANSWER, ASK, called, looping
from probe_tools import Watch
from raw_upstream import HANG, Step, chunk, head
from running_proxy import ONLY_DEPARTURE, Conversation, Proxy
from waiting import PATIENCE_S, until

pytestmark = pytest.mark.both_loops

SSE_HEAD = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
BEGUN: list[Step] = [SSE_HEAD, chunk(role() + content("a")), HANG]
FIRST = stream(
    role(), content("Wait."), call("call_1", "core__get_current_time", '{"timezone":"UTC"}'), finish()
)
PLAIN = {**ASK, "stream": False}

both = pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["none offered", "offered"])


async def finished(watch: Watch, *names: str) -> None:
    """Wait until exactly these tools have finished."""
    await until(lambda: watch.finished == list(names))


async def leaving(proxy: Proxy, ask: object, when: Callable[[Conversation], Awaitable[None]]) -> None:
    """Send a request, wait for a moment in its answer, and leave."""
    async with proxy.sent(ask) as conversation:
        async with asyncio.timeout(PATIENCE_S):
            await when(conversation)
        conversation.leave()


@both
async def test_leaving_in_the_middle_of_a_stream(allow: tuple[str, ...]) -> None:
    """Rule E4: when a client leaves, the proxy closes the upstream call and the run is cancelled."""
    async with looping(BEGUN, allow=allow, **ONLY_DEPARTURE) as (proxy, upstream):

        async def reading(conversation: Conversation) -> None:
            await conversation.reader.readuntil(b'"a"')

        await leaving(proxy, ASK, reading)
        await upstream.all_closed()
        if allow:
            detail = await proxy.run_reaches("cancelled")
            assert [turn.error_code for turn in detail.turns] == [detail.run.error_code] == ["client_gone"]


@both
@pytest.mark.parametrize("streaming", [True, False])
async def test_leaving_before_the_first_byte(streaming: bool, allow: tuple[str, ...]) -> None:
    """Rule E4: the proxy also closes an upstream call that has no answer yet."""
    async with looping([HANG], allow=allow, **ONLY_DEPARTURE) as (proxy, upstream):
        await leaving(proxy, ASK if streaming else PLAIN, lambda _: upstream.asked(1))
        await upstream.all_closed()
        if allow:
            await proxy.run_reaches("cancelled")


async def test_leaving_while_a_reading_tool_runs(watch: Watch) -> None:
    """Rule E4: a tool that only reads is cancelled and recorded as such, and no further turn follows."""
    async with looping(called(("call_1", "probe_tools__slow", "{}")), ANSWER, **ONLY_DEPARTURE) as (
        proxy,
        upstream,
    ):
        await leaving(proxy, ASK, lambda _: waited(watch))
        detail = await proxy.run_reaches("cancelled")
        assert watch.cancelled == ["slow"]
        assert [i.status for i in detail.invocations] == ["cancelled"]
        assert len(upstream.requests) == 1


async def waited(watch: Watch) -> None:
    """Wait until a probe tool has started."""
    await watch.has_started.wait()


async def test_leaving_while_a_tool_changes_the_world(watch: Watch) -> None:
    """Rules E4, R1: a side effect that has begun finishes and is recorded, and no further turn follows."""
    async with looping(called(("call_1", "probe_tools__slow_buy", "{}")), ANSWER, **ONLY_DEPARTURE) as (
        proxy,
        upstream,
    ):
        await leaving(proxy, ASK, lambda _: waited(watch))
        await proxy.run_reaches("cancelled")
        assert watch.cancelled == []
        watch.go_on.set()
        await finished(watch, "slow_buy")

        async def closed() -> bool:
            return (await proxy.only_run()).invocations[0].status == "success"

        await until(closed)
        assert len(upstream.requests) == 1


async def test_leaving_between_effects(watch: Watch) -> None:
    """Rule E4: the side effect that runs finishes, and those after it in the same turn do not start."""
    first = called(("call_1", "probe_tools__slow_buy", "{}"), ("call_2", "probe_tools__buy", '{"what":"x"}'))
    async with looping(first, ANSWER, **ONLY_DEPARTURE) as (proxy, upstream):
        await leaving(proxy, ASK, lambda _: waited(watch))
        await proxy.run_reaches("cancelled")
        watch.go_on.set()
        await finished(watch, "slow_buy")
        await asyncio.sleep(0.1)
        assert watch.finished == ["slow_buy"]
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("follow", [[HANG], BEGUN], ids=["silent", "in text"])
async def test_leaving_during_a_follow_up(follow: list[Step]) -> None:
    """Rule E4: when a client leaves in a later turn, the proxy closes that upstream call, too."""
    async with looping(FIRST, follow, **ONLY_DEPARTURE) as (proxy, upstream):
        await leaving(proxy, ASK, lambda _: upstream.asked(2))
        await upstream.all_closed()
        detail = await proxy.run_reaches("cancelled")
        assert [turn.error_code for turn in detail.turns] == [None, "client_gone"]
        assert detail.run.turns == 2


async def test_leaving_while_a_follow_up_waits_to_be_retried() -> None:
    """Rule E4: the proxy does not retry a turn if the client has left."""
    slow: list[Step] = [head("Retry-After: 1", "Content-Length: 0", status="429 Slow"), 0.0]
    async with looping(FIRST, slow, **ONLY_DEPARTURE) as (proxy, upstream):
        await leaving(proxy, ASK, lambda _: upstream.asked(2))
        await proxy.run_reaches("cancelled")
        await upstream.all_closed()
        await asyncio.sleep(1.2)
        assert len(upstream.requests) == 2


async def test_a_hundred_clients_leave() -> None:
    """Rule E4: a hundred clients that go away leave no upstream connection and no open run."""
    async with looping(BEGUN, limits={"requests": ["10000/minute"]}, **ONLY_DEPARTURE) as (proxy, upstream):

        async def one() -> None:
            async with proxy.sent(ASK) as conversation:
                await conversation.reader.readuntil(b'"a"')
                conversation.leave()

        for _ in range(5):
            await asyncio.gather(*[one() for _ in range(20)])
        await upstream.all_closed()

        async def none_runs() -> bool:
            return all(run.status == "cancelled" for run in await proxy.runs())

        await until(none_runs)


async def test_a_finished_run_is_completed() -> None:
    """Rule R1: a finished run is recorded as completed, with all its turns, calls and messages."""
    async with looping(FIRST, ANSWER) as (proxy, _):
        await proxy.ask(ASK)
        detail = await proxy.run_reaches("completed")
        assert detail.run.turns == 2
        assert detail.run.tool_calls == 1
        assert detail.run.finish_reason == "stop"
        assert [t.number for t in detail.turns] == [1, 2]
        assert [i.tool for i in detail.invocations] == ["core__get_current_time"]
        roles = [m.role for m in detail.messages]
        assert roles == ["assistant", "tool", "assistant"]
        assert json.loads(detail.messages[0].tool_calls or "")[0]["id"] == "call_1"
        assert detail.messages[2].content == "It is noon."


async def test_the_record_of_a_plain_answer_has_no_messages() -> None:
    """Rule R3: the record keeps no messages of a run without tool calls."""
    async with looping(ANSWER) as (proxy, _):
        await proxy.ask(ASK)
        assert list((await proxy.run_reaches("completed")).messages) == []


async def test_a_client_that_stops_reading_holds_back_the_upstream() -> None:
    """If a client does not read, the proxy stops reading from the upstream until the client leaves."""
    script: list[Step] = [SSE_HEAD, *[chunk(content("x" * 60_000))] * 2000, HANG]
    async with looping(script, **ONLY_DEPARTURE) as (proxy, upstream), proxy.sent(ASK) as conversation:
        await conversation.reader.readuntil(b"xxx")
        last = -1
        while upstream.sent != last:
            last = upstream.sent
            await asyncio.sleep(0.3)
        assert upstream.sent < 100 << 20
        conversation.leave()
        await upstream.all_closed()
