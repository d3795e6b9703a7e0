"""State machines as tables: each event leads from one state to another."""

from enum import StrEnum
from typing import NoReturn, TypeVar

StateT = TypeVar("StateT", bound=StrEnum)
EventT = TypeVar("EventT", bound=StrEnum)


class IllegalTransition(RuntimeError):
    """An event happened in a state in which it is impossible: a defect of the program."""


class Transitions(dict[tuple[StateT, EventT], StateT]):
    """The next state by state and event.

    A missing pair raises :class:`IllegalTransition`. A lookup calls no Python function, because the hash of
    a ``StrEnum`` is that of its text.
    """

    __slots__ = ()

    def __missing__(self, key: tuple[StateT, EventT]) -> NoReturn:
        state, event = key
        raise IllegalTransition(f"{event!r} in the state {state!r}")
