"""Hosts whose clocks differ: what they must agree on goes by the clock of PostgreSQL."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from chat_script import content
from chat_script import reply as chat_reply
from looping import ASK, called
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import FIN, RawUpstream, Step, chunk, head

pytest.importorskip("asyncpg")

from proxy.base.errors import ConfigError
from proxy.store.options import StoreOptions
from proxy.store.postgres.clock import DatabaseClock, check_skew, tell_skew
from proxy.store.postgres.db import connect
from proxy.store.postgres.store import PostgresStore

_SHIFTED = """
import os, time
_real, _shift = time.time, float(os.environ["TEST_CLOCK_SHIFT"])
time.time = lambda: _real() + _shift
"""
"""A ``sitecustomize`` that sets the clock of a process as another machine's may be."""

SHOP = """
from proxy.tools import Redaction, tool

@tool(effect="external_side_effect", redaction=Redaction(output=("done",)))
async def buy(what: str) -> dict[str, str]:
    "Write down what was bought."
    with open("../bought", "a") as file:
        file.write(f"{what}\\n")
    return {"done": what}
"""
BUY = called(("call_b", "shop__buy", '{"what":"milk"}'))
LOST: list[Step] = [
    head("Content-Type: text/event-stream", "Transfer-Encoding: chunked"),
    chunk(content("Bou")),
    FIN,
]


def host(folder: Path, upstream: str, url: str, shift_s: float, more: str = "") -> Mapping[str, str]:
    """Write the configuration of a host, and return the environment that shifts its clock."""
    folder.mkdir()
    limits = "[limits]\nrequests = []\ntool_calls = []\n"
    record = f'[store]\nurl = "{url}"\n'
    write_config(folder, upstream, allow=("shop__buy",), more=f"{more}{limits}{record}max_clock_skew_s = 0\n")
    (folder / "shop.py").write_text(SHOP)
    config = folder / "toolrelay.toml"
    config.write_text(config.read_text().replace('["effect.py"]', '["shop.py"]'))
    (folder / "sitecustomize.py").write_text(_SHIFTED)
    return {
        "PYTHONPATH": str(folder),
        "TEST_CLOCK_SHIFT": str(shift_s),
        "XDG_STATE_HOME": str(folder / "state"),
        "ADMIN": "tr_0123456789abcdefghijklmnopqrstuvwxyz",
    }


@pytest.mark.parametrize("shifts", [(-300.0, 300.0), (0.0, 900.0)])
async def test_an_unsaid_repeat_at_a_host_with_another_clock_buys_nothing_twice(
    tmp_path: Path, postgres_url: str, shifts: Sequence[float]
) -> None:
    """Rule R5: after a lost stream the same body at another host, with a clock minutes off, buys nothing."""
    bought = chat_reply(None, ("call_b", "shop__buy", '{"what":"milk"}'))
    async with RawUpstream(BUY, LOST, bought, chat_reply("Bought.")) as upstream:
        folders = [tmp_path / name for name in "ab"]
        env = [
            host(*each) for each in zip(folders, [upstream.url] * 2, [postgres_url] * 2, shifts, strict=True)
        ]
        async with serving(folders[0], env=env[0]) as one, serving(folders[1], env=env[1]) as two:
            assert b"error" in (await one.ask(ASK)).body
            assert b"Bought." in (await two.ask({**ASK, "stream": False})).body
    assert (tmp_path / "bought").read_text().split() == ["milk"]


async def _token(proxy: ProxyProcess, key: str) -> str:
    answer = await proxy.ask(
        {"expires_in": 900}, path="/v1/toolrelay/tokens", headers={"Authorization": f"Bearer {key}"}
    )
    assert answer.status == 200, answer.body
    return str(answer.json["token"])


async def test_a_token_of_a_host_with_another_clock_is_taken(tmp_path: Path, postgres_url: str) -> None:
    """A token that one host has made with the longest life is valid at once at hosts with other clocks."""
    keys = '[keys.web]\nsecret = "env:ADMIN"\nmint = true\n'
    async with RawUpstream(*[chat_reply("Hello.")] * 2) as upstream:
        folders = [tmp_path / name for name in "ab"]
        env = [
            host(folder, upstream.url, postgres_url, shift, keys)
            for folder, shift in zip(folders, (300.0, -300.0), strict=True)
        ]
        async with serving(folders[0], env=env[0]) as one, serving(folders[1], env=env[1]) as two:
            for maker, taker in ((one, two), (two, one)):
                token = await _token(maker, env[0]["ADMIN"])
                answer = await taker.ask(
                    {**ASK, "stream": False}, headers={"Authorization": f"Bearer {token}"}
                )
                assert answer.status == 200, answer.body


async def test_a_server_with_a_clock_far_off_does_not_start(postgres_url: str) -> None:
    """Above ``store.max_clock_skew_s`` the start is refused with one line that says by how much, and what to
    do; a smaller skew is warned about."""
    with pytest.raises(ConfigError) as refused:
        check_skew(-301.5, 60)
    said = str(refused.value)
    assert "store.max_clock_skew_s" in said
    assert "301.5 s behind PostgreSQL's" in said
    assert "NTP" in said
    assert "\n" not in said
    check_skew(301.5, 0)
    store = PostgresStore(postgres_url, StoreOptions(reap=True, max_clock_skew_s=1e-9))
    store._database_clock._local = lambda: time.time() + 300
    with pytest.raises(ConfigError, match=r"this machine's clock is (299|300)\.\d s ahead of PostgreSQL's"):
        await store.start()
    await store.aclose()


async def test_a_skew_is_warned_about_at_the_start_and_later(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has a warning above 2 s, and none below."""
    tell_skew(1.9)
    assert not caplog.records
    store = PostgresStore(postgres_url, StoreOptions(reap=True, max_clock_skew_s=60))
    store._database_clock._local = lambda: time.time() - 30
    await store.start()
    assert "s behind PostgreSQL's; synchronize the clocks" in caplog.text
    caplog.clear()
    connection = await connect(postgres_url)
    await store._check_each_minute(connection)
    await connection.close()
    await store.aclose()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_the_clock_follows_the_database(postgres_url: str) -> None:
    """All clocks of one database agree within their round trips, wherever the machines' clocks are, and a
    machine whose clock is set meanwhile changes nothing."""
    local = [time.time() + 5000]
    clocks = [DatabaseClock(lambda: local[0]), DatabaseClock(lambda: -7e6), DatabaseClock()]
    connection = await connect(postgres_url)
    trips = []
    for clock in clocks:
        asked = time.monotonic()
        await clock.ask(connection)
        trips.append(time.monotonic() - asked)
    local[0] = 0.0
    said = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
    times = [clock() for clock in clocks]
    await connection.close()
    assert max(times) - min(times) <= sum(trips)
    assert times[0] >= said - trips[0]
    assert clocks[1].skew_s < -1e8
    assert json.dumps(clocks[2].skew_s)
