"""Background responses: one process owns each, and only one attempt may cause effects."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from store_records import T0, files_below, invocation, run

from proxy.base.errors import StoreError
from proxy.records.background import BackgroundRecord, BackgroundState, Lease, StartedEffect
from proxy.records.effects import EffectClaim
from proxy.records.rows import InvocationStatus, ToolEffect
from proxy.store.seal import Seal
from proxy.store.sql.store import SqlStore

Make = Callable[..., Any]
REQUEST = b'{"input": "a secret sentence"}'
LEASE = Lease("resp_1", 1)


def record(**changes: Any) -> BackgroundRecord:
    """A response whose first attempt is the run ``run-1``."""
    return replace(BackgroundRecord("resp_1", "open", "run-1", T0), **changes)


async def found(store: SqlStore) -> BackgroundRecord:
    """The response, as the store has it."""
    one = await store.find_background("resp_1", "open")
    assert one is not None
    return one


async def left_by_a_dead(make: Make, request: bytes = REQUEST, **changes: Any) -> None:
    """Put a response in a store that closes without ending it, as a process does that dies."""
    dead = make()
    await dead.start()
    dead.put_run(run("run-1"))
    await dead.put_background(record(**changes), request)
    await dead.aclose()


def is_orphan(response: BackgroundRecord) -> bool:
    """Return whether no process runs it, though it has not ended."""
    is_running = response.state is BackgroundState.RUNNING
    return response.orphaned_at is not None if is_running else response.state is BackgroundState.RELEASED


async def test_a_living_process_keeps_its_response(make_sql: Make) -> None:
    """No other process can claim a response whose process lives, and only its caller finds it."""
    owner, other = make_sql(), make_sql()
    await owner.start()
    await other.start()
    await owner.put_background(record(), REQUEST)
    assert not is_orphan(await found(other))
    assert await other.find_background("resp_1", "somebody") is None
    assert await other.orphaned_background() == []
    assert await other.claim_background(LEASE, "run-2") is False
    assert await other.release_background(LEASE) is False
    assert (await found(owner)).attempt == 1


async def test_one_of_many_claims_an_orphan(make_sql: Make) -> None:
    """Of several processes that claim a response at the same moment exactly one has it."""
    await left_by_a_dead(make_sql)
    stores = [make_sql() for _ in range(4)]
    for store in stores:
        await store.start()
    (orphan,) = await stores[0].orphaned_background()
    assert (is_orphan(orphan), orphan.deaths) == (True, 0)
    assert await stores[1].background_request("resp_1") == REQUEST
    won = await asyncio.gather(
        *(store.claim_background(orphan.lease, f"run-2{place}") for place, store in enumerate(stores))
    )
    assert sorted(won) == [False, False, False, True]
    now = await found(stores[0])
    assert (now.attempt, now.deaths, is_orphan(now)) == (2, 1, False)
    assert now.run_id == f"run-2{won.index(True)}"
    # The lease of the first attempt is no longer valid.
    for place, store in enumerate(stores):
        assert await store.end_background(LEASE) is False
        assert await store.end_background(now.lease) is won[place]


@pytest.mark.parametrize("status", ["started", "success", "error"])
async def test_what_has_started_an_effect_is_not_run_again(make_sql: Make, status: InvocationStatus) -> None:
    """Once a call with an effect was claimed, nobody can claim the response, and the call is named."""
    dead, other = make_sql(), make_sql()
    await dead.start()
    await other.start()
    dead.put_run(run("run-1"))
    await dead.put_background(record(), REQUEST)
    call = invocation("inv-1", "run-1", effect=ToolEffect.EXTERNAL_SIDE_EFFECT)
    assert await dead.claim_effect(call, EffectClaim("place:run-1:1:0", lease=LEASE)) is None
    if status != "started":
        dead.close_invocation(replace(call, status=status, ended_at=T0 + 1))
    assert await dead.release_background(LEASE) is False
    await dead.aclose()
    assert await other.claim_background(LEASE, "run-2") is False
    assert list(await other.started_effects("run-1")) == [
        StartedEffect(call.tool, status != "started", "inv-1", "run-1", call.turn)
    ]
    assert await other.end_background(LEASE) is True
    assert (await found(other)).state is BackgroundState.ENDED
    assert await other.background_request("resp_1") is None


async def test_calls_that_read_or_never_began_do_not_count(make_sql: Make) -> None:
    """Another process can claim a response whose calls only read, were refused or were released."""
    dead, other = make_sql(), make_sql()
    await dead.start()
    await other.start()
    dead.put_run(run("run-1"))
    await dead.put_background(record(), REQUEST)
    acts = ToolEffect.EXTERNAL_SIDE_EFFECT
    await dead.open_invocation(invocation("read", "run-1", effect=ToolEffect.READ_ONLY), durable=True)
    dead.close_invocation(
        invocation("refused", "run-1", seq=1, effect=acts, status="error", error_code="policy_denied")
    )
    given_back = invocation("back", "run-1", seq=2, effect=acts)
    assert await dead.claim_effect(given_back, EffectClaim("place:run-1:1:2", lease=LEASE)) is None
    dead.release_effect("back")
    dead.close_invocation(replace(given_back, status="error", error_code="timeout", ended_at=T0 + 1))
    await dead.aclose()
    assert list(await other.started_effects("run-1")) == []
    assert await other.claim_background(LEASE, "run-2") is True


async def test_an_agents_effects_count(make_sql: Make) -> None:
    """An effect in the run of an agent keeps other processes from claiming the response."""
    dead, other = make_sql(), make_sql()
    await dead.start()
    await other.start()
    dead.put_run(run("run-1"))
    dead.put_run(replace(run("run-child"), agent="a", parent_run="run-1"))
    await dead.put_background(record(), REQUEST)
    call = invocation("inv-1", "run-child", effect=ToolEffect.STATE_CHANGE)
    assert await dead.claim_effect(call, EffectClaim("place:run-child:1:0", lease=LEASE)) is None
    await dead.aclose()
    assert await other.claim_background(LEASE, "run-2") is False


async def test_an_attempt_that_is_over_causes_no_effect(make_sql: Make) -> None:
    """A process that has lost its response to another one is refused its effects, and writes no row."""
    old, new = make_sql(), make_sql()
    await old.start()
    await new.start()
    await old.put_background(record(), REQUEST)
    assert await old.release_background(LEASE) is True
    assert is_orphan(await found(new))
    assert await new.claim_background(LEASE, "run-2") is True
    call = invocation("inv-1", "run-1", effect=ToolEffect.EXTERNAL_SIDE_EFFECT)
    with pytest.raises(StoreError):
        await old.claim_effect(call, EffectClaim("place:run-1:1:0", lease=LEASE))
    assert list(await new.started_effects("run-1")) == []
    mine = invocation("inv-2", "run-2", effect=ToolEffect.EXTERNAL_SIDE_EFFECT)
    assert await new.claim_effect(mine, EffectClaim("place:run-2:1:0", lease=Lease("resp_1", 2))) is None
    # A release does not count as a death.
    assert (await found(new)).deaths == 0


async def test_what_is_cancelled_is_not_claimed(make_sql: Make) -> None:
    """After its caller has cancelled a response, no process can claim it, but one can still end it."""
    await left_by_a_dead(make_sql)
    store = make_sql()
    await store.start()
    await store.cancel_background("resp_1", "somebody")
    assert (await found(store)).cancelled is False
    await store.cancel_background("resp_1", "open")
    assert (await found(store)).cancelled is True
    assert await store.claim_background(LEASE, "run-2") is False
    assert await store.end_background(LEASE) is True
    assert await store.end_background(LEASE) is True


async def test_the_request_is_sealed_and_goes_with_the_end(make_sqlite: Make, tmp_path: Path) -> None:
    """Rule R3: the disk holds a request only sealed, and the store deletes it when the response ends."""
    store = make_sqlite(seal=Seal(bytes(range(32))))
    await store.start()
    store.put_run(run("run-1"))
    await store.put_background(record(), REQUEST)
    assert await store.background_request("resp_1") == REQUEST
    assert not any(
        b"secret sentence" in path.read_bytes() for path in files_below(tmp_path) if path.is_file()
    )
    assert await store.end_background(LEASE) is True
    assert await store.background_request("resp_1") is None


EVENTS = ("claim", "release", "end", "effect", "cancel", "die")


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_in_whatever_order_effects_are_of_one_attempt(
    make_sql: Make, seed: int
) -> None:
    """Three processes claim, release, end, cancel, act and die at random: at most one attempt causes effects,
    and an ended response stays ended."""
    chance = random.Random(seed)
    stores: list[SqlStore] = []

    async def born() -> SqlStore:
        store: SqlStore = make_sql()
        await store.start()
        stores.append(store)
        return store

    for _ in range(3):
        await born()
    stores[0].put_run(run("run-1"))
    await stores[0].put_background(record(), REQUEST)
    holds: dict[SqlStore, list[Lease]] = {stores[0]: [LEASE]}
    acted: set[int] = set()
    number = 1

    async def step(store: SqlStore, event: str) -> None:
        nonlocal number
        lease = chance.choice(holds.get(store) or [LEASE])
        if event == "claim":
            now = await found(store)
            number += 1
            if await store.claim_background(now.lease, f"run-{number}"):
                holds.setdefault(store, []).append(Lease("resp_1", now.attempt + 1))
                assert not acted
        elif event == "release" and store in holds:
            await store.release_background(lease)
        elif event == "end" and store in holds:
            await store.end_background(lease)
        elif event == "cancel" and chance.random() < 0.1:
            await store.cancel_background("resp_1", "open")
        elif event == "effect" and store in holds:
            number += 1
            place = f"place:{number}"
            one = invocation(f"inv-{number}", f"run-{lease.attempt}", effect=ToolEffect.STATE_CHANGE)
            # As for a real run, the run id is the one in the store.
            now = await found(store)
            if now.lease == lease:
                one = replace(one, run_id=now.run_id)
            try:
                if await store.claim_effect(one, EffectClaim(place, lease=lease)) is None:
                    acted.add(lease.attempt)
            except StoreError:
                assert (await found(store)).lease != lease or (await found(store)).state != "running"

    for _ in range(25):
        before = await found(stores[-1])
        if chance.random() < 0.15:
            dying = chance.choice(stores)
            stores.remove(dying)
            holds.pop(dying, None)
            await dying.aclose()
            await born()
            continue
        await asyncio.gather(
            *(step(chance.choice(stores), chance.choice(EVENTS)) for _ in range(chance.randint(1, 3)))
        )
        after = await found(stores[-1])
        assert len(acted) <= 1
        if acted:
            assert after.attempt == max(acted)
        if before.state is BackgroundState.ENDED:
            assert after.lease == before.lease
            assert after.state is BackgroundState.ENDED
