"""The workers of one server count their limits together in one Redis."""

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from client_keys import bearer
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import RawUpstream, whole
from redis_server import SERVER, need_redis
from running_proxy import Conversation
from waiting import PATIENCE_S

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SECRET = "alice-alice-0123456789-abcdefghij"
PATIENT = f"\nfrom proxy.server.limits import redis\nredis.ANSWER_S = {PATIENCE_S}\n"
"""On a busy machine, workers wait longer for Redis, so that they do not take a late answer for a failure."""


@pytest.fixture
async def name() -> AsyncIterator[str]:
    """Yield a key name of this test alone, and delete its counters at the end."""
    from redis.asyncio import Redis

    need_redis()
    made = f"k{secrets.token_hex(8)}"
    yield made
    async with Redis.from_url(SERVER) as client:
        if keys := [key async for key in client.scan_iter(f"toolrelay:*{made}*", count=1000)]:
            await client.delete(*keys)


async def one_of_each(proxy: ProxyProcess, stack: AsyncExitStack) -> list[Conversation]:
    """Return a connection to each of two workers; the log says which worker answers on which."""
    found: dict[int, Conversation] = {}
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < 2:
            conversation = await stack.enter_async_context(proxy.connect())
            request_id = secrets.token_hex(8)
            conversation.writer.write(
                proxy.request(None, {"x-request-id": request_id}, method="GET", path="/healthz")
            )
            assert (await conversation.answer()).status == 200
            line = await proxy.says(f'^{{.*"request_id":"{request_id}"')
            found.setdefault(json.loads(line.string)["worker"], conversation)
    return list(found.values())


async def test_two_workers_share_one_limit_exactly(tmp_path: Path, name: str) -> None:
    """Of 80 requests to both workers, exactly as many are admitted as the shared limit allows."""
    more = (
        '[limits]\nstorage = "env:REDIS_URL"\non_error = "closed"\n'
        f'[keys.{name}]\nsecret = "env:ALICE"\nlimits = {{requests = ["50/hour"]}}\n'
    )
    async with RawUpstream(whole(b'{"ok":true}')) as upstream:
        write_config(tmp_path, upstream.url, more=more, workers=2)
        with (tmp_path / "effect.py").open("a") as module:
            module.write(PATIENT)
        async with (
            serving(tmp_path, env={"ALICE": SECRET, "REDIS_URL": SERVER}) as proxy,
            AsyncExitStack() as stack,
        ):
            statuses: Counter[int] = Counter()

            async def ask(conversation: Conversation) -> int:
                conversation.writer.write(proxy.request(ASK, bearer(SECRET)))
                status = (await conversation.answer()).status
                statuses[status] += 1
                return status

            async def go_on(conversation: Conversation) -> None:
                for _ in range(39):
                    await ask(conversation)

            both = await one_of_each(proxy, stack)
            assert [await ask(each) for each in both] == [200, 200]
            await asyncio.gather(*map(go_on, both))
            assert statuses == {200: 50, 429: 30}
            assert [await ask(each) for each in both] == [429, 429]
            assert len(upstream.requests) == 50
