"""A process that runs out of file descriptors: it refuses clients, serves the others, and recovers."""

import asyncio
import contextlib
import os
import resource

import pytest
from raw_upstream import RawUpstream, whole
from running_proxy import make_config, running
from waiting import PATIENCE_S

from proxy.server.connections.descriptors import Descriptors

pytestmark = pytest.mark.both_loops

ASK = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def test_the_reserve_is_a_part_of_the_system_s_limit() -> None:
    """The reserve is 64 of many descriptors, a quarter of few, and none if there is no limit."""
    assert Descriptors(1024)._most == 960
    assert Descriptors(100)._most == 75
    assert Descriptors(0)._most == 0
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert Descriptors()._most == Descriptors(0 if soft == resource.RLIM_INFINITY else soft)._most


async def test_a_connection_too_many_is_answered() -> None:
    """One connection too many gets a 503 that names the limit; others are served, and free places reused."""
    async with RawUpstream(whole(b'{"data":[]}')) as upstream, running(make_config(upstream.url)) as proxy:
        lowest = os.dup(0)
        os.close(lowest)
        # This process has both ends of each connection, and those of the upstream's.
        proxy.bounds.descriptors._most = lowest + 16
        async with contextlib.AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
            open_ = [await stack.enter_async_context(proxy.connect()) for _ in range(20)]
            refused = open_[-1]
            answer = await refused.answer()
            assert answer.status == 503
            assert answer.header("retry-after") == "1"
            assert answer.json["error"]["code"] == "too_many_connections"
            assert "LimitNOFILE" in answer.json["error"]["message"]
            assert await refused.reader.read() == b""
            open_[0].writer.write(ASK)
            assert (await open_[0].answer()).status == 200
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with proxy.connect() as conversation:
                    conversation.writer.write(ASK)
                    if (await conversation.answer()).status == 200:
                        break
                await asyncio.sleep(0.01)
