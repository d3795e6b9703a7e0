"""Detects peers that vanished without closing their connection."""

import socket
from contextlib import suppress
from typing import Final

GONE_AFTER_S: Final = 20
"""A connection is lost after so many seconds without any sign of the peer's system."""

_PROBES: Final = 2


def watch_peer(sock: socket.socket, gone_after_s: int = GONE_AFTER_S) -> None:
    """Let the system probe whether the peer is there, and end the connection after ``gone_after_s``.

    A host that lost its power or its network sends nothing more, not even a reset. Only time limits of the
    application would notice this, and they must be long for a model that thinks. TCP keepalive probes a
    silent connection. ``TCP_USER_TIMEOUT`` limits how long sent data may stay unacknowledged. Options that
    a system lacks are left out.
    """
    idle_s = gone_after_s // 2
    options = [
        ("TCP_KEEPIDLE", idle_s),
        ("TCP_KEEPALIVE", idle_s),  # the name on macOS
        ("TCP_KEEPINTVL", idle_s // _PROBES),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", gone_after_s * 1000),
    ]
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options:
        if (option := getattr(socket, name, None)) is not None:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
