"""The store in memory: it is bounded, shares its room between callers, and uses no file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_records import T0, hidden, invocation, message, response, run, suspended

from proxy.base.caches import cache_sizes
from proxy.base.errors import StoreUnavailable
from proxy.records.effects import EffectClaim, EffectResult
from proxy.store.base import RunFilter
from proxy.store.options import StoreOptions
from proxy.store.seal import Seal
from proxy.store.sqlite.memory import MAX_BYTES, MemoryStore
from proxy.store.sqlite.room import who_gives

Make = Callable[..., MemoryStore]

KIB = b"x" * 1024
BOUND = 400_000


def held(store: MemoryStore) -> int:
    """The bytes of the rows of a store."""
    assert store._db is not None
    return store._db.held()


async def test_content_past_the_bytes_goes_the_oldest_first(make_memory: Make) -> None:
    """The content of one caller stays below ``max_bytes``: the store drops the oldest, keeps the newest."""
    store = make_memory(max_bytes=BOUND)
    await store.start()
    for number in range(200):
        store.put_response(response(f"r{number}", response=KIB * 8, created_at=T0 + number))
        await store.list_runs(RunFilter())
        assert held(store) <= BOUND
    found = [await store.find_response(f"r{number}", "open") is not None for number in range(200)]
    assert found == sorted(found)
    assert 20 <= sum(found) <= BOUND // 8192
    size = cache_sizes()["record_in_memory"]
    assert 0 < size.held <= size.limit


async def test_a_caller_pushes_out_its_own_content(make_memory: Make) -> None:
    """Rule R3: a key that floods the store under many end users does not push out other keys' content."""
    store = make_memory(max_bytes=BOUND)
    await store.start()
    for caller in ("ada", "team/cleo", "flood/0"):
        store.put_run(run(f"run_{caller}", caller=caller))
        store.put_suspended(suspended(f"s-{caller}", run_id=f"run_{caller}", caller=caller, payload=KIB))
        store.put_messages([message(f"run_{caller}", content="x" * 1000)])
        store.put_hidden(hidden(f"h-{caller}", caller=caller, payload=KIB))
    for number in range(300):
        flood: dict[str, Any] = {"caller": f"flood/{number}", "created_at": T0 + 1 + number}
        store.put_hidden(hidden(f"h-{number}", payload=KIB * 8, **flood))
        await store.list_runs(RunFilter())
    assert held(store) <= BOUND
    for caller in ("ada", "team/cleo"):
        assert await store.find_suspended(f"s-{caller}") is not None
        assert (await store.find_hidden([f"h-{caller}"]))[f"h-{caller}"]
        detail = await store.get_run(f"run_{caller}")
        assert detail is not None
        assert len(detail.messages) == 1
    assert (await store.find_hidden(["h-299"]))["h-299"]
    assert not (await store.find_hidden(["h-0"]))["h-0"]


async def test_runs_past_the_bytes_go_before_content(make_memory: Make) -> None:
    """If runs take too many bytes, the store drops the oldest completed runs, and keeps content."""
    store = make_memory(max_bytes=BOUND)
    await store.start()
    store.put_response(response(run_id="kept", response=KIB * 20))
    store.put_run(run("going-on", status="running", started_at=T0 - 10))
    for number in range(3000):
        store.put_run(run(f"r{number:04}", status="completed", started_at=T0 + number))
        if not number % 200:
            await store.list_runs(RunFilter())
    assert await store.get_run("r2999") is not None
    assert held(store) <= BOUND
    assert await store.get_run("r0000") is None
    assert await store.get_run("going-on") is not None
    assert await store.find_response("resp_1", "open") is not None


async def test_effects_lose_what_they_gave_and_not_that_they_happened(make_memory: Make) -> None:
    """Rule R5: above ``max_bytes`` the store drops the oldest results of effects, but no claim."""
    store = make_memory(max_bytes=BOUND)
    await store.start()
    for number in range(40):
        store.put_run(run(f"run_{number}", status="completed", started_at=T0 + number))
        call = invocation(f"inv_{number}", run_id=f"run_{number}", status="success")
        claim = EffectClaim(f"place:{number}", f"request:{number}", is_repeat=True)
        assert await store.claim_effect(call, claim) is None
        store.keep_effect(f"inv_{number}", EffectResult("x" * 16_000))
        await store.list_runs(RunFilter())
        assert held(store) <= BOUND
    found = [await store.find_effect(EffectClaim(f"place:{number}")) for number in range(40)]
    assert all(each is not None and each.status == "success" for each in found)
    kept = [each.result is not None for each in found if each]
    assert kept == sorted(kept)
    assert not kept[0]
    assert kept[-1]


async def test_what_is_too_large_by_itself_pushes_out_nobody_elses(make_memory: Make) -> None:
    """A response that is larger than the whole store is dropped, and another caller keeps its own."""
    store = make_memory(max_bytes=BOUND)
    await store.start()
    store.put_response(response("small", caller="ada", response=KIB))
    store.put_response(response("large", caller="bob", response=b"x" * BOUND, created_at=T0 + 1))
    await store.list_runs(RunFilter())
    assert await store.find_response("small", "ada") is not None
    assert await store.find_response("large", "bob") is None


def test_no_option_makes_the_bound_larger() -> None:
    """``store.max_bytes`` may lower the limit of a store in memory, but not raise it."""
    for given_bytes, bound in ((0, MAX_BYTES), (2**40, MAX_BYTES), (1000, 1000)):
        assert MemoryStore(StoreOptions(max_bytes=given_bytes))._max_bytes == bound


async def test_nothing_touches_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in memory creates and opens no file, sorts in memory, and seals nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    before = {os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if _is_open(each)}
    store = MemoryStore(StoreOptions(content="all", seal=Seal(b"k" * 32), clock=lambda: T0))
    await store.start()
    store.put_run(run())
    store.put_messages([message(content="x" * 500_000)])
    await store.hash_key()
    await store.note_keys()
    assert await store.get_run("run_1") is not None
    assert store._db is not None
    assert list(await store._db.execute_fetchall("PRAGMA temp_store")) == [(2,)]
    ((_, _, name),) = await store._db.execute_fetchall("PRAGMA database_list")
    assert name == ""
    ((sealed_by,),) = await store._db.execute_fetchall("SELECT sealed_by FROM messages")
    assert sealed_by is None
    after = {os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if _is_open(each)}
    assert {each for each in after - before if each.startswith("/")} == set()
    assert os.listdir(tmp_path) == []
    await store.aclose()


def _is_open(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


async def test_two_stores_have_nothing_in_common(make_memory: Make) -> None:
    """Each store in memory has its own database."""
    first, second = make_memory(), make_memory()
    await first.start()
    await second.start()
    first.put_run(run())
    assert await first.get_run("run_1") is not None
    assert await second.get_run("run_1") is None


async def test_what_is_in_memory_can_be_read_after_the_end(make_memory: Make) -> None:
    """After its close a store in memory can still be read, as a replay does, but not written."""
    store = make_memory()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.find_suspended("key-1")
    await store.start()
    store.put_run(run())
    await store.aclose()
    assert await store.get_run("run_1") is not None
    assert not await store.wait_until_visible(1.0)
    assert not await store.healthy()
    with pytest.raises(StoreUnavailable):
        await store.open_invocation(invocation(), durable=True)


_HELD = st.dictionaries(st.sampled_from(["a", "a/1", "a/2", "b", "b/1", "c"]), st.integers(0, 1000))


@given(held=_HELD, need=st.integers(0, 3000))
def test_whoever_has_most_gives(held: dict[str, int], need: int) -> None:
    """Callers free enough in total, none more than it holds, and only keys that hold the most give."""
    gives = who_gives(held, need)
    assert all(0 <= size <= held[caller] for caller, size in gives.items())
    assert sum(gives.values()) >= min(need, sum(held.values()))
    had, left = dict[str, int](), dict[str, int]()
    for caller, size in held.items():
        key = caller.partition("/")[0]
        had[key] = had.get(key, 0) + size
        left[key] = left.get(key, 0) + size - gives.get(caller, 0)
    giving = [key for key in had if left[key] < had[key]]
    for key in giving:
        assert all(left[other] <= left[key] + len(held) for other in had)


async def test_seal_keys_give_hash_keys_and_seal_nothing(make_memory: Make) -> None:
    """A store in memory takes its hash keys from the seal keys, for processes to share; it seals nothing."""
    new, old = Seal(bytes(32)), Seal(b"1" * 32)
    store = make_memory(seal=new, old_seals=(old,))
    await store.start()
    name, key = await store.hash_key()
    assert key == new.hash_key
    known = (await store.read_keys()).hash_keys
    assert known[name] == key
    assert old.hash_key in known.values()
    assert store._ring.current is None
