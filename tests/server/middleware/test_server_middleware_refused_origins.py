"""The log of refused origins: a line suggests the setting that would admit the page, and lines are few."""

import io
import json
import tomllib
from typing import Any

import pytest
from client_keys import OK
from logged import logged_to
from raw_upstream import RawUpstream
from running_proxy import make_config, running

from proxy.config.settings import ServerConfig
from proxy.server.middleware.page_guard import RefusedOrigins

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
APP = "https://app.example.com"


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_of(sink: io.StringIO) -> list[dict[str, Any]]:
    """Return the log lines about refused origins."""
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    return [line for line in lines if line["event"] == "origin_refused"]


async def test_the_line_of_the_log_lets_the_page_in() -> None:
    """With the setting that the log suggests, the page is served, and so are the origins listed before."""
    sink = io.StringIO()
    for origin in (APP, "http://localhost:5173"):
        async with RawUpstream(OK) as upstream:
            server: dict[str, Any] = {"cors_origins": ("https://first.example",)}
            with logged_to(sink):
                async with running(make_config(upstream.url, server=server)) as proxy:
                    for _ in range(3):
                        assert (await proxy.ask(ASK, {"Origin": origin})).status == 403
            line = lines_of(sink)[-1]
            assert (line["origin"], line["count"], line["level"]) == (origin, 1, "warning")
            found = tomllib.loads(line["hint"].partition(", set ")[2])["server"]
            server = {name: tuple(value) for name, value in found.items()}
            async with running(make_config(upstream.url, server=server)) as proxy:
                for one in (origin, "https://first.example"):
                    assert (await proxy.ask(ASK, {"Origin": one})).status == 200
    assert len(lines_of(sink)) == 2


@pytest.mark.parametrize(
    "origin", ["null", "", "file://", "https://a.example/path", "x\x7fy", "*", "a" * 999]
)
def test_what_cannot_be_listed_is_said_to_be_so(origin: str) -> None:
    """For an origin that cannot be listed, the log suggests no setting, which would stop the next start."""
    sink = io.StringIO()
    with logged_to(sink):
        RefusedOrigins((APP,)).refused(origin)
    (line,) = lines_of(sink)
    assert "cors_origins =" not in line["hint"]
    assert "http" in line["hint"]
    assert len(line["origin"]) <= 210


def test_once_a_minute_and_counted() -> None:
    """Each origin has at most one line a minute, with the number of requests since its last line."""
    sink, clock = io.StringIO(), Clock()
    with logged_to(sink):
        origins = RefusedOrigins((), clock)
        for clock.now in (0.0, 1.0, 59.0, 60.0, 61.0):
            origins.refused(APP)
            origins.refused("http://b.example")
    assert [(line["origin"], line["count"]) for line in lines_of(sink)] == [
        (APP, 1), ("http://b.example", 1), (APP, 3), ("http://b.example", 3),
    ]  # fmt: skip


def test_made_up_origins_fill_neither_log_nor_memory() -> None:
    """Ten thousand origins make 17 lines in a minute and fill no memory; a later origin has its own line."""
    sink, clock = io.StringIO(), Clock()
    with logged_to(sink):
        origins = RefusedOrigins((), clock)
        for number in range(10_000):
            origins.refused(f"https://{number}.example")
        assert len(lines_of(sink)) == 17
        assert len(origins._known) == 16
        clock.now = 100.0
        origins.refused(APP)
        assert len(origins._known) == 1
    assert lines_of(sink)[-1]["origin"] == APP
    for line in lines_of(sink):
        listed = tomllib.loads(line["hint"].partition(", set ")[2])["server"]["cors_origins"]
        ServerConfig(cors_origins=tuple(listed))
