"""Fixtures: a proxy per configuration, shared within a module, and Node scripts with their packages."""

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from e2e_packages import SCRIPTS, installed_packages
from e2e_rig import CORE_TOOLS, PATHS, PINNED_CLOCK, Proxy, ProxyFor, proxy_for
from fixture_loader import FIXTURES
from require import require
from ui_tab import fake, tab

from proxy.wires.repairing import RepairHabit

__all__ = ["fake", "tab"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_proxy() -> AsyncIterator[ProxyFor]:
    """Yield a function that starts a proxy, or returns the running one with the same settings."""
    started: dict[tuple[str, tuple[str, ...], str, Path, RepairHabit], Proxy] = {}
    async with AsyncExitStack() as stack:

        async def start(
            way: str,
            *,
            allow: tuple[str, ...] = CORE_TOOLS,
            clock: str = PINNED_CLOCK,
            fixtures: Path = FIXTURES,
            repair: RepairHabit = "auto",
        ) -> Proxy:
            key = (way, allow, clock, fixtures, repair)
            if key not in started:
                made = proxy_for(way, allow=allow, clock=clock, fixtures=fixtures, repair=repair)
                started[key] = await stack.enter_async_context(made)
            proxy = started[key]
            proxy.upstream_requests.clear()
            return proxy

        yield start


@pytest.fixture(params=PATHS)
def way(request: pytest.FixtureRequest) -> str:
    """How the proxy reaches the recordings: embedded, or over a second socket."""
    return str(request.param)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts beside their packages, which are installed once and kept outside of the project."""
    node, npm = shutil.which("node"), shutil.which("npm")
    require("node", bool(node and npm), "node and npm are not installed")
    packages, trouble = installed_packages(str(npm))
    require("node", packages is not None, f"the npm packages cannot be installed: {trouble}")
    assert packages is not None
    folder = tmp_path_factory.mktemp("node")
    for file in (*SCRIPTS.glob("*.mjs"), SCRIPTS / "package.json"):
        shutil.copy(file, folder)
    (folder / "node_modules").symlink_to(packages / "node_modules")
    return folder
