"""The options with which a store is opened, for every database."""

from collections.abc import Callable, Sequence
from typing import Final, Literal

from msgspec import Struct

from proxy.store.key_file import KeyFile
from proxy.store.seal import Seal
from proxy.store.shelf import ContentPolicy

Synchronous = Literal["normal", "full"]
"""What a commit survives: with ``normal`` the death of the process, with ``full`` also a power failure."""


class StoreOptions(Struct, frozen=True, kw_only=True):
    """What settings, commands and tests can choose for a store.

    ``content`` and ``keep_days`` determine which content is kept and how long; ``keep_days`` of 0 sets no
    limit. ``clock`` returns seconds since the epoch, in place of the clock that all processes of the record
    share. A start is refused if this machine's clock differs from that by more than ``max_clock_skew_s`` (0:
    no limit). ``max_queued`` writes with ``max_queued_bytes`` bytes
    can be queued. A caller that waits for a commit waits at most ``lock_timeout_s``.

    ``reap`` is for the server only. With it, the store maintains its database every ``tidy_every_s`` seconds:
    it marks what dead processes left open and deletes what exceeds its retention or the limits.

    ``seal`` seals content before it is queued; ``old_seals`` only open what they sealed before. The key in
    ``key_file`` can open too. With ``seals_by_file`` and without ``seal``, that key also seals, and is
    created if it is missing. Without ``needs_all_keys``, a start succeeds even if no key opens some of the
    content.

    ``max_bytes`` limits the database. ``max_per_caller`` limits how many records of each kind of content a
    caller has, and ``max_bytes_per_caller`` their bytes. ``max_requests`` limits the rows of requests without
    a run. 0 means no limit.
    """

    content: ContentPolicy = "tools"
    keep_days: float = 30
    clock: Callable[[], float] | None = None
    max_clock_skew_s: float = 0
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
    max_requests: int = 0
    lock_timeout_s: float = 5.0
    max_queued: int = 10_000
    max_queued_bytes: int = 64 * 2**20

    @property
    def is_bounded(self) -> bool:
        """Whether anything is deleted because of size or number, not only because of age."""
        return bool(self.max_bytes or self.max_per_caller or self.max_bytes_per_caller or self.max_requests)


DEFAULTS: Final = StoreOptions()
