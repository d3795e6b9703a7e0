"""The ring of client keys: when it asks the store, and how long keys are valid if the store is silent."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from client_keys import ALICE, BOB, made
from msgspec.structs import replace
from structlog.testing import capture_logs

from proxy.base.errors import RequestError, StoreUnavailable
from proxy.config.key_grants import KeyGrants
from proxy.records.rows import ClientKey, KeySet
from proxy.server.auth.key_ring import KeyRing, new_key, new_secret, signer
from proxy.store.sqlite.memory import MemoryStore


class Shaky(MemoryStore):
    """A store in memory that records what it is asked, and can fail or hang."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.down: Exception | None = None
        self.deaf = False
        self.hold: asyncio.Event | None = None

    @property
    def keys_change_counter(self) -> int:
        return 0 if self.deaf else super().keys_change_counter

    async def keys_version(self) -> int:
        self.asked.append("version")
        await self._answer()
        return await super().keys_version()

    async def read_keys(self) -> KeySet:
        self.asked.append("keys")
        await self._answer()
        return await super().read_keys()

    async def _answer(self) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.down is not None:
            raise self.down


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def ring_over(store: Shaky, clock: Clock, **declared: tuple[str, KeyGrants]) -> KeyRing:
    """A ring that has read the store once."""
    ring = KeyRing(store, declared, now=clock, monotonic=clock)
    await ring.load()
    store.asked.clear()
    return ring


@pytest.fixture
async def store() -> AsyncIterator[Shaky]:
    made = Shaky()
    await made.start()
    yield made
    await made.aclose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_a_valid_key_costs_no_question(store: Shaky, clock: Clock) -> None:
    """Within a second of the last check no request makes the ring ask the store, whatever its key."""
    secret = await made(store)
    ring = await ring_over(store, clock, alice=(ALICE, KeyGrants()))
    for one in (secret, ALICE, BOB, new_secret()) * 10:
        await ring.find(one)
    assert store.asked == []


async def test_a_change_is_read_with_the_next_request(store: Shaky, clock: Clock) -> None:
    """After a notified revocation the ring reads the keys again before it accepts any."""
    secret = await made(store)
    ring = await ring_over(store, clock)
    key = await ring.find(secret)
    assert key is not None
    assert ring.is_still_valid(key)
    await store.revoke_key(key.caller.name)
    assert not ring.is_still_valid(key)
    assert await ring.find(secret) is None
    assert not ring.is_still_valid(key)
    assert await ring.find_by_id(key.caller.name) is None
    assert store.asked == ["version", "keys"]


async def test_who_is_told_nothing_looks_once_a_second(store: Shaky, clock: Clock) -> None:
    """Without notifications the ring asks the store for its version, at most once a second."""
    secret = await made(store)
    ring = await ring_over(store, clock)
    store.deaf = True
    await ring.find(secret)
    (key,) = ring.keys()
    store.asked.clear()
    await store.revoke_key(key.caller.name)
    clock.now += 0.5
    assert await ring.find(secret) is not None
    clock.now += 0.5
    assert await ring.find(secret) is None
    assert await ring.find(secret) is None
    assert store.asked == ["version", "version", "keys"]


async def test_many_requests_wait_for_one_look(store: Shaky, clock: Clock) -> None:
    """Simultaneous requests share one check of the store; one that is cancelled does not end the others."""
    secret = await made(store)
    ring = await ring_over(store, clock)
    clock.now += 2
    store.hold = asyncio.Event()
    waiting = [asyncio.create_task(ring.find(secret)) for _ in range(20)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    store.hold.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert all(not isinstance(one, BaseException) and one is not None for one in found[1:])
    assert len(store.asked) <= 2


async def test_a_change_during_a_look_is_not_missed(store: Shaky, clock: Clock) -> None:
    """The ring refuses a key that was revoked during a check with the next request."""
    secret = await made(store)
    ring = await ring_over(store, clock)
    (key,) = ring.keys()
    clock.now += 2
    store.hold = asyncio.Event()
    first = asyncio.create_task(ring.find(secret))
    await asyncio.sleep(0)
    await store.revoke_key(key.caller.name)
    store.hold.set()
    await first
    assert await ring.find(secret) is None


@pytest.mark.parametrize("failure", [StoreUnavailable("locked"), None])
async def test_a_silent_store_shuts_the_door_after_a_while(
    store: Shaky, clock: Clock, failure: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the store fails or hangs, its keys stay valid for ten seconds; configured keys need no store."""
    monkeypatch.setattr("proxy.server.auth.key_ring.LOOK_UP_S", 0.01)
    secret = await made(store)
    ring = await ring_over(store, clock, alice=(ALICE, KeyGrants()))
    hold = asyncio.Event()
    if failure is None:
        store.hold = hold
    store.down = failure
    clock.now += 5
    assert await ring.find(secret) is not None
    clock.now += 5
    for one in (secret, BOB):
        with pytest.raises(RequestError) as caught:
            await ring.find(one)
        assert (caught.value.status, caught.value.code) == (503, "keys_unavailable")
        assert caught.value.headers["Retry-After"] == "1"
    asked = 1 if failure is None else 2
    assert len(store.asked) == asked, "a store that is asked, or just failed, is not asked again at once"
    assert await ring.find(ALICE) is not None
    store.down, store.hold = None, None
    hold.set()
    clock.now += 1
    assert await ring.find(secret) is not None


async def test_a_change_that_cannot_be_read_shuts_the_door_at_once(store: Shaky, clock: Clock) -> None:
    """If a notified change cannot be read, the ring accepts no stored key until it can be read."""
    secret, other = await made(store), await made(store, "other")
    ring = await ring_over(store, clock)
    key = await ring.find(secret)
    assert key is not None
    await store.revoke_key(key.caller.name)
    store.down = StoreUnavailable("locked")
    for one in (secret, other):
        with pytest.raises(RequestError) as caught:
            await ring.find(one)
        assert caught.value.code == "keys_unavailable"
    store.down = None
    clock.now += 0.5
    assert await ring.find(secret) is None
    assert await ring.find(other) is not None


async def test_keys_expire(store: Shaky, clock: Clock) -> None:
    """A key is invalid from the moment of its expiry, without any notification."""
    grants = KeyGrants(expires=101.0)
    secret = new_secret()
    await store.put_key(new_key("late", secret, grants, await store.hash_key(), now=1.0))
    ring = await ring_over(store, clock, alice=(ALICE, grants))
    found = [await ring.find(secret), await ring.find(ALICE)]
    held = [key for key in found if key is not None]
    assert len(held) == len(ring.keys()) == 2
    assert all(ring.is_still_valid(key) for key in held)
    clock.now = 101.0
    assert not any(ring.is_still_valid(key) for key in held)
    assert await ring.find(secret) is None
    assert await ring.find(ALICE) is None
    assert await ring.find_by_id("config:alice") is None
    assert ring.keys() == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"grants": {"models": ["*"], "superuser": True}}, "ValidationError"),
        ({"grants": {"models": "*"}}, "ValidationError"),
        ({"hashed_by": "seal:0123"}, "the key was made with another store.seal_key"),
        ({"verify_key": b"short"}, "ValueError"),
    ],
)
async def test_a_key_that_is_not_understood_is_not_valid(
    store: Shaky, clock: Clock, change: dict[str, Any], reason: str
) -> None:
    """The ring refuses a stored key that it cannot read and logs why; all others stay valid."""
    secret, other = new_secret(), await made(store)
    key: ClientKey = new_key("odd", secret, KeyGrants(mint=True), await store.hash_key(), now=1.0)
    await store.put_key(replace(key, **change))
    with capture_logs() as lines:
        ring = await ring_over(store, clock)
    assert lines == [{"event": "client_key_unusable", "log_level": "error", "key": key.id, "reason": reason}]
    assert await ring.find(secret) is None
    assert await ring.find(other) is not None
    assert ring.ever_made


async def test_what_is_stored_of_a_key(store: Shaky) -> None:
    """The store has a keyed hash of a secret; of a key that mints also the public half of its signing key."""
    secret = new_secret()
    assert secret.startswith("tr_")
    assert len(secret) == 46
    name, pepper = await store.hash_key()
    key = new_key("a", secret, KeyGrants(), (name, pepper), now=1.0)
    other = new_key("a", secret, KeyGrants(), (name, bytes(32)), now=1.0)
    assert secret not in repr(key)
    assert len(key.digest) == 32
    assert key.digest != other.digest
    assert key.verify_key is None
    minting = new_key("a", secret, KeyGrants(mint=True), (name, pepper), now=1.0)
    assert minting.verify_key == signer(secret).public_key().public_bytes_raw()
    assert signer(secret).private_bytes_raw() not in (minting.verify_key, minting.digest)


async def test_bounds_of_a_made_key_are_those_it_was_made_with(store: Shaky, clock: Clock) -> None:
    """Rule T2: argument bounds survive the store's JSON unchanged, and name the key that they come from."""
    bounds = {
        "core__*": {"days": {"max": 3, "required": True}, "units": {"enum": ["metric", 1, 2.5, True]}},
        "t__x": {"slices.*.to": {"pattern": "[A-Z]{3}", "max_length": 3}, "pin": {"forbidden": True}},
    }
    grants = KeyGrants.model_validate({"arguments": bounds})
    again = KeyGrants.model_validate(orjson.loads(orjson.dumps(grants.stored())))
    assert again == grants
    assert again.stored()["arguments"]["t__x"]["pin"] == {"required": False, "forbidden": True}
    secret = await made(store, arguments=bounds)
    ring = await ring_over(store, clock, alice=(ALICE, grants))
    stored, declared = await ring.find(secret), await ring.find(ALICE)
    assert stored is not None
    assert declared is not None
    assert [(own.path, own.bound) for own in stored.caller.rights.arguments] == [
        (own.path, own.bound) for own in declared.caller.rights.arguments
    ]
    assert {own.setting for own in stored.caller.rights.arguments} == {"the argument limits of key carol"}
    assert {own.setting for own in declared.caller.rights.arguments} == {"keys.alice.arguments"}
    assert hash(stored.caller.rights) != hash(declared.caller.rights)
