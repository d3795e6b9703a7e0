"""Limits of requests, tool calls and open streams."""

import asyncio

import pytest

from proxy.errors import ConfigError, RequestError
from proxy.records import Limiter
from proxy.server.limits import ConcurrentStreams, MemoryLimiter, parse_limits


async def test_a_limit_is_per_caller_and_kind():
    """A spent limit names the wait; other callers and other kinds are untouched."""
    limiter: Limiter = MemoryLimiter(requests=["2/hour"], tool_calls=["1/hour"])
    assert [await limiter.hit("requests", "a") for _ in range(2)] == [None, None]
    wait = await limiter.hit("requests", "a")
    assert wait is not None
    assert 0 < wait <= 3600
    assert await limiter.hit("requests", "b") is None
    assert await limiter.hit("tool_calls", "a") is None
    assert await limiter.hit("tool_calls", "a") is not None


async def test_several_limits_hold_at_once():
    """The longest wait of all spent limits counts, and a refused hit is counted by none of them."""
    limiter = MemoryLimiter(requests=["1/hour", "3 per day"])
    assert await limiter.hit("requests", "a") is None
    for _ in range(5):
        wait = await limiter.hit("requests", "a")
        assert wait is not None
        assert wait <= 3600
    limiter = MemoryLimiter(requests=["1/hour; 1/day"])
    assert await limiter.hit("requests", "a") is None
    wait = await limiter.hit("requests", "a")
    assert wait is not None
    assert wait > 3600


async def test_concurrent_hits_never_pass_the_limit():
    """However many tasks ask at once, no more than the limit get through."""
    limiter = MemoryLimiter(requests=["10/hour"])
    results = await asyncio.gather(*(limiter.hit("requests", "a") for _ in range(50)))
    assert results.count(None) == 10
    assert all(wait is None or wait > 0 for wait in results)


async def test_no_limit_is_no_limit():
    """An empty list lets everything through."""
    limiter = MemoryLimiter()
    assert [await limiter.hit("requests", "a") for _ in range(1000)] == [None] * 1000
    await limiter.aclose()


async def test_closing_stops_the_housekeeping():
    """After aclose no task of the limiter is left."""
    limiter = MemoryLimiter(requests=["10/hour"])
    await limiter.hit("requests", "a")
    await limiter.aclose()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("text", ["", "often", "600", "0/minute", "600/fortnight", "-5/minute"])
def test_a_bad_limit_names_its_setting(text):
    """What is no limit is refused with the name of the setting."""
    with pytest.raises(ConfigError) as caught:
        MemoryLimiter(requests=[text])
    assert caught.value.setting == "limits.requests"
    assert "600/minute" in caught.value.remedy
    with pytest.raises(ConfigError) as caught:
        MemoryLimiter(tool_calls=[text])
    assert caught.value.setting == "limits.tool_calls"


def test_limits_are_read_as_written():
    """Amount and window come out as they went in, several in one string too."""
    items = parse_limits("x", ["600/minute", "5 per 2 seconds; 7/day"])
    assert [(item.amount, item.get_expiry()) for item in items] == [(600, 60), (5, 2), (7, 86400)]


async def test_open_streams_are_counted_and_given_back():
    """A lease is returned however its block ends; one too many is a 429 in OpenAI's terms."""
    streams = ConcurrentStreams(2)

    async def fail() -> None:
        async with streams.lease():
            with pytest.raises(RequestError) as caught:
                await streams.lease().__aenter__()
            assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
            assert caught.value.headers == {"retry-after": "1"}
            raise ZeroDivisionError

    async with streams.lease():
        with pytest.raises(ZeroDivisionError):
            await fail()
        assert streams.open == 1
        async with streams.lease():
            assert streams.open == 2
    assert streams.open == 0


async def test_a_cancelled_stream_gives_its_lease_back():
    """Cancellation inside a lease frees it."""
    streams = ConcurrentStreams(1)
    held = asyncio.Event()

    async def hold() -> None:
        async with streams.lease():
            held.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert streams.open == 0


def test_a_cap_below_one_is_refused():
    """A cap that lets nobody in is a mistake."""
    with pytest.raises(ConfigError, match=r"limits.concurrent_streams"):
        ConcurrentStreams(0)
