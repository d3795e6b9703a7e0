"""An HTTP client that answers from files, for a demo without a network.

Each ``*.json`` file of the folder is one exchange: ``{"url", "params", "body"}``.  A request is
answered by the file of the same URL and the same parameters, and by no other.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from proxy.errors import ConfigError, ToolFailure
from proxy.tools.contract.capabilities import HttpClient, HttpFailure, QueryParams, TextPage

__all__ = ["RecordedHttpClient"]

_MAX_FILES = 256


class RecordedHttpClient:
    """Implements :class:`~proxy.tools.contract.capabilities.HttpClient` from a folder of exchanges."""

    def __init__(self, folder: Path) -> None:
        """Read the folder; raises :class:`~proxy.errors.ConfigError` for one that holds no exchange."""
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
        """The client for a tool's hosts; nothing is called here, so all have the same one."""
        return self

    async def get_json(self, url: str, params: QueryParams | None = None) -> Any:
        """The recorded body; :class:`~proxy.errors.ToolFailure` names a URL that was not recorded."""
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
        """Nothing of this kind is recorded: always raises :class:`HttpFailure`."""
        raise HttpFailure(f"no answer of {url} was recorded for this request", status=404)

    async def get_text(self, url: str) -> TextPage:
        """Nothing of this kind is recorded: always raises :class:`HttpFailure`."""
        raise HttpFailure(f"no answer of {url} was recorded for this request", status=404)


def _key(url: str, params: QueryParams) -> tuple[str, frozenset[tuple[str, str]]]:
    """What makes two requests the same; the case of a name does not."""
    return url, frozenset((name, str(value).casefold()) for name, value in params.items())
