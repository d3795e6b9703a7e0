"""Translates key names, which people use, into the callers that the record uses."""

import re
from collections import Counter
from collections.abc import Container, Mapping
from typing import Final

from proxy.records.rows import ClientKey
from proxy.rights.callers import end_user_name
from proxy.server.auth.key_ring import DECLARED
from proxy.store.base import Store

_PERSON: Final = re.compile(r"[0-9a-f]{24}\Z")


async def recorded_caller(store: Store, declared: Container[str], wanted: str) -> str:
    """Return the caller in the record for ``NAME`` or ``NAME/USER``: a key, or one of its end users.

    ``declared`` are the names of the configuration's keys. If several keys had the name, the newest counts.
    Any other text is used as the record has it: an id, ``open``, an end user's digest. Raises
    :class:`~proxy.base.errors.StoreError` if the keys cannot be read.
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
    """Return the names of keys by their ids, without names that several keys share."""
    named = Counter(key.name for key in keys)
    return {key.id: key.name for key in keys if named[key.name] == 1}
