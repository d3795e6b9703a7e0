"""A port where nobody listens, and where nobody else can begin to meanwhile."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["closed_port"]


@contextmanager
def closed_port() -> Iterator[int]:
    """A port of loopback that refuses: it is taken by a socket that does not listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
