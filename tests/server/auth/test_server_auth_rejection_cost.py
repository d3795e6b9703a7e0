"""Refusing a request costs the same however many keys there are, and whichever key it names.

The tests measure no time: they count calls.
"""

import gc
import sys
from types import FrameType
from typing import Any

import orjson
import pytest
from client_keys import ALICE, BOB, OK, bearer, declared
from raw_upstream import RawUpstream
from running_proxy import make_config, running

from proxy.config.key_grants import KeyGrants
from proxy.server.auth import key_ring
from proxy.server.auth.key_ring import Key, KeyRing, new_key, new_secret, signer
from proxy.server.auth.minting import Minting, _encode
from proxy.store.sqlite.memory import MemoryStore

NOW = 1_700_000_000.0


class Calls:
    """Counts the calls of Python and C functions that this thread makes in a block.

    Garbage collection is off meanwhile: it would run, and count, finalizers of earlier tests' objects.
    """

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> "Calls":
        gc.disable()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        self.count += event in ("call", "c_call")


async def ring_of(keys: int, **more: tuple[str, KeyGrants]) -> KeyRing:
    """A ring with ``keys`` configured keys, as many keys of the store, and ``more`` configured ones."""
    store = MemoryStore()
    await store.start()
    found = {f"key{number}": (new_secret(), KeyGrants()) for number in range(keys)}
    for number in range(keys):
        await store.put_key(new_key(f"n{number}", new_secret(), KeyGrants(), await store.hash_key(), now=1.0))
    ring = KeyRing(store, {**found, **more}, now=lambda: NOW)
    await ring.load()
    return ring


async def test_no_look_is_taken_at_each_key() -> None:
    """A refusal makes as many calls with two keys as with four hundred."""
    counts = []
    for keys in (1, 200):
        ring = await ring_of(keys)
        with Calls() as calls:
            assert await ring.find("x" * 40) is None
            assert ring.any_valid()
            assert not ring.declared_at("/v1/models/" + "x" * 40, [0, 11])
            assert not ring.knows("tr_" + "x" * 43)
        counts.append(calls.count)
    assert counts[0] == counts[1]


async def test_a_refused_request_looks_at_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a refused request the proxy makes as many digests and lookups with one key as with two hundred."""
    noted: list[str] = []

    def watch(name: str) -> None:
        real = getattr(key_ring, name)

        def noting(*args: Any) -> Any:
            noted.append(name)
            return real(*args)

        monkeypatch.setattr(key_ring, name, noting)

    watch("_digest")
    watch("_lookup")
    expired = Key.expired

    def noting_expired(self: Key, now: float) -> bool:
        noted.append("expired")
        return expired(self, now)

    monkeypatch.setattr(Key, "expired", noting_expired)
    seen = []
    for keys in (1, 200):
        config = {
            f"k{n}": declared(f"secret-number-{n:05}-and-thirty-two", expires=NOW * 2) for n in range(keys)
        }
        async with RawUpstream(OK) as upstream, running(make_config(upstream.url, keys=config)) as proxy:
            noted.clear()
            assert (await proxy.ask({}, bearer("x" * 40))).status == 401
            seen.append(list(noted))
    assert seen[0] == seen[1]
    assert len(seen[0]) < 6


def token_for(key_id: str, secret: str, said: dict[str, Any]) -> str:
    """A token that names this key and is signed with this secret."""
    text = f"trt_{key_id}.{_encode(orjson.dumps(said))}"
    return f"{text}.{_encode(signer(secret).sign(text.encode()))}"


@pytest.mark.parametrize("late", [False, True])
async def test_names_of_minting_keys_are_not_to_be_told(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forged token costs one signature check, whether or not the key that it names exists or may mint."""
    expires = NOW - 1 if late else None
    mints = KeyGrants(mint=True, expires=expires)
    ring = await ring_of(
        2, alice=(ALICE, mints), bob=(BOB, KeyGrants()), other=(new_secret(), KeyGrants(mint=True))
    )
    minting = Minting(ring, now=lambda: NOW)
    checked: list[Key] = []
    verifies = Key.verifies

    def noting(self: Key, signature: bytes, text: bytes) -> bool:
        assert self.verify_key is not None, "no signature was checked"
        checked.append(self)
        return verifies(self, signature, text)

    monkeypatch.setattr(Key, "verifies", noting)
    said = {"subject": "eve", "until": int(NOW) + 60}
    names = ("config:alice", "config:bob", "config:nobody", "key_0123456789abcdef", "x", "config:other")
    await minting.find(token_for("config:nobody", new_secret(), said))
    checked.clear()
    counts = set()
    for name in names:
        forged = token_for(name, new_secret(), said)
        with Calls() as calls:
            assert await minting.find(forged) is None
        counts.add(calls.count)
    assert len(checked) == len(names)
    # A name that could be a stored key's costs a few calls more: the ring checks whether its keys are fresh.
    assert max(counts) - min(counts) <= 6
    # The right secret of a valid key is accepted; a key that may not mint is not.
    right = await minting.find(token_for("config:alice", ALICE, said))
    assert (right is None) is late
    assert await minting.find(token_for("config:bob", BOB, said)) is None


async def test_where_nobody_mints_no_signature_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no key may mint, the proxy checks no signature: the library for signatures takes 8 MiB."""
    minting = Minting(await ring_of(2), now=lambda: NOW)
    monkeypatch.setattr(Key, "verifies", lambda *_: pytest.fail("checked"))
    assert await minting.find(token_for("config:key0", new_secret(), {"subject": "eve", "until": 1})) is None


async def test_whether_any_key_is_valid_is_known_beforehand() -> None:
    """A ring has a valid key until its last key expires; a ring without keys never has one."""
    store = MemoryStore()
    await store.start()
    now = [NOW]
    ring = KeyRing(store, {"a": (ALICE, KeyGrants(expires=NOW + 5))}, now=lambda: now[0])
    await ring.load()
    assert ring.any_valid()
    now[0] += 5
    assert not ring.any_valid()
    assert not KeyRing(store, {}, now=lambda: now[0]).any_valid()
