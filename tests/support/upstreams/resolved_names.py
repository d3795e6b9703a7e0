"""Host names and their addresses, as a test says."""

import socket
from typing import Any

from aiohttp.abc import AbstractResolver


class Names(AbstractResolver):
    """A resolver that gives every name the same addresses and counts its calls."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked = 0

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> Any:
        """Return the addresses."""
        self.asked += 1
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": 0,
                "flags": 0,
            }
            for address in self.addresses
        ]

    async def close(self) -> None:
        """Do nothing."""
