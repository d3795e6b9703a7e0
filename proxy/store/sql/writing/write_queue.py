"""The writes that wait for their commit, in two lines.

What a client's next request needs is written first: hidden turns, responses, effects, and the row of a run,
to which they refer. What only people read is written after it, and lost first where there is no room.
"""

from collections import deque
from collections.abc import Iterable

from proxy.store.sql.writing.writes import StateKey, Write


class WriteQueue:
    """The writes that wait; ``count`` is their number, ``bytes`` the sum of their sizes."""

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._needed: deque[Write] = deque()
        self._rest: deque[Write] = deque()
        self._states: dict[StateKey, Write] = {}
        """The waiting write of each row that has a later state, which takes its place."""

    def append(self, write: Write) -> None:
        """Add a write at the end of its line."""
        (self._needed if write.needed else self._rest).append(write)
        self.count += 1
        self.bytes += write.size
        if write.state_of is not None:
            self._states[write.state_of] = write

    def take_place(self, write: Write) -> bool:
        """Let a write take the place of an earlier state of its row, if that waits; return whether it did."""
        earlier = self._states.get(write.state_of) if write.state_of is not None else None
        if earlier is None:
            return False
        self.bytes += write.size - earlier.size
        earlier.become(write)
        return True

    def put_back(self, writes: Iterable[Write]) -> None:
        """Put writes that were taken before all others, in their order."""
        for write in reversed([*writes]):
            (self._needed if write.needed else self._rest).appendleft(write)
            self.count += 1
            self.bytes += write.size

    def take(self, most: int, most_bytes: int) -> list[Write]:
        """Remove the first writes: at most so many, and no more once they have so many bytes."""
        taken: list[Write] = []
        size = 0
        for line in (self._needed, self._rest):
            while line and len(taken) < most and size < most_bytes:
                write = line.popleft()
                taken.append(write)
                size += write.size
                if write.state_of is not None:
                    self._forget_state(write)
        self.count -= len(taken)
        self.bytes -= size
        return taken

    def drop_last_unneeded(self) -> Write | None:
        """Remove the last write that nobody needs or waits for, if there is one."""
        for index in range(len(self._rest) - 1, -1, -1):
            write = self._rest[index]
            if write.done is None:
                del self._rest[index]
                self._left(write)
                return write
        return None

    def remove(self, write: Write) -> bool:
        """Remove a write; return whether it was there."""
        try:
            (self._needed if write.needed else self._rest).remove(write)
        except ValueError:
            return False
        self._left(write)
        return True

    def clear(self) -> list[Write]:
        """Remove and return all writes."""
        return self.take(self.count, self.bytes + 1)

    def _left(self, write: Write) -> None:
        self.count -= 1
        self.bytes -= write.size
        self._forget_state(write)

    def _forget_state(self, write: Write) -> None:
        if write.state_of is not None and self._states.get(write.state_of) is write:
            del self._states[write.state_of]
