"""An HTTP client that answers from files, for a demo without a network.

Each ``*.json`` file of the folder is one exchange: ``{"url", "params", "body"}``. The file with the same URL
and the same parameters answers a request.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from proxy.base.errors import ConfigError, ToolFailure
from proxy.tools.contract.capabilities import HttpClient, HttpFailure, QueryParams, TextPage

_MAX_FILES = 256


class RecordedHttpClient:
    """Implements :class:`~proxy.tools.contract.capabilities.HttpClient` from a folder of exchanges."""

    def __init__(self, folder: Path) -> None:
        """Read the folder; raise :class:`ConfigError` if it holds no exchange or a malformed
        one."""
        self._bodies: dict[tuple[str, frozenset[tuple[str, str]]], bytes] = {}
        for path in sorted(folder.glob("*.json"))[:_MAX_FILES]:
            try:
                exchange = orjson.loads(path.read_bytes())
                key = _key(exchange["url"], exchange["params"])
                # Kept as text, so that no caller can change what the next one gets.
                self._bodies[key] = orjson.dumps(exchange["body"])
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                raise ConfigError(str(path), "is not a recorded HTTP exchange") from None
        if not self._bodies:
            raise ConfigError(str(folder), "holds no recorded HTTP exchange")

    def client(self, hosts: Sequence[str]) -> HttpClient:
        """Return the client for a tool's hosts. No host is called, so all tools share one client."""
        return self

    async def get_json(
        self, url: str, params: QueryParams | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Return the recorded body; raise :class:`ToolFailure` with the URL if none fits."""
        body = self._bodies.get(_key(url, params or {}))
        if body is None:
            raise ToolFailure(f"no answer of {url} was recorded for this request; the demo knows Berlin only")
        return orjson.loads(body)

    async def post_json(
        self,
        url: str,
        body: Any,
        params: QueryParams | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Raise :class:`HttpFailure`: no such request is recorded."""
        raise HttpFailure(f"no answer of {url} was recorded for this request", status=404)

    async def get_text(self, url: str) -> TextPage:
        """Raise :class:`HttpFailure`: no such request is recorded."""
        raise HttpFailure(f"no answer of {url} was recorded for this request", status=404)


def _key(url: str, params: QueryParams) -> tuple[str, frozenset[tuple[str, str]]]:
    """Return the key that is the same for equal requests; values are compared without case."""
    return url, frozenset((name, str(value).casefold()) for name, value in params.items())
