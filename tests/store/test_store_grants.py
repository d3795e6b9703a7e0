"""Grants in every kind of store: put with a decision, used while active, revoked for every process."""

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from store_records import APPROVED, T0, approval, grant, run

from proxy.records.approvals import ApprovalEvent, ApprovalStatus, Decided
from proxy.records.grants import MOST_GRANTS, Grant, GrantFilter
from proxy.store.base import PurgeFilter
from proxy.store.sql.store import SqlStore

Make = Callable[..., SqlStore]


async def give(store: SqlStore, number: int = 1, **changes: object) -> Grant:
    """Put an approval, and approve it with a grant."""
    asked = approval(f"ap_{number}", caller=str(changes.get("caller", "open")))
    given = grant(f"grant_{number}", **{"approval_id": asked.id, "created_at": T0 + number, **changes})
    await store.put_approvals([asked])
    decided = await store.decide_approval(asked, APPROVED, T0, given)
    assert decided.status is ApprovalStatus.APPROVED
    return given


async def test_a_grant_is_put_with_its_decision(make: Make) -> None:
    """A grant is found by id, by approval and in lists; a denial and a late decision put none."""
    store = make()
    await store.start()
    given = await give(store)
    assert list(await store.find_grants(["grant_1", "none", "\0", "\ud800"])) == [given]
    assert list(await store.grants_of_approval("ap_1")) == [given]
    late = await store.decide_approval(approval(), APPROVED, T0, grant("late"))
    assert late.status is ApprovalStatus.APPROVED
    second = approval("ap_2")
    await store.put_approvals([second])
    await store.decide_approval(second, Decided(ApprovalEvent.DENY, "boss", "api"), T0)
    await store.decide_approval(second, APPROVED, T0, grant("denied", approval_id="ap_2"))
    assert list(await store.list_grants(GrantFilter())) == [given]


async def test_lists_are_narrowed(make: Make) -> None:
    """Lists filter grants by caller, tool pattern and activity, and page through them, newest first."""
    store = make()
    await store.start()
    first = await give(store, 1)
    second = await give(store, 2, caller="anna", tool="pay__send")
    third = await give(store, 3, expires_at=T0 + 10)
    every = GrantFilter(now=T0 + 5)
    assert list(await store.list_grants(every)) == [third, second, first]
    assert list(await store.list_grants(replace(every, limit=1, before=third.id))) == [second]
    assert list(await store.list_grants(replace(every, caller="anna"))) == [second]
    assert list(await store.list_grants(replace(every, tools=("pay__*",)))) == [second]
    assert list(await store.list_grants(replace(every, tools=("mail__*",)))) == []
    assert list(await store.list_grants(GrantFilter(active=True, now=T0 + 10))) == [second, first]


async def test_only_an_active_grant_is_used(make: Make) -> None:
    """The store counts the uses of an active grant, and refuses an expired, revoked or unknown one."""
    store = make()
    await store.start()
    await give(store)
    assert await store.use_grant("grant_1", T0 + 1)
    assert await store.use_grant("grant_1", T0 + 2)
    assert not await store.use_grant("grant_1", T0 + 3600)
    assert not await store.use_grant("none", T0)
    (found,) = await store.find_grants(["grant_1"])
    assert (found.uses, found.used_at, found.state(T0)) == (2, T0 + 2, "active")
    revoked = await store.revoke_grant("grant_1", "key boss", T0 + 4)
    assert revoked is not None
    assert (revoked.state(T0), revoked.revoked_at, revoked.revoked_by) == ("revoked", T0 + 4, "key boss")
    again = await store.revoke_grant("grant_1", "key other", T0 + 5)
    assert again == revoked
    assert not await store.use_grant("grant_1", T0 + 6)
    assert await store.revoke_grant("none", "key boss", T0) is None


async def test_a_use_and_a_revocation_at_once_have_an_order(make: Make) -> None:
    """The store counts each use that succeeds during a revocation, and allows none afterwards."""
    store = make()
    await store.start()
    await give(store)
    uses = [store.use_grant("grant_1", T0 + 1) for _ in range(8)]
    *told, revoked = await asyncio.gather(*uses, store.revoke_grant("grant_1", "boss", T0 + 1))
    (found,) = await store.find_grants(["grant_1"])
    assert isinstance(revoked, Grant)
    assert found.uses == sum(bool(one) for one in told)
    assert not await store.use_grant("grant_1", T0 + 1)
    (after,) = await store.find_grants(["grant_1"])
    assert after.uses == found.uses


async def test_a_caller_has_a_bounded_number_of_grants(make: Make) -> None:
    """A grant above the caller's limit leaves the approval pending; only a caller's active grants count."""
    store = make()
    await store.start()
    for number in range(MOST_GRANTS):
        await give(store, number)
    await give(store, 900, caller="anna")
    asked = approval("ap_more")
    await store.put_approvals([asked])
    more = grant("grant_more", approval_id="ap_more")
    assert (await store.decide_approval(asked, APPROVED, T0, more)).status is ApprovalStatus.PENDING
    assert not await store.find_grants(["grant_more"])
    await store.revoke_grant("grant_7", "boss", T0)
    assert (await store.decide_approval(asked, APPROVED, T0, more)).status is ApprovalStatus.APPROVED


async def test_a_grant_goes_with_the_run_that_asked(make: Make) -> None:
    """A purge of the run deletes its grants, so that nobody can use them."""
    store = make()
    await store.start()
    store.put_run(run("run_1", status="completed"))
    await give(store)
    assert await store.purge(PurgeFilter(run_id="run_1")) == 1
    assert not await store.find_grants(["grant_1"])
    assert not await store.use_grant("grant_1", T0)


async def test_a_grant_has_the_days_of_content(make: Make) -> None:
    """After ``keep_days`` a grant cannot be used and is not listed, even before anything is tidied."""
    now = [T0]
    store = make(keep_days=1, clock=lambda: now[0])
    await store.start()
    await give(store, expires_at=T0 + 1_000_000)
    now[0] = T0 + 86400 + 10
    assert not await store.use_grant("grant_1", now[0])
    assert list(await store.list_grants(GrantFilter(active=True, now=now[0]))) == []


@pytest.mark.parametrize("text", ["Zürich", "a\ud800b"])
async def test_limits_in_any_script_are_kept(make: Make, text: str) -> None:
    """The store keeps the bounds of a grant in any script, and a lone surrogate causes no error."""
    store = make()
    await store.start()
    given = await give(store, bounds=f'{{"city": {{"enum": ["{text}"]}}}}')
    (found,) = await store.find_grants([given.id])
    assert "enum" in found.bounds
