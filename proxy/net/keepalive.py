"""A peer that vanished without a word: how a socket finds out."""

import socket
from contextlib import suppress
from typing import Final

__all__ = ["GONE_AFTER_S", "watch_peer"]

GONE_AFTER_S: Final = 20
"""Seconds without any sign of the peer's system after which a connection counts as lost."""

_IDLE_S: Final = 10
_INTERVAL_S: Final = 5
_PROBES: Final = 2


def watch_peer(sock: socket.socket) -> None:
    """Let the system ask whether the peer is there, and end the connection after :data:`GONE_AFTER_S`.

    A host that lost its power or its network sends nothing more, not even a reset, so only time-outs of the
    application would notice, which must be long for a model that thinks.  TCP keepalive probes a silent
    connection; ``TCP_USER_TIMEOUT`` bounds how long sent data may stay unacknowledged.  What a system lacks
    is left out.
    """
    options = [
        ("TCP_KEEPIDLE", _IDLE_S),
        ("TCP_KEEPALIVE", _IDLE_S),  # what macOS calls it
        ("TCP_KEEPINTVL", _INTERVAL_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", GONE_AFTER_S * 1000),
    ]
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options:
        if (option := getattr(socket, name, None)) is not None:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
