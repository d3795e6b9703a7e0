"""One proxy for each way to the recordings and each set of allowed tools, kept for a whole module."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from e2e_rig import CORE_TOOLS, PATHS, PINNED_CLOCK, Proxy, ProxyFor, proxy_for
from fixture_loader import FIXTURES


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_proxy() -> AsyncIterator[ProxyFor]:
    """Start a proxy, or take the one that was started alike before."""
    started: dict[tuple[str, tuple[str, ...], str, Path], Proxy] = {}
    async with AsyncExitStack() as stack:

        async def start(
            way: str,
            *,
            allow: tuple[str, ...] = CORE_TOOLS,
            clock: str = PINNED_CLOCK,
            fixtures: Path = FIXTURES,
        ) -> Proxy:
            key = (way, allow, clock, fixtures)
            if key not in started:
                made = proxy_for(way, allow=allow, clock=clock, fixtures=fixtures)
                started[key] = await stack.enter_async_context(made)
            proxy = started[key]
            proxy.upstream_requests.clear()
            return proxy

        yield start


@pytest.fixture(params=PATHS)
def way(request: pytest.FixtureRequest) -> str:
    """How the proxy reaches the recordings: embedded, or over a second socket."""
    return str(request.param)
