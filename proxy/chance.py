"""The random ids and times in a run's answer.  A replay uses the recorded ones again.

Ids that the proxy makes, times and durations stand in what clients get.  Each place that makes one asks
:func:`drawn` for it.  Within :func:`drawing` what is made is noted, or what was noted once comes again;
outside of it, everything is made anew and nothing is noted.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

__all__ = ["Draws", "Value", "drawing", "drawn", "epoch_s"]

Value = str | int | float
T = TypeVar("T", str, int, float)

_MOST: Final = 20_000
"""Values that are noted of one run; an answer that takes more cannot be made again exactly."""

_current: Final[ContextVar["Draws | None"]] = ContextVar("toolrelay_draws", default=None)


class Draws:
    """The values of one run by their kinds, each kind in the order in which its values were made.

    ``again`` are those of a run that is repeated: they come first, and then new ones.
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

    def draw(self, kind: str, fresh: Callable[[], T]) -> T:
        """The next value of a kind."""
        waiting = self._again.get(kind)
        made = fresh()
        # What was noted is of the type that this place makes, or it is not what is repeated.
        value = waiting.popleft() if waiting and type(waiting[0]) is type(made) else made
        self._left -= 1
        if self._left >= 0:
            self.taken.setdefault(kind, []).append(value)
        return value  # type: ignore[return-value]


@contextmanager
def drawing(draws: Draws | None) -> Iterator[None]:
    """Within the block, and in tasks and threads that begin in it, take values from ``draws``.

    ``None`` makes them anew, within another such block, too.
    """
    token = _current.set(draws)
    try:
        yield
    finally:
        _current.reset(token)


def drawn(kind: str, fresh: Callable[[], T]) -> T:
    """The value that ``fresh`` makes, or the one that was made in its place in the run that is repeated.

    Values of one ``kind`` are made in the same order by two runs that do the same.
    """
    draws = _current.get()
    return fresh() if draws is None else draws.draw(kind, fresh)


def epoch_s() -> int:
    """The time in whole seconds since the epoch."""
    return drawn("epoch_s", lambda: int(time.time()))
