"""The service of the host process: results wait for a worker that reads slowly, server by server."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
from waiting import until

from proxy.net.channel import Channel
from proxy.tools.mcp.host.left_behind import Groups
from proxy.tools.mcp.host.service import Service
from proxy.tools.mcp.servers import HostSettings

RESULT_BYTES = 6 << 20


class Server:
    """A connection to a server whose results have that many bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.called = 0

    async def call(self, tool: str, arguments: Any, **options: Any) -> dict[str, Any]:
        """Return a result."""
        self.called += 1
        return {"text": "x" * self.size}


def call(channel: Channel, number: int, server: str) -> None:
    """Send a call."""
    header = {"server": server, "tool": "t", "digest": "d", "within_s": 60.0, "progress": False}
    assert channel.send("call", b"{}", id=number, **header)


async def test_a_flood_of_one_server_fails_its_own_calls_alone(tmp_path: Path) -> None:
    """A worker does not read for a while: of one server as much waits as may, another's result comes."""
    service = Service(HostSettings(), Groups(lambda runs: None), lambda name, before, one: None)
    flood, good = Server(RESULT_BYTES), Server(10)
    service.connections = {"flood": flood, "good": good}  # type: ignore[dict-item]
    service._tell_all = lambda channel: None  # type: ignore[method-assign]
    async with await asyncio.start_unix_server(service.serve, tmp_path / "s"):
        channel = Channel(*await asyncio.open_unix_connection(tmp_path / "s"))
        for number in range(1, 21):
            call(channel, number, "flood")
        call(channel, 21, "good")
        await until(lambda: (flood.called, good.called) == (20, 1))
        told: dict[int, tuple[str, bytes]] = {}
        while len(told) < 21:
            message = await channel.receive()
            assert message is not None, "the channel was closed"
            told[message[0]["id"]] = message[0]["kind"], message[1]
        assert told[21] == ("result", b'{"text":"xxxxxxxxxx"}')
        kinds = [told[number][0] for number in range(1, 21)]
        # The socket takes the first.
        assert kinds.count("result") == 1 + (32 << 20) // RESULT_BYTES
        failures = [orjson.loads(body) for kind, body in told.values() if kind == "failed"]
        assert {one["kind"] for one in failures} == {"error"}
        assert all("wait to be read" in one["words"] for one in failures)
        # What was read makes room.
        call(channel, 22, "flood")
        after = await channel.receive()
        assert after is not None
        assert (after[0]["kind"], len(after[1]) > RESULT_BYTES) == ("result", True)
        channel.close()
        await until(lambda: not service._workers)


async def test_a_worker_that_goes_while_results_wait(tmp_path: Path) -> None:
    """The results are dropped with the worker, and others are served."""
    service = Service(HostSettings(), Groups(lambda runs: None), lambda name, before, one: None)
    flood = Server(RESULT_BYTES)
    service.connections = {"flood": flood}  # type: ignore[dict-item]
    service._tell_all = lambda channel: None  # type: ignore[method-assign]
    async with await asyncio.start_unix_server(service.serve, tmp_path / "s"):
        gone = Channel(*await asyncio.open_unix_connection(tmp_path / "s"))
        for number in range(1, 6):
            call(gone, number, "flood")
        await until(lambda: flood.called == 5)
        gone.close()
        channel = Channel(*await asyncio.open_unix_connection(tmp_path / "s"))
        call(channel, 1, "flood")
        message = await channel.receive()
        assert message is not None
        assert message[0]["kind"] == "result"
        channel.close()
        await until(lambda: not service._workers)
