"""A start that fails closes what it opened."""

import asyncio
from collections.abc import Sequence

import pytest
from running_proxy import make_config

from proxy.app.app import Overrides, create_services
from proxy.base.errors import StoreError
from proxy.store.sqlite.memory import MemoryStore
from proxy.tools.mcp.pins import Pin
from proxy.upstreams.base import Upstream, UpstreamRequest, UpstreamResponse


class Watched:
    """An upstream that records whether it was closed."""

    name = "default"

    def __init__(self) -> None:
        self.closed = False

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        raise AssertionError("nothing is asked at the start")

    async def aclose(self) -> None:
        self.closed = True


class WatchedStore(MemoryStore):
    """A store in memory that records whether it was started and closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    async def start(self) -> None:
        self.seen.append("started")
        await super().start()

    async def aclose(self) -> None:
        self.seen.append("closed")
        await super().aclose()


class Unreadable:
    """A source of pins that fails when they are read."""

    def __init__(self, failure: BaseException) -> None:
        self._failure = failure

    async def pins(self) -> Sequence[Pin]:
        raise self._failure


@pytest.mark.parametrize(
    "failure", [StoreError("no record"), asyncio.CancelledError()], ids=["fails", "cancelled"]
)
async def test_a_start_that_cannot_read_its_pins_closes_what_it_opened(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the start fails or is cancelled, it closes the upstream and the store."""
    watched, store = Watched(), WatchedStore()
    monkeypatch.setattr("proxy.app.open_record.open_store", lambda *_args, **_named: store)

    def watch(inner: Upstream) -> Upstream:
        return watched

    config = make_config("http://127.0.0.1:9", mcp={"servers": {"toy": {"command": "toy"}}})
    with pytest.raises(type(failure)):
        await create_services(config, overrides=Overrides(wrap_upstream=watch, pins=Unreadable(failure)))
    assert watched.closed
    assert store.seen == ["started", "closed"]
