"""A port on which nobody listens, and which no other program can take during the test."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port of the loopback that refuses connections: a socket that does not listen holds it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
