"""Test doubles for the HTTP client of tools, which open no connection."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from proxy.tools import TextPage
from proxy.tools.contract.capabilities import QueryParams


class NoHttp:
    """An HTTP client for tools that make no call."""

    def client(self, hosts: Sequence[str]) -> Self:
        """Return this client."""
        return self

    async def get_json(
        self, url: str, params: QueryParams | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Fail: the tool must not call this."""
        raise AssertionError(url)

    async def post_json(
        self,
        url: str,
        body: Any,
        params: QueryParams | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Fail: the tool must not call this."""
        raise AssertionError(url)

    async def get_text(self, url: str) -> TextPage:
        """Fail: the tool must not call this."""
        raise AssertionError(url)


class Answers(NoHttp):
    """An HTTP client that answers each GET with the next prepared body and keeps URL and parameters."""

    def __init__(self, *bodies: Any) -> None:
        self.bodies = list(bodies)
        self.asked: list[tuple[str, Any]] = []

    async def get_json(
        self, url: str, params: QueryParams | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Return the next body."""
        self.asked.append((url, params))
        return self.bodies.pop(0)
