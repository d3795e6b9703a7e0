"""The random ids and the times in a run's answer. A replay uses the recorded ones again.

The answers that clients get contain ids, times and durations that the proxy makes. The code that makes such
a value calls :func:`replayable`. Inside :func:`drawing`, new values are noted, or noted ones are used again.
Outside of it, every value is new and none is noted.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

Value = str | int | float
T = TypeVar("T", str, int, float)

_MOST: Final = 20_000
"""The most values that are noted for one run. A longer answer cannot be reproduced exactly."""

_current: Final[ContextVar["Draws | None"]] = ContextVar("toolrelay_draws", default=None)


class Draws:
    """The values of one run by kind, each kind in the order in which its values were made.

    ``again`` holds the values of a run that is repeated. They are used first, then new ones are made.
    """

    __slots__ = ("_again", "_left", "taken")

    def __init__(self, again: Mapping[str, Sequence[Value]] | None = None) -> None:
        self._again = {kind: deque(values) for kind, values in (again or {}).items()}
        self._left = _MOST
        self.taken: dict[str, list[Value]] = {}

    @property
    def whole(self) -> bool:
        """Whether all values were noted."""
        return self._left >= 0

    def forget(self) -> None:
        """Make new values from now on."""
        self._again.clear()

    def draw(self, kind: str, fresh: Callable[[], T]) -> T:
        """Return the next value of a kind."""
        waiting = self._again.get(kind)
        made = fresh()
        # A noted value of another type was made by other code, so this place is not what it repeats.
        value = waiting.popleft() if waiting and type(waiting[0]) is type(made) else made
        self._left -= 1
        if self._left >= 0:
            self.taken.setdefault(kind, []).append(value)
        return value  # type: ignore[return-value]


@contextmanager
def drawing(draws: Draws | None) -> Iterator[None]:
    """Take values from ``draws`` within the block, and in tasks and threads that begin in it.

    With ``None`` all values are new, even inside another such block.
    """
    token = _current.set(draws)
    try:
        yield
    finally:
        _current.reset(token)


def replayable(kind: str, fresh: Callable[[], T]) -> T:
    """Return the value that ``fresh`` makes, or, in a repeated run, the value recorded in its place.

    Two runs that do the same must make the values of one ``kind`` in the same order.
    """
    draws = _current.get()
    return fresh() if draws is None else draws.draw(kind, fresh)


def epoch_s() -> int:
    """Return the time in whole seconds since the epoch."""
    return replayable("epoch_s", lambda: int(time.time()))
