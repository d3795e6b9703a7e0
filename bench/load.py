"""The clients: ``python -m bench.load '{"port": 8080, …}'`` prints one JSON line. They use raw protocols.

With ``hold`` it first prints ``open`` once every stream has begun.
"""

import asyncio
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

from bench.wire import KEY, Plan, stamps


@dataclass(frozen=True)
class Load:
    """The clients' requests: ``requests`` in all over ``connections``, each with ``messages`` messages.

    The starts of paced streams are spread over ``opening_ms``, or over one pause. Delays are noted for every
    ``each_noted``-th stream. With ``settle_s`` they are noted only while all streams are open, starting that
    many seconds after the last one began. ``tools`` is the JSON of what each request declares, if it
    declares anything.
    """

    port: int
    kind: str = "json"
    count: int = 1
    pause_ms: int = 0
    connections: int = 16
    requests: int = 16
    messages: int = 1
    message_bytes: int = 40
    hold: bool = False
    opening_ms: int = 0
    settle_s: float = 0.0
    each_noted: int = 1
    tools: str = ""

    @property
    def plan(self) -> Plan:
        return Plan(self.kind, self.count, self.pause_ms)


@dataclass(frozen=True)
class Result:
    """The result of a load.

    All times are milliseconds. ``latency`` is that of whole responses, and ``delay`` that of chunks from the
    upstream's stamp to the client. ``first`` is the delay of each stream's first chunk. ``tool`` is the
    time from a tool's result to the next byte upstream.
    """

    done: int
    failed: int
    wall_s: float
    latency: tuple[float, float]
    delay: tuple[float, float]
    first: tuple[float, float]
    tool: tuple[float, float]


def request_bytes(load: Load) -> bytes:
    """Build the one request that is sent again and again."""
    said = [
        {"role": ("user", "assistant")[at % 2], "content": f"{at:08d}" + "m" * max(0, load.message_bytes - 8)}
        for at in range(load.messages - 1)
    ]
    asked = {
        "model": load.plan.model,
        "stream": load.kind != "json",
        "messages": [*said, {"role": "user", "content": "go on"}],
        **({"tools": json.loads(load.tools)} if load.tools else {}),
    }
    body = json.dumps(asked).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Clients:
    """All connections and their measurements."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.request = request_bytes(load)
        self.left = load.requests
        self.reads_stamps = load.kind in ("paced", "tool", "act")
        self.done = self.failed = self.begun = 0
        self.latencies: list[float] = []
        self.delays: list[float] = []
        self.firsts: list[float] = []
        self.tools: list[float] = []
        self.noted_from = math.inf if load.settle_s else 0.0
        self.over = asyncio.Event()

    def take(self) -> bool:
        """Return whether there is one more request to send."""
        self.left -= 1
        return self.left >= 0

    def ended(self, failed: bool, latency: float) -> None:
        """Count a response that is over; ``latency`` is in seconds."""
        self.done += 1
        self.failed += failed
        self.latencies.append(latency)
        if self.load.settle_s:
            self.noted_from = math.inf
        if self.done >= self.load.requests:
            self.over.set()

    def began(self) -> None:
        """Count a response that has begun."""
        self.begun += 1
        if self.load.settle_s and self.begun == self.load.connections and not self.done:
            self.noted_from = time.monotonic_ns() + 1e9 * self.load.settle_s
        if self.load.hold and self.begun == self.load.connections:
            print("open", flush=True)

    def result(self, wall_s: float) -> Result:
        return Result(
            self.done,
            self.failed,
            wall_s,
            _percentiles([1000 * latency for latency in self.latencies]),
            _percentiles(self.delays),
            _percentiles(self.firsts),
            _percentiles(self.tools),
        )


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, clients: Clients, *, noted: bool = True) -> None:
        self._clients = clients
        self._noted = noted and clients.reads_stamps
        self._transport: asyncio.Transport | None = None
        self._asked_at = 0.0
        self._head = b""
        self._in_body = False
        self._left = -1
        self._tail = b""
        self._chunks = 0
        self._ok = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def ask(self) -> None:
        """Send the next request, if there is one."""
        if self._transport is None or not self._clients.take():
            return
        self._head, self._in_body, self._left, self._tail, self._chunks = b"", False, -1, b"", 0
        self._asked_at = time.monotonic()
        self._transport.write(self._clients.request)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._asked_at and not self._clients.over.is_set():
            self._clients.ended(True, time.monotonic() - self._asked_at)

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._in_body = True
            self._ok = head.startswith(b"HTTP/1.1 200 ")
            _, _, length = head.lower().partition(b"content-length:")
            self._left = int(length.partition(b"\r\n")[0]) if length else -1
            self._clients.began()
        if self._noted:
            self._note(data)
        if self._left >= 0:
            self._left -= len(data)
            if self._left == 0:
                self._end()
            return
        self._tail = (self._tail + data)[-5:]
        if self._tail == b"0\r\n\r\n":
            self._end()

    def _note(self, data: bytes) -> None:
        now = time.monotonic_ns()
        clients = self._clients
        if clients.load.kind != "paced":
            clients.tools += [at / 1e6 for at in stamps(data)]
            return
        for at in stamps(data):
            delay = (now - at) / 1e6
            if not self._chunks:
                clients.firsts.append(delay)
            self._chunks += 1
            if at >= clients.noted_from:
                clients.delays.append(delay)

    def _end(self) -> None:
        failed = not self._ok or (
            self._noted and self._clients.load.kind == "paced" and self._chunks != self._clients.load.count
        )
        self._clients.ended(failed, time.monotonic() - self._asked_at)
        self._asked_at = 0.0
        self.ask()


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile; zeros if there are no values."""
    if not values:
        return (0.0, 0.0)
    ranked = sorted(values)
    return (ranked[len(ranked) // 2], ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))])


async def run(load: Load) -> Result:
    """Send all requests, and return the result."""
    clients = Clients(load)
    loop = asyncio.get_running_loop()
    connections = []
    for at in range(load.connections):
        made = partial(Client, clients, noted=at % load.each_noted == 0)
        _, client = await loop.create_connection(made, "127.0.0.1", load.port)
        connections.append(client)
    opening_s = (load.opening_ms or load.pause_ms) / 1000
    started = time.monotonic()
    for at, client in enumerate(connections):
        client.ask()
        if load.kind == "paced" and at % 8 == 7:
            await asyncio.sleep(opening_s * 8 / load.connections)
    await clients.over.wait()
    return clients.result(time.monotonic() - started)


def main(text: str) -> None:
    """Run the load that the text describes, and print its result."""
    import uvloop

    described: dict[str, Any] = json.loads(text)
    print(json.dumps(asdict(uvloop.run(run(Load(**described))))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
