"""Hosts with different keys for one record: the second one says which key it lacks, and does not start."""

import asyncio
from pathlib import Path

import pytest
from proxy_process import serving, write_config
from raw_upstream import RawUpstream
from store_postgres import fetch
from store_records import T0, response

pytest.importorskip("asyncpg")

from proxy.base.errors import StoreError
from proxy.config.load import load_config
from proxy.store.options import StoreOptions
from proxy.store.postgres.db import connect
from proxy.store.postgres.store import PostgresStore
from proxy.store.seal import Seal
from proxy.telemetry.log.json_lines import LineCleaner

ONE, TWO = Seal(b"1" * 32), Seal(b"2" * 32)


def server(url: str, seal: Seal | None, *old: Seal, needs_all_keys: bool = True) -> PostgresStore:
    """Make the record of a server with these keys."""
    options = StoreOptions(
        seal=seal, old_seals=old, reap=True, needs_all_keys=needs_all_keys, clock=lambda: T0
    )
    return PostgresStore(url, options)


async def test_a_second_host_with_another_key_does_not_start(postgres_url: str) -> None:
    """On an empty record the first key is noted; a host without it is refused, with another key or none."""
    first = server(postgres_url, ONE)
    await first.start()
    assert await fetch(postgres_url, "SELECT id FROM seal_keys") == [(ONE.id,)]
    for lacking in (TWO, None):
        with pytest.raises(StoreError) as refused:
            await server(postgres_url, lacking).start()
        assert f"the key {ONE.id} sealed what other servers of this record write" in str(refused.value)
        assert "store.old_seal_keys" in str(refused.value)
        assert "\n" not in str(refused.value)
    assert await fetch(postgres_url, "SELECT id FROM seal_keys") == [(ONE.id,)]
    second = server(postgres_url, ONE)
    await second.start()
    for store in (first, second):
        await store.aclose()


async def test_of_two_hosts_that_start_at_once_one_is_refused(postgres_url: str) -> None:
    """If two hosts with different keys start at the same moment on an empty record, exactly one serves."""
    stores = [server(postgres_url, ONE), server(postgres_url, TWO)]
    outcomes = await asyncio.gather(*(store.start() for store in stores), return_exceptions=True)
    refused = [str(each) for each in outcomes if each is not None]
    assert len(refused) == 1, refused
    assert "sealed what other servers of this record write" in refused[0]
    for store in stores:
        await store.aclose()


async def test_a_key_is_changed_host_by_host(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """With the old key named, a host may seal with a new one; hosts that lack it say so every minute."""
    before, after = server(postgres_url, ONE), server(postgres_url, TWO, ONE)
    await before.start()
    await after.start()
    after.put_response(response(created_at=T0))
    assert await after.wait_until_visible(30)
    connection = await connect(postgres_url)
    await before._check_each_minute(connection)
    await connection.close()
    assert f"other servers of this record seal with the key {TWO.id}" in caplog.text
    with pytest.raises(StoreError, match=f"the key {TWO.id}, which is not configured; name it in store.old_"):
        await before.find_response("resp_1", "open")
    await before.aclose()
    await after.reseal()
    assert await fetch(postgres_url, "SELECT id FROM seal_keys") == [(TWO.id,)]
    await after.aclose()
    lost = server(postgres_url, None, needs_all_keys=False)
    await lost.start()
    assert await lost.forget_sealed(TWO.id) == 1
    await lost.aclose()
    assert await fetch(postgres_url, "SELECT id FROM seal_keys") == []


async def test_a_host_with_another_key_ends_with_one_line(tmp_path: Path, postgres_url: str) -> None:
    """``serve`` on a second host with another ``store.seal_key`` ends, and the line names key and setting."""
    record = f'[store]\nurl = "{postgres_url}"\nseal_key = "env:SEAL"\n'
    async with RawUpstream() as upstream:
        folders = [tmp_path / "a", tmp_path / "b"]
        for folder in folders:
            folder.mkdir()
            write_config(folder, upstream.url, more=record)
        env = [{"SEAL": digit * 64, "XDG_STATE_HOME": str(tmp_path / digit)} for digit in "12"]
        async with serving(folders[0], env=env[0]):
            with pytest.raises(
                AssertionError, match=r"no .*listens.*the record has content that cannot be read"
            ):
                async with serving(folders[1], env=env[1]):
                    pass


@pytest.mark.parametrize("word", ["store", "seal", "keys", "old_seal_keys"])
def test_the_advice_is_whole_in_the_log(tmp_path: Path, word: str) -> None:
    """A password that is a word of a setting's name does not hide that name, which would give the password
    away; any other is masked."""
    config = tmp_path / "toolrelay.toml"
    config.write_text(
        f'[upstreams.default]\nbase_url = "http://127.0.0.1:1/v1"\napi_key = ""\n'
        f'[store]\nurl = "postgresql://toolrelay:{word}@127.0.0.1/x"\n[limits]\nstorage = "env:LIMITS"\n'
    )
    secrets = load_config(config, {"LIMITS": "redis://:sk-hunter2@127.0.0.1:6379/0"}).log_secrets()
    advice = (
        f"content is sealed with the key {ONE.id}, which is not configured; name it in store.old_seal_keys"
    )
    assert LineCleaner(secrets).text(advice) == advice
    assert LineCleaner(secrets).text("sk-hunter2 in store.url") == "[redacted] in store.url"
