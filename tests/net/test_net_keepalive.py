"""Connections that notice when their peer is gone: the socket options of real connections."""

import socket

import pytest
from raw_upstream import RawUpstream, whole

from proxy.net.keepalive import GONE_AFTER_S, watch_peer
from proxy.upstreams.base import UpstreamRequest
from proxy.upstreams.http1.upstream import Http1Upstream

pytestmark = pytest.mark.both_loops


def options(sock: socket.socket) -> tuple[int, int, int]:
    """Whether probes are sent; the seconds until missing answers to probes or to data end a connection."""
    idle, interval, probes = [
        sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
        for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    ]
    user = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), idle + interval * probes, user // 1000


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no TCP_USER_TIMEOUT")
async def test_an_upstream_s_connections_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new upstream connection sends keep-alive probes, and ends ``GONE_AFTER_S`` after the last sign."""
    seen: list[socket.socket] = []

    def noted(sock: socket.socket) -> None:
        watch_peer(sock)
        seen.append(sock)
        found.append(options(sock))

    found: list[tuple[int, int, int]] = []
    monkeypatch.setattr("proxy.upstreams.http1.connection.watch_peer", noted)
    async with RawUpstream(whole(b"{}")) as raw:
        upstream = Http1Upstream("main", raw.url)
        await (await upstream.open(UpstreamRequest("POST", "/x", body=b"{}"))).read(10)
        await upstream.aclose()
    assert found == [(1, GONE_AFTER_S, GONE_AFTER_S)]


def test_what_a_system_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """``watch_peer`` raises no error for a socket of another kind or a system without these options."""
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT", raising=False)
    first, second = socket.socketpair()
    watch_peer(first)
    first.close()
    second.close()
