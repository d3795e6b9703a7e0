"""How a store is opened, whichever database it is in."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from proxy.store.key_file import KeyFile
from proxy.store.seal import Seal
from proxy.store.shelf import ContentPolicy

__all__ = ["DEFAULTS", "StoreOptions", "Synchronous"]

Synchronous = Literal["normal", "full"]
"""What a commit survives: ``normal`` the death of the process, ``full`` a power loss too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What settings, commands and tests choose of a store.

    ``content`` and ``keep_days`` say what becomes of content; ``keep_days`` of 0 sets no limit.  ``clock``
    gives seconds since the epoch.  With ``reap``, which is for the server alone, the store looks after its
    database every ``tidy_every_s`` seconds: it marks what dead processes left open and deletes what is past
    its days or its bounds.  ``seal`` closes content before it is queued; ``old_seals`` only open what they
    sealed before.  The key in ``key_file`` opens, too; with ``seals_by_file``, where there is no ``seal``, it
    seals, and is made where it is missing.  Without ``needs_all_keys`` a start does not mind that there is
    content which none of them opens.  ``max_bytes`` bounds the database, ``max_per_caller`` how many records
    of each kind of content one caller has, ``max_bytes_per_caller`` their bytes; 0: no bound.  A caller that
    waits for a commit waits ``lock_timeout_s`` at most.  ``max_queued`` writes of ``max_queued_bytes`` wait
    at most.
    """

    content: ContentPolicy = "tools"
    keep_days: float = 30
    clock: Callable[[], float] = time.time
    synchronous: Synchronous = "normal"
    reap: bool = False
    tidy_every_s: float = 3600.0
    seal: Seal | None = None
    old_seals: Sequence[Seal] = ()
    key_file: KeyFile | None = None
    seals_by_file: bool = False
    needs_all_keys: bool = True
    max_bytes: int = 0
    max_per_caller: int = 0
    max_bytes_per_caller: int = 0
    lock_timeout_s: float = 5.0
    max_queued: int = 10_000
    max_queued_bytes: int = 64 * 2**20

    @property
    def is_bounded(self) -> bool:
        """Whether anything goes by its size or number, and not by its days alone."""
        return bool(self.max_bytes or self.max_per_caller or self.max_bytes_per_caller)


DEFAULTS: Final = StoreOptions()
