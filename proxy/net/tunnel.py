"""Open a tunnel through a forward proxy: CONNECT, as RFC 9110, section 9.3.6 has it."""

import asyncio
import re
import socket
from typing import Final

from proxy.net.outgoing import HttpProxy

_MAX_HEAD: Final = 16 * 1024
"""Bytes. What a proxy says before the tunnel begins has a status line and a few headers."""

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n]*)?\r?\n")


class TunnelRefused(Exception):
    """A proxy answered, and there is no tunnel. The message says why, without the proxy's own words."""


async def open_tunnel(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, proxy: HttpProxy, host: str, port: int
) -> None:
    """Turn a connection to ``proxy`` into one to ``host``, which the proxy resolves.

    Whatever is sent on the socket afterwards goes to the host. Raises :class:`TunnelRefused`, or ``OSError``
    if the connection fails. The caller has the deadline, and closes the socket.
    """
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", "User-Agent: toolrelay"]
    if proxy.credentials:
        lines.append(f"Proxy-Authorization: Basic {proxy.credentials}")
    await loop.sock_sendall(sock, "".join(f"{line}\r\n" for line in [*lines, ""]).encode("ascii"))
    _check(await _read_head(loop, sock, proxy), proxy)


async def _read_head(loop: asyncio.AbstractEventLoop, sock: socket.socket, proxy: HttpProxy) -> bytes:
    """Return the head of the proxy's answer."""
    head = b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        piece = await loop.sock_recv(sock, 4096)
        if not piece:
            raise TunnelRefused(f"the proxy of {proxy.setting} closed the connection without an answer")
        head += piece
        if len(head) > _MAX_HEAD or not head.startswith(b"HTTP/"[: len(head)]):
            raise TunnelRefused(f"what answers at the address of {proxy.setting} is not an HTTP proxy")
    return head


def _check(head: bytes, proxy: HttpProxy) -> None:
    """Raise :class:`TunnelRefused` unless the head opens the tunnel, with nothing after it."""
    match = _STATUS_LINE.match(head)
    if match is None:
        raise TunnelRefused(f"what answers at the address of {proxy.setting} is not an HTTP proxy")
    status = int(match[1])
    if status in (401, 407):  # tinyproxy answers wrong credentials with 401
        known = (
            "refuses its user name and password" if proxy.credentials else "wants a user name and a password"
        )
        raise TunnelRefused(f"the proxy of {proxy.setting} {known} (status {status})")
    if not 200 <= status < 300:
        raise TunnelRefused(f"the proxy of {proxy.setting} does not connect to this host (status {status})")
    if not head.endswith((b"\r\n\r\n", b"\n\n")):
        # The host speaks after this client does, so these bytes are the proxy's own.
        raise TunnelRefused(f"the proxy of {proxy.setting} sent more than the beginning of a tunnel")
