"""HTTP clients of tools that reach nobody."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from proxy.tools import TextPage
from proxy.tools.contract.capabilities import QueryParams

__all__ = ["Answers", "NoHttp"]


class NoHttp:
    """An HTTP client for tools that make no call."""

    def client(self, hosts: Sequence[str]) -> Self:
        """Itself."""
        return self

    async def get_json(self, url: str, params: QueryParams | None = None) -> Any:
        """Never called."""
        raise AssertionError(url)

    async def post_json(
        self,
        url: str,
        body: Any,
        params: QueryParams | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Never called."""
        raise AssertionError(url)

    async def get_text(self, url: str) -> TextPage:
        """Never called."""
        raise AssertionError(url)


class Answers(NoHttp):
    """Gives prepared bodies to GET and remembers what was asked."""

    def __init__(self, *bodies: Any) -> None:
        self.bodies = list(bodies)
        self.asked: list[tuple[str, Any]] = []

    async def get_json(self, url: str, params: QueryParams | None = None) -> Any:
        """The next body."""
        self.asked.append((url, params))
        return self.bodies.pop(0)
