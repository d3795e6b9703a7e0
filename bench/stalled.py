"""``python -m bench.stalled [CLIENTS]``: the cost of a client that does not read, with and without tools.

The upstream writes as fast as it can; the clients ask for a stream and read nothing. The result is the
growth of the proxy's processes, divided by the number of clients. The system's own socket buffers are kept
small, so that the result shows what the proxy itself holds. ``--large`` leaves them unchanged. Then they
take in more of a stream, and that is text of the answer, which a run with tools keeps until the end of the
turn.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import tempfile
from pathlib import Path

from bench.contestants import toolrelay
from bench.wire import KEY

SMALL_BUFFER = 8192
SETTLE_S = 3.0
EVENT = (
    b'data: {"id":"c1","object":"chat.completion.chunk","created":7,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"word %d "},"finish_reason":null}]}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve as an upstream whose stream never ends."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        opening = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = opening.partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or b"0"))
        writer.write(HEAD)
        number = 0
        while True:
            data = b"".join(EVENT % (number + at) for at in range(400))
            number += 400
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
    writer.close()


def stalled(port: int, *, large: bool) -> socket.socket:
    """Open a client that asks for a stream and reads nothing of it."""
    client = socket.socket()
    if not large:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    client.connect(("127.0.0.1", port))
    body = json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


async def cost(folder: Path, clients: int, *, tools: bool, large: bool) -> float:
    """Return the KiB that each such client costs."""
    # At the end the upstream's streams are cancelled, and asyncio's server would report each.
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
    port = server.sockets[0].getsockname()[1]
    name = "toolrelay, tools offered" if tools else "toolrelay"
    with toolrelay(name, folder, port, tools=tools, core=None) as proxy:
        held = [await asyncio.to_thread(stalled, proxy.port, large=large) for _ in range(10)]
        await asyncio.sleep(SETTLE_S)
        before = proxy.memory_kib()
        held += [await asyncio.to_thread(stalled, proxy.port, large=large) for _ in range(clients)]
        await asyncio.sleep(SETTLE_S)
        after = proxy.memory_kib()
        for client in held:
            client.close()
    server.close()
    return (after - before) / clients


def main(arguments: list[str] | None = None) -> int:
    """Print the cost of a client with and without tools."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.stalled", description="Measure clients that do not read."
    )
    parser.add_argument("clients", type=int, nargs="?", default=100, help="how many (100)")
    parser.add_argument("--large", action="store_true", help="leave the system's buffers as they are")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for tools in (False, True):
            kib = asyncio.run(cost(Path(folder), given.clients, tools=tools, large=given.large))
            print(
                f"{'tools offered' if tools else 'passed through'}: {kib:.0f} KiB a client that does not read"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
