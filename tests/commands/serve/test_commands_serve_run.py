"""How a server binds its sockets, ends at signals and tests the addresses of its upstreams."""

import asyncio
import os
import signal

import pytest
from aiohttp import web
from closed_port import closed_port
from edge_requests import Behind
from waiting import until

from proxy.base.errors import ConfigError
from proxy.commands.doctor.connectivity import find_unreachable
from proxy.commands.serve.run import run_server
from proxy.commands.serve.sockets import address_of, bind
from proxy.server.messages.request import EdgeRequest


def test_port_zero_takes_one_free_port() -> None:
    """Port 0 gives a real port, and localhost the same one on all its addresses."""
    sockets = bind("localhost", 0)
    ports = {listener.getsockname()[1] for listener in sockets}
    assert len(ports) == 1
    assert ports.pop() > 0
    assert address_of(sockets).startswith("http://")
    for listener in sockets:
        listener.close()


def test_a_port_is_taken_once() -> None:
    """Binding a port a second time fails and names the port; after a close, it works again."""
    first = bind("127.0.0.1", 0)
    port = first[0].getsockname()[1]
    with pytest.raises(ConfigError, match=rf"server.port: port {port} on 127.0.0.1 is in use"):
        bind("127.0.0.1", port)
    first[0].close()
    again = bind("127.0.0.1", port)
    again[0].close()


@pytest.mark.parametrize("host", ["192.0.2.77", "no.such.host.invalid", "x" * 300, "a..b"])
def test_a_host_that_is_not_ours(host: str) -> None:
    """If this machine cannot listen on a host, the error names ``server.host``."""
    with pytest.raises(ConfigError) as caught:
        bind(host, 0)
    assert caught.value.setting == "server.host"


def test_an_address_of_version_six_reads_as_a_url() -> None:
    """The URL of an IPv6 address has brackets."""
    try:
        sockets = bind("::1", 0)
    except ConfigError:
        pytest.skip("this machine has no IPv6 loopback")
    assert address_of(sockets) == f"http://[::1]:{sockets[0].getsockname()[1]}"
    sockets[0].close()


class Application:
    """A server in this event loop with one streaming handler; real signals stop it."""

    def __init__(self, drain_s: float = 30) -> None:
        self.sockets = bind("127.0.0.1", 0)
        self.port = self.sockets[0].getsockname()[1]
        self.going = asyncio.Event()
        self.finish = asyncio.Event()
        self.ready = asyncio.Event()
        self.draining = asyncio.Event()
        self.cut = asyncio.Event()
        self.behind = Behind(self._serve)
        self.task = asyncio.create_task(
            run_server(
                self.behind, self.sockets, drain_s=drain_s, ready=self._greet, draining=self.draining.set
            )
        )

    async def _greet(self) -> None:
        self.ready.set()

    @property
    def closed(self) -> bool:
        return self.behind.closed

    async def _serve(self, request: EdgeRequest) -> web.StreamResponse:
        self.behind.draining.begin(request)
        try:
            return await self._stream(request)
        finally:
            self.behind.draining.end(request)

    async def _stream(self, request: EdgeRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request.as_aiohttp())
        await response.write(b"begin ")
        self.going.set()
        try:
            await self.finish.wait()
        except asyncio.CancelledError:
            self.cut.set()
            raise
        await response.write(b"end")
        return response

    async def ask(self) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            return await reader.read()
        finally:
            writer.close()

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_server_stops_at_once(number: signal.Signals) -> None:
    """A signal ends an idle server at once, with its clean-up, and closes its port."""
    served = Application()
    await served.ready.wait()
    served.signal(number)
    await served.task
    assert served.closed
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", served.port)


async def test_an_open_stream_runs_to_its_end() -> None:
    """After SIGTERM new requests are refused, the open stream runs to its end, and then the port closes."""
    served = Application()
    await served.ready.wait()
    answer = asyncio.create_task(served.ask())
    await served.going.wait()
    served.signal()
    await until(lambda: served.behind.draining.refusing)
    assert not served.task.done()
    served.finish.set()
    body = await answer
    await served.task
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", served.port)
    assert b"begin " in body
    assert body.endswith(b"3\r\nend\r\n0\r\n\r\n")
    assert served.closed
    assert not served.cut.is_set()


async def test_the_drain_is_bounded() -> None:
    """A stream that does not end is cut after ``drain_s``."""
    served = Application(drain_s=0.05)
    await served.ready.wait()
    answer = asyncio.create_task(served.ask())
    await served.going.wait()
    served.signal()
    await served.task
    assert b"end" not in (await answer).partition(b"begin ")[2]
    assert served.cut.is_set()
    assert served.closed


async def test_a_second_signal_cuts_what_is_open() -> None:
    """A second signal cuts open streams without waiting for the drain; the clean-up still runs."""
    served = Application(drain_s=3600)
    await served.ready.wait()
    answer = asyncio.create_task(served.ask())
    await served.going.wait()
    served.signal()
    await served.draining.wait()
    served.signal()
    await served.task
    assert b"begin " in await answer
    assert served.cut.is_set()
    assert served.closed


async def test_a_client_that_leaves_cancels_its_handler() -> None:
    """Rule E4: if a client leaves, its handler is cancelled."""
    served = Application()
    await served.ready.wait()
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await served.going.wait()
    writer.transport.abort()
    await served.cut.wait()
    served.signal()
    await served.task


async def test_a_start_that_fails_is_cleaned_up() -> None:
    """If the server cannot listen on its sockets, the application is closed and the error is raised."""
    sockets = bind("127.0.0.1", 0)
    sockets[0].close()
    behind = Behind(unreachable)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await run_server(behind, sockets, drain_s=1)
    assert behind.closed


async def unreachable(request: EdgeRequest) -> web.StreamResponse:
    """A handler that must not be called."""
    raise AssertionError("it was reached")


async def test_reaching_upstreams_sends_nothing() -> None:
    """The test of addresses sends no byte; each address that takes no connection gives one line."""
    got: list[bytes] = []
    done = asyncio.Event()

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read())
        writer.close()
        done.set()

    server = await asyncio.start_server(keep, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with closed_port() as lost:
        lines = await find_unreachable(
            {
                "upstreams.there": f"http://127.0.0.1:{port}/v1",
                "upstreams.gone": f"http://127.0.0.1:{lost}/v1",
                "upstreams.nowhere": "http://no.such.host.invalid/v1",
                "upstreams.demo": "replay:fixtures",
                "limits.storage": f"redis://:secret@127.0.0.1:{lost}/0",
            }
        )
    await done.wait()
    server.close()
    await server.wait_closed()
    assert got == [b""]
    assert len(lines) == 3
    assert f"upstreams.gone: 127.0.0.1 port {lost} cannot be reached" in lines[0]
    assert "upstreams.nowhere: no.such.host.invalid port 80" in lines[1]
    assert f"limits.storage: 127.0.0.1 port {lost} cannot be reached" in lines[2]
    assert "secret" not in lines[2]
