"""Tools that call tools: limits of depth and number, and no deadlocks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from proxy.base.events import ToolCall, ToolResult
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import tool
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.tools.running.runner import Runner
from proxy.tools.running.tasks.concurrency import MAX_NESTED, Slots

Make = Callable[..., Awaitable[Runner]]

READ: dict[str, Any] = {"effect": "read_only", "redaction": Redaction()}
ACT: dict[str, Any] = {"effect": "state_change", "redaction": Redaction()}


class Inner:
    """Makes calls from inside a tool, through the same runner."""

    def __init__(self) -> None:
        self.runner: Runner | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ledger = RunLedger()
        self.made = 0

    async def run(self, name: str, arguments: str = "{}") -> ToolResult:
        """Make one call in an inner run, with its own index."""
        assert self.runner is not None
        self.made += 1
        context = RunContext("run_inner", 1, "open", ledger=self.ledger)
        return await self.runner.run(ToolCall(f"c{self.made}", f"t__{name}", arguments, self.made), context)

    def run_from_thread(self, name: str, arguments: str = "{}") -> ToolResult:
        """Make one call from a thread."""
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(self.run(name, arguments), self.loop).result(10)


@pytest.fixture
def inner() -> Inner:
    """A caller of tools without a runner yet."""
    return Inner()


async def begin(make_runner: Make, inner: Inner, tools: list[Any], **options: Any) -> Runner:
    """Make a runner that its own tools can call."""
    inner.runner = await make_runner(tools, **options)
    inner.loop = asyncio.get_running_loop()
    return inner.runner


async def test_tools_that_call_tools_take_no_place_from_each_other(
    make_runner: Make, inner: Inner, context: RunContext, call: Any
) -> None:
    """Rule T7: if tools that wait for other tools hold all slots, all of them still end."""
    ready = asyncio.Barrier(2)

    @tool(**READ)
    async def outer(n: int) -> str:
        """Wait for both to hold a place, then call."""
        await ready.wait()
        return (await inner.run("leaf", f'{{"n":{n}}}')).content

    @tool(**READ)
    async def leaf(n: int) -> str:
        """Answer."""
        return f"leaf {n}"

    runner = await begin(make_runner, inner, [outer, leaf], max_read_only=2, max_read_only_per_caller=2)
    calls = [call("outer", '{"n":1}', 1), call("outer", '{"n":2}', 2)]
    results = await runner.run_many(calls, context)
    assert [result.content for result in results] == ["leaf 1", "leaf 2"]


async def test_what_one_tool_calls_is_bounded(
    make_runner: Make, inner: Inner, context: RunContext, call: Any
) -> None:
    """Rule T7: of a hundred calls that one tool makes at once, at most four run concurrently."""
    now = most = 0

    @tool(**READ)
    async def outer() -> int:
        """Call many."""
        results = await asyncio.gather(*(inner.run("leaf", f'{{"n":{n}}}') for n in range(100)))
        return sum(result.ok for result in results)

    @tool(**READ)
    async def leaf(n: int) -> str:
        """Let others begin."""
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(5):
            await asyncio.sleep(0)
        now -= 1
        return ""

    runner = await begin(make_runner, inner, [outer, leaf])
    assert (await runner.run(call("outer"), context)).content == "100"
    assert most == 4


async def test_a_tool_that_calls_itself_ends(
    make_runner: Make, inner: Inner, context: RunContext, call: Any
) -> None:
    """Rule T7: a tool that calls itself endlessly is refused at the maximum depth."""

    @tool(**READ)
    async def deeper(n: int) -> str:
        """Go on."""
        return (await inner.run("deeper", f'{{"n":{n + 1}}}')).content

    runner = await begin(make_runner, inner, [deeper])
    result = await runner.run(call("deeper", '{"n":0}'), context)
    assert "too deeply" in result.content
    assert inner.made == MAX_NESTED


@pytest.mark.parametrize("options", [{**READ, "cache_ttl_s": 60.0}, ACT])
async def test_a_call_inside_of_itself_does_not_wait_for_itself(
    make_runner: Make, inner: Inner, context: RunContext, call: Any, options: dict[str, Any]
) -> None:
    """Rule R5: an equal call inside a cached tool or an effect is refused instead of waiting for itself."""
    ran = 0

    @tool(**options)
    async def mirror() -> str:
        """Look into itself."""
        nonlocal ran
        ran += 1
        return (await inner.run("mirror")).content

    runner = await begin(make_runner, inner, [mirror])
    inner.ledger = context.ledger
    result = await runner.run(call("mirror"), context)
    assert result.ok
    assert "called itself" in result.content
    assert ran == 1


async def test_blocking_tools_that_call_blocking_tools_end(
    make_runner: Make, inner: Inner, context: RunContext, call: Any
) -> None:
    """If blocking tools that wait for other blocking tools hold all threads, all of them still end."""

    @tool(**READ)
    def outer(n: int) -> str:
        """Call from a thread."""
        return inner.run_from_thread("leaf", f'{{"n":{n}}}').content

    @tool(**READ)
    def leaf(n: int) -> str:
        """Answer from a thread."""
        return f"leaf {n}"

    runner = await begin(make_runner, inner, [outer, leaf], max_parallel=16)
    results = await runner.run_many([call("outer", f'{{"n":{n}}}', n) for n in range(16)], context)
    assert [result.content for result in results] == [f"leaf {n}" for n in range(16)]


async def test_what_a_tool_has_left_behind_holds_no_place() -> None:
    """A task that outlives the slot in which it was started has to wait for a slot of its own."""
    slots = Slots(1, 1)
    go_on, done = asyncio.Event(), asyncio.Event()

    async def later() -> None:
        await go_on.wait()
        async with slots.take("a"):
            done.set()

    async with slots.take("a"):
        task = asyncio.create_task(later())
        await asyncio.sleep(0)
    async with slots.take("a"):
        go_on.set()
        for _ in range(5):
            await asyncio.sleep(0)
        # The task was started inside of the first slot, which is free again, and not inside of this one.
        assert not done.is_set()
    await task


async def test_there_is_room_where_nobody_has_to_wait() -> None:
    """``has_room`` is true until the caller, or all callers together, hold their maximum of slots."""
    slots = Slots(2, 1)
    leave = asyncio.Event()

    async def stay(caller: str) -> None:
        async with slots.take(caller):
            assert slots.has_room(caller)  # A holder of a slot has room for a nested call.
            await leave.wait()

    tasks = []
    for caller, room in (("a", {"b"}), ("b", set())):
        assert slots.has_room(caller)
        tasks.append(asyncio.create_task(stay(caller)))
        await asyncio.sleep(0)
        assert {other for other in ("a", "b") if slots.has_room(other)} == room
    assert not slots.has_room("c")
    leave.set()
    await asyncio.gather(*tasks)
    assert slots.has_room("a")
