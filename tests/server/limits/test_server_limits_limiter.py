"""The rate limiter: what it admits, how it refuses the rest, and what it does without its counters."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from chat_script import DONE, content, finish, reply, role, stream
from limits import parse
from raw_upstream import RawUpstream, Step, whole
from redis_server import HURRY, SERVER, cable, need_redis
from running_proxy import Proxy, make_config, running
from waiting import PATIENCE_S

from proxy.base.errors import RequestError, ToolFailure
from proxy.rights.callers import Caller
from proxy.rights.limit_rules import (
    KeyLimits,
    Limit,
    LimitsUnavailable,
    LimitVerdict,
    parse_cost_limits,
    parse_limits,
)
from proxy.server.limits.counters import Counters
from proxy.server.limits.limiter import RateLimiter

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
OK = whole(b'{"choices":[]}')
TEXT = stream(role(), content("Hi"), finish())
ME = Caller(counted_as="10.0.0.1")


class Gone:
    """Counters that cannot be reached."""

    def __init__(self) -> None:
        self.released: list[str] = []

    async def take(
        self, caller: str, hits: Sequence[Limit], spending: Sequence[Limit], streams: int | None, lease: str
    ) -> LimitVerdict:
        raise LimitsUnavailable("gone")

    def spend(self, caller: str, spent: Sequence[tuple[Limit, int]]) -> None:
        return

    def release(self, caller: str, lease: str) -> None:
        self.released.append(lease)

    async def aclose(self) -> None:
        return


def limiter(on_error: Any = "open", counters: Any = None, **texts: Any) -> RateLimiter:
    general = KeyLimits(
        requests=parse_limits("x", texts.get("requests", ())),
        tool_calls=parse_limits("x", texts.get("tool_calls", ())),
        tokens=parse_limits("x", texts.get("tokens", ())),
        cost=parse_cost_limits("x", texts.get("cost", ())),
    )
    return RateLimiter(general, counters or Counters(), on_error=on_error)


async def refused(made: RateLimiter, caller: Caller = ME) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await made.admit(caller)
    return caught.value


async def test_headers_are_openais() -> None:
    """For requests and for tokens, headers give the tightest limit, what is left of it and when it resets."""
    made = limiter(requests=["100/day", "3/minute"], tokens=["1000/hour"], cost=["5/day"])
    admission = await made.admit(ME)
    assert admission.headers == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "1000",
        "x-ratelimit-reset-tokens": "0s",
    }
    admission.spend(1200, 0)
    error = await refused(made)
    assert error.headers["x-ratelimit-remaining-tokens"] == "0"
    assert error.headers["x-ratelimit-reset-tokens"].startswith("1h0m")


@pytest.mark.parametrize(
    ("limits", "said", "retries"),
    [
        ({"requests": ["1/minute"]}, "requests: 1 per minute (limits.requests)", None),
        ({"requests": ["1/minute", "1/hour"]}, "requests: 1 per hour (limits.requests)", "false"),
    ],
)
async def test_a_refusal_says_which_limit_and_how_long(limits: Any, said: str, retries: str | None) -> None:
    """A 429 names the limit and the wait; if the wait is too long for an SDK, a header forbids the retry."""
    made = limiter(**limits)
    await made.admit(ME)
    error = await refused(made)
    assert (error.status, error.type, error.code) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert said in error.message
    wait = int(error.headers["Retry-After"])
    assert 60 <= wait <= 3601
    assert wait * 1000 - 1000 <= int(error.headers["retry-after-ms"]) <= wait * 1000
    assert error.headers.get("x-should-retry") == retries


async def test_cost_is_refused_in_the_currency() -> None:
    """A refusal because of cost gives the limit in the currency, not in billionths of it."""
    made = limiter(cost=["0.50/hour"])
    admission = await made.admit(ME)
    admission.spend(10**30, 600_000_000)
    assert "cost: 0.5 per hour (limits.cost)" in (await refused(made)).message


async def test_a_callers_own_limits_hold() -> None:
    """A key's own limits replace the general ones; equal limits in two objects share their counters."""
    made = limiter(requests=["100/minute"], tool_calls=["100/minute"])
    for _ in range(2):
        own = KeyLimits(requests=(parse("2/minute"),), tool_calls=(parse("1/minute"),))
        admission = await made.admit(Caller("key_1", "key_1", own))
    assert admission.headers["x-ratelimit-remaining-requests"] == "0"
    assert await admission.hit("tool_calls", "whoever") is None
    assert await admission.hit("tool_calls", "whoever") == pytest.approx(60)
    assert (await refused(made, Caller("key_1", "key_1", own))).status == 429
    assert (await made.admit(Caller("key_2", "key_2", own))).headers


async def test_a_callers_open_streams() -> None:
    """A key at its limit of open requests gets another one only after it releases one."""
    made = limiter()
    caller = Caller("key_1", "key_1", KeyLimits(concurrent_streams=1))
    first = await made.admit(caller)
    error = await refused(made, caller)
    assert "open requests: 1 (limits.concurrent_streams)" in error.message
    assert error.headers["Retry-After"] == "1"
    first.release()
    (await made.admit(caller)).release()


async def test_a_key_pays_for_its_tokens() -> None:
    """A minted token has limits of its own, and all tokens of a key together have the key's limits."""
    made = limiter()
    key = KeyLimits(
        requests=(parse("3/minute"),), tokens=(parse("10/minute"),), tool_calls=(parse("1/minute"),),
        concurrent_streams=2,
    )  # fmt: skip
    own = KeyLimits(requests=(parse("2/minute"),))

    def token(subject: str) -> Caller:
        return Caller("key", f"key/{subject}", own, parent_counted_as="key", parent_limits=key)

    first, second = await made.admit(token("ann")), await made.admit(token("bea"))
    assert (await refused(made, token("cleo"))).message.startswith("Rate limit reached for open requests")
    assert first.counts_usage
    assert await first.hit("tool_calls", "") is None
    assert await second.hit("tool_calls", "") is not None
    first.release()
    second.release()
    (await made.admit(token("ann"))).release()
    assert "2 per minute" in (await refused(made, token("ann"))).message
    assert "3 per minute" in (await refused(made, token("bea"))).message


async def test_a_token_past_its_own_tool_calls_costs_its_key_none() -> None:
    """Tool calls beyond a token's own limit take nothing from the key's other tokens."""
    made = limiter()
    key = KeyLimits(tool_calls=(parse("3/minute"),))
    own = KeyLimits(tool_calls=(parse("1/minute"),))
    first, second = [
        await made.admit(Caller("key", f"key/{name}", limits, parent_counted_as="key", parent_limits=key))
        for name, limits in (("ann", own), ("bea", None))
    ]
    assert await first.hit("tool_calls", "") is None
    for _ in range(5):
        assert await first.hit("tool_calls", "") is not None
    assert await second.hit("tool_calls", "") is None


class Slow(Counters):
    """Counters that never answer for the caller ``key``."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def take(
        self, caller: str, hits: Sequence[Limit], spending: Sequence[Limit], streams: int | None, lease: str
    ) -> LimitVerdict:
        if caller == "key":
            self.asked.set()
            await asyncio.Event().wait()
        return await super().take(caller, hits, spending, streams, lease)


async def test_a_client_that_leaves_at_the_door_gives_its_place_back() -> None:
    """If a client leaves while the limiter looks up its key's limits, its token's place is free again."""
    counters = Slow()
    made = limiter(counters=counters)
    one = KeyLimits(concurrent_streams=1)
    token = Caller("key", "key/ann", one, parent_counted_as="key", parent_limits=one)
    task = asyncio.ensure_future(made.admit(token))
    await counters.asked.wait()
    task.cancel()
    await asyncio.wait({task})
    (await made.admit(Caller("key", "key/ann", one))).release()


async def test_what_a_token_uses_its_key_has_used() -> None:
    """Tokens that were used through a minted token count against its key's limit."""
    made = limiter()
    key = KeyLimits(tokens=(parse("10/minute"),))
    admission = await made.admit(Caller("key", "key/ann", parent_counted_as="key", parent_limits=key))
    admission.spend(10, 0)
    assert "tokens" in (await refused(made, Caller("key", "key", key))).message


async def test_no_limit_is_no_limit() -> None:
    """Without limits the limiter counts nothing and sets no headers."""
    made = limiter()
    for _ in range(100):
        admission = await made.admit(ME)
        assert await admission.hit("tool_calls", "x") is None
        admission.spend(5, 5)
    assert admission.headers == {}
    assert not admission.counts_usage
    await made.aclose()


async def test_open_lets_in_what_cannot_be_counted() -> None:
    """With ``on_error`` open, requests and tool calls pass uncounted and release no place they never got."""
    gone = Gone()
    made = limiter("open", gone, requests=["1/minute"], tool_calls=["1/minute"])
    for _ in range(3):
        admission = await made.admit(Caller(limits=KeyLimits(concurrent_streams=1)))
        assert admission.headers == {}
        assert await admission.hit("tool_calls", "x") is None
        admission.release()
    assert gone.released == []


async def test_closed_refuses_what_cannot_be_counted() -> None:
    """With ``on_error`` closed, a request gets a 503, and a tool call fails with an error for the model."""
    made = limiter("closed", Gone(), requests=["1/minute"])
    error = await refused(made)
    assert (error.status, error.code) == (503, "limits_unavailable")
    assert error.headers["Retry-After"] == "1"
    made = limiter("closed", Gone(), tool_calls=["1/minute"])
    admission = await made.admit(ME)
    with pytest.raises(ToolFailure) as caught:
        await admission.hit("tool_calls", "x")
    assert caught.value.code == "rate_limited"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0201, "20ms"),
        (1, "1s"),
        (1.2, "2s"),
        (59.2, "1m0s"),
        (60.0000000001, "1m0s"),
        (360, "6m0s"),
        (86400, "24h0m0s"),
    ],
)
async def test_durations_are_in_openais_form(seconds: float, text: str) -> None:
    """A reset is written like 20ms, 1s, 6m0s and 24h0m0s."""

    class Fixed(Gone):
        async def take(self, caller: str, hits: Sequence[Limit], *more: Any) -> LimitVerdict:
            from proxy.rights.limit_rules import LimitStatus

            return LimitVerdict(None, 0, [LimitStatus(hits[0], 1, seconds)])

    admission = await limiter(counters=Fixed(), requests=["5/day"]).admit(ME)
    assert admission.headers["x-ratelimit-reset-requests"] == text


# ---------------------------------------------------------------- over HTTP


class AccessMiddleware:
    """A context manager that runs a proxy in front of an upstream."""

    def __init__(self, *scripts: Sequence[Step], **config: Any) -> None:
        self._upstream = RawUpstream(*scripts)
        self._config = config

    async def __aenter__(self) -> tuple[Proxy, RawUpstream]:
        upstream = await self._upstream.__aenter__()
        self._running = running(make_config(upstream.url, **self._config))
        return await self._running.__aenter__(), upstream

    async def __aexit__(self, *error: Any) -> None:
        await self._running.__aexit__(*error)
        await self._upstream.__aexit__(*error)


@pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["passthrough", "orchestrated"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_answers_carry_our_numbers(allow: tuple[str, ...], streamed: bool) -> None:
    """The proxy replaces the upstream's headers for requests; those for tokens pass without a limit here."""
    theirs = ("X-RateLimit-Remaining-Requests: 7", "x-ratelimit-remaining-tokens: 8")
    script = whole(b'{"choices":[{"message":{"role":"assistant","content":"x"}}]}', *theirs)
    async with AccessMiddleware(
        TEXT if streamed else script, allow=allow, limits={"requests": ["3/minute"]}
    ) as (
        proxy,
        _,
    ):
        answer = await proxy.ask({**ASK, "stream": streamed})
        assert answer.status == 200
        assert answer.names().count("x-ratelimit-remaining-requests") == 1
        assert answer.header("x-ratelimit-remaining-requests") == "2"
        assert answer.header("x-ratelimit-limit-requests") == "3"
        assert answer.header("x-ratelimit-reset-requests") == "1m0s"
        assert answer.header("x-ratelimit-remaining-tokens") == (None if streamed else "8")
        wrong = await proxy.ask(b"{")
        assert wrong.status == 400
        assert wrong.header("x-ratelimit-remaining-requests") == "1"


async def test_a_refused_request_reaches_nobody() -> None:
    """The proxy answers 429 by itself, in OpenAI's shape with its headers, and ``/healthz`` has no limit."""
    async with AccessMiddleware(OK, limits={"requests": ["1/minute"]}) as (proxy, upstream):
        began = time.monotonic()
        assert (await proxy.ask(ASK)).status == 200
        answer = await proxy.ask(ASK)
        assert answer.status == 429
        assert answer.error["code"] == "rate_limit_exceeded"
        assert 59 - (time.monotonic() - began) <= int(answer.header("retry-after") or 0) <= 61
        assert answer.header("x-ratelimit-remaining-requests") == "0"
        assert answer.header("x-request-id")
        assert len(upstream.requests) == 1
        assert (await proxy.get("/healthz")).status == 200


@pytest.fixture
async def window() -> AsyncIterator[int]:
    """Return the length of a window that no other test uses, so that it counts no other test's requests."""
    from secrets import randbelow

    from redis.asyncio import Redis

    need_redis()
    seconds = 3600 + randbelow(10**6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HURRY, PATIENCE_S)
        yield seconds
    async with Redis.from_url(SERVER) as client:
        if keys := [key async for key in client.scan_iter(f"toolrelay:*/{seconds}/second", count=1000)]:
            await client.delete(*keys)


async def let_pass(pattern: str, seconds: int) -> None:
    """Cut the time to live of the keys in Redis, as if so much time had passed."""
    from redis.asyncio import Redis

    async with Redis.from_url(SERVER) as client:
        async for key in client.scan_iter(pattern, count=1000):
            left = await client.pttl(key) - 1000 * seconds
            await (client.pexpire(key, left) if left > 0 else client.delete(key))


async def test_two_proxies_share_one_redis(window: int) -> None:
    """Two servers on one Redis share one limit, and every answer says what is left of it."""
    limits = {"requests": [f"3 per {window} seconds"], "storage": SERVER}
    async with (
        AccessMiddleware(OK, limits=limits) as (one, _),
        AccessMiddleware(OK, limits=limits) as (other, _),
    ):
        answers = await asyncio.gather(*(proxy.ask(ASK) for proxy in (one, other) * 4))
        assert sorted(answer.status for answer in answers) == [200] * 3 + [429] * 5
        left = [answer.header("x-ratelimit-remaining-requests") for answer in answers if answer.status == 200]
        assert sorted(map(str, left)) == ["0", "1", "2"]


async def test_tokens_used_at_one_proxy_count_at_the_other(window: int) -> None:
    """Tokens used at one server count against the caller's limit at the other, until the window is over."""
    limits = {"tokens": [f"100 per {window} seconds"], "requests": (), "storage": SERVER}
    async with (
        AccessMiddleware(reply("Hi", used=(90, 10)), limits=limits) as (one, _),
        AccessMiddleware(reply("Hi", used=(0, 0)), limits=limits) as (other, _),
    ):
        assert (await one.ask(ASK)).status == 200
        async with asyncio.timeout(PATIENCE_S):
            # The first proxy writes usage in the background, so the other one may see it a moment later.
            while (answer := await other.ask(ASK)).status == 200:
                continue
        assert answer.status == 429
        assert "limits.tokens" in answer.error["message"]
        pattern = f"toolrelay:tokens/*/{window}/second"
        await let_pass(pattern, window - window // 60)
        assert [(await proxy.ask(ASK)).status for proxy in (one, other)] == [429, 429]
        await let_pass(pattern, window // 60)
        answer = await other.ask(ASK)
        assert (answer.status, answer.header("x-ratelimit-remaining-tokens")) == (200, "100")


def test_redis_needs_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the ``redis`` extra the start fails, and the error says what to install."""
    from proxy.base.errors import ConfigError
    from proxy.server.limits.opening import open_counters

    class Missing:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            if name == "redis":
                raise ModuleNotFoundError("No module named 'redis'", name="redis")

    loaded = [name for name in sys.modules if name == "redis" or name.startswith("redis.")]
    for name in ("proxy.server.limits.redis", *loaded):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with pytest.raises(ConfigError, match=r"pip install '\.\[redis\]'"):
        open_counters("redis://127.0.0.1")


@pytest.mark.parametrize(("on_error", "status"), [("open", 200), ("closed", 503)])
async def test_redis_goes_away_under_a_running_proxy(on_error: str, status: int, window: int) -> None:
    """Without Redis, requests pass or are refused as ``on_error`` says; once it is back, it counts again."""
    async with cable() as wire:
        limits = {"requests": [f"50 per {window} seconds"], "storage": wire.url, "on_error": on_error}
        async with AccessMiddleware(OK, limits=limits) as (proxy, upstream):
            first = await proxy.ask(ASK)
            assert first.header("x-ratelimit-remaining-requests") == "49"
            wire.cut()
            answers = [await proxy.ask(ASK) for _ in range(5)]
            assert {answer.status for answer in answers} == {status}
            assert all(answer.header("x-ratelimit-remaining-requests") is None for answer in answers)
            if status == 503:
                assert answers[0].error["code"] == "limits_unavailable"
                assert len(upstream.requests) == 1
            wire.mend()
            async with asyncio.timeout(PATIENCE_S):
                left = None
                while left is None:
                    left = (await proxy.ask(ASK)).header("x-ratelimit-remaining-requests")
            assert left == "48"


async def test_done_is_still_last() -> None:
    """Rule W3: with limits, a stream still ends with ``[DONE]``."""
    async with AccessMiddleware(TEXT, limits={"requests": ["5/minute"]}) as (proxy, _):
        assert (await proxy.ask({**ASK, "stream": True})).body.endswith(DONE)
