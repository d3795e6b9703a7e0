"""Track untrusted results in conversations that only the upstream stores.

A Responses request may name a conversation, an earlier response or items that only the upstream has. The
proxy does not see their content again, so it notes untrusted results when the model reads them. A
conversation without a note counts as untrusted: another program may have made it, or it is older than the
record.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from proxy.base.errors import StoreError
from proxy.records.rows import join_sources
from proxy.store.base import Store

UNKNOWN_THREAD = "a conversation that this proxy does not know"
"""Used in place of the sources of the untrusted results."""

_MOST_IDS = 256


class Threads:
    """The known threads of each caller."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.relay")

    async def untrusted(self, ids: Sequence[str], caller: str) -> str:
        """Return the sources of the untrusted results in these threads; empty if all are known to have
        none."""
        if not ids:
            return ""
        wanted = list(dict.fromkeys(ids))
        if len(wanted) > _MOST_IDS:
            return UNKNOWN_THREAD
        try:
            known = await self._store.find_threads(wanted, caller)
        except StoreError as error:
            self._log.error("threads_unavailable", reason=str(error))
            return UNKNOWN_THREAD
        return join_sources(*(known.get(one, UNKNOWN_THREAD) for one in wanted))

    def remember_new(self, thread: str, caller: str, noted: Callable[[bool], None] | None = None) -> None:
        """Remember a thread that was just created, and contains only its caller's own text.

        ``noted`` is called once, with whether this was committed.
        """
        self._store.put_threads([thread], caller, "", noted)

    def note(self, ids: Sequence[str], caller: str, untrusted: str) -> None:
        """Remember the sources of the untrusted results that the model has read in these threads; empty for
        none."""
        if ids:
            self._store.put_threads(ids[:_MOST_IDS], caller, untrusted)


def threads_of(resource: Mapping[str, Any] | None) -> list[str]:
    """Return the ids by which later requests may continue a response, or refer to its items."""
    if resource is None:
        return []
    output = resource.get("output")
    items = [item.get("id") for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    return [one for one in (resource.get("id"), *items) if isinstance(one, str) and one]
