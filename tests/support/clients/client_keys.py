"""Shared by the tests of client keys: secrets, configured keys, and the header that a client sends."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from raw_upstream import RawUpstream, Step, whole
from running_proxy import Proxy, make_config, running

from proxy.config.key_grants import KeyGrants
from proxy.config.secret import Secret
from proxy.server.auth.key_ring import new_key, new_secret
from proxy.store.base import Store

ALICE = "alice-alice-0123456789-abcdefghij"
BOB = "bobby-bobby-0123456789-abcdefghij"
OK = whole(b'{"ok":true}')


def bearer(secret: str) -> dict[str, str]:
    """Return the header that OpenAI's SDKs send."""
    return {"Authorization": f"Bearer {secret}"}


def declared(secret: str, **grants: Any) -> dict[str, Any]:
    """Return one key as the configuration has it when its secret has been resolved."""
    return {"secret": Secret("env:CLIENT", secret), **grants}


def key_config(*upstreams: Any, **sections: Any) -> Any:
    """Return a configuration with the keys alice and bob, unless ``keys`` are given."""
    sections.setdefault("keys", {"alice": declared(ALICE), "bob": declared(BOB)})
    return make_config(*upstreams, **sections)


@asynccontextmanager
async def keyed(*scripts: Sequence[Step], **sections: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy with client keys before a scripted upstream, which answers OK if it has no scripts."""
    async with (
        RawUpstream(*(scripts or (OK,))) as upstream,
        running(key_config(upstream.url, **sections)) as proxy,
    ):
        yield proxy, upstream


async def made(store: Store, name: str = "carol", **grants: Any) -> str:
    """Store a new key and return its secret."""
    secret = new_secret()
    found = KeyGrants.model_validate(grants)
    await store.put_key(new_key(name, secret, found, await store.hash_key(), now=1.0))
    return secret
