"""Whose runs are meant: people say a key's name, the record has its id."""

import re
from collections import Counter
from collections.abc import Container, Mapping
from typing import Final

from proxy.records import ClientKey
from proxy.server.auth.key_ring import DECLARED
from proxy.server.callers import end_user_name
from proxy.store.base import Store

__all__ = ["named_callers", "recorded_caller"]

_PERSON: Final = re.compile(r"[0-9a-f]{24}\Z")


async def recorded_caller(store: Store, declared: Container[str], wanted: str) -> str:
    """What the record calls a key, or one of its end users, that is meant by ``NAME`` or ``NAME/USER``.

    ``declared`` are the names of the configuration's keys.  Of several keys that had a name it is the
    last.  What is no name is taken for what the record has: an id, ``open``, an end user's digest.
    Raises :class:`~proxy.errors.StoreError` where the keys cannot be read.
    """
    name, slash, user = wanted.partition("/")
    if name in declared:
        name = f"{DECLARED}{name}"
    else:
        ids = [key.id for key in (await store.read_keys()).keys if key.name == name]
        name = ids[-1] if ids else name
    if not slash:
        return name
    return f"{name}/{user if _PERSON.match(user) else end_user_name(user)}"


def named_callers(keys: tuple[ClientKey, ...]) -> Mapping[str, str]:
    """The names of keys by their ids, of those that share theirs with no other key."""
    named = Counter(key.name for key in keys)
    return {key.id: key.name for key in keys if named[key.name] == 1}
