"""The load balancer before several hosts, and the page that says what holds on how many."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from agents_rig import Asked, Models, Turn
from client_keys import ALICE, bearer, declared
from documents import DOCS
from front_proxies import haproxy, nginx
from named_tests import cells_of
from raw_upstream import RawUpstream
from running_proxy import Proxy, make_config, running

PAGE = (DOCS / "how-to" / "several-hosts.md").read_text("utf-8")
TESTS = DOCS.parent / "tests"
BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Do it."}]}

KEYS = {"alice": ALICE} | {f"client{number}": f"tr_{number}{ALICE[4:]}" for number in range(8)}


@asynccontextmanager
async def host(name: str) -> AsyncIterator[Proxy]:
    """Run a host of its own, whose answers name it."""

    def say(asked: Asked) -> Turn:
        return Turn(f"I am {name}.")

    async with RawUpstream(Models({"m": say})) as upstream:
        config = make_config(
            {"base_url": upstream.url, "wires": ("chat",)},
            modules=("probe_tools",),
            allow=("probe_tools__slow",),
            keys={name: declared(key) for name, key in KEYS.items()},
        )
        async with running(config) as proxy:
            yield proxy


async def test_haproxy_sends_a_client_that_resumes_to_the_host_of_its_run(tmp_path: Path) -> None:
    """With the documented table, a client that comes back gets the whole stream of its run, whichever host
    had answered; without it, the other host answers 404."""
    table = re.findall(r"^  (stick.*)$", PAGE, re.MULTILINE)
    assert len(table) == 3
    async with host("one") as one, host("two") as two:
        for lines in (table, []):
            more = "\n  ".join(["balance roundrobin", *lines, f"server two 127.0.0.1:{two.port}"])
            async with haproxy(tmp_path, one.port, more) as front:
                seen, statuses = set(), set()
                for _ in range(6):
                    headers = {"Host": "localhost", **bearer(ALICE)}
                    first = await front.ask(BODY, {**headers, "x-toolrelay-resume": "on"})
                    assert first.status == 200, first.body
                    run_id = first.header("x-toolrelay-run") or ""
                    again = await front.ask(BODY, {**headers, "x-toolrelay-resume": run_id})
                    statuses.add(again.status)
                    seen.add(b"two" in first.body)
                    assert again.status == 404 or again.body == first.body
                if lines:
                    assert (seen, statuses) == ({True, False}, {200})
                else:
                    assert 404 in statuses


async def test_nginx_sends_a_client_that_resumes_to_the_host_of_its_run(tmp_path: Path) -> None:
    """With the documented hash, each client that comes back gets the whole stream of its run; the clients
    have different hosts."""
    (balance,) = re.findall(r"^  (hash .*;)$", PAGE, re.MULTILINE)
    async with (
        host("one") as one,
        host("two") as two,
        nginx(tmp_path, one.port, "proxy_set_header Host localhost;", two.port, balance=balance) as front,
    ):
        seen = set()
        for key in KEYS.values():
            first = await front.ask(BODY, {**bearer(key), "x-toolrelay-resume": "on"})
            assert first.status == 200, first.body
            run_id = first.header("x-toolrelay-run") or ""
            again = await front.ask(BODY, {**bearer(key), "x-toolrelay-resume": run_id})
            assert (again.status, again.body) == (200, first.body)
            seen.add(b"two" in first.body)
        assert seen == {True, False}


@pytest.mark.parametrize(
    "row", [cells for line in PAGE.splitlines() if len(cells := cells_of(line)) == 5][1:]
)
def test_each_guarantee_has_its_test(row: list[str]) -> None:
    """Each row of the table of guarantees has an answer for each column, and names tests that exist."""
    assert all(row)
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", row[4])
    assert named
    for file, function in named:
        (path,) = TESTS.rglob(file)
        assert not function or f"def {function}(" in path.read_text("utf-8"), function
