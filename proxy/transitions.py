"""State machines as tables: each event leads from one state to another."""

from enum import StrEnum
from typing import NoReturn, TypeVar

__all__ = ["IllegalTransition", "Transitions"]

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


class IllegalTransition(RuntimeError):
    """An event that cannot happen in the state in which it happened: a fault of the program."""


class Transitions(dict[tuple[State, Event], State]):
    """The next state by state and event.

    What is not in the table raises :class:`IllegalTransition`; what is there is found without a call, as the
    hash of a ``StrEnum`` is that of its text.
    """

    __slots__ = ()

    def __missing__(self, key: tuple[State, Event]) -> NoReturn:
        state, event = key
        raise IllegalTransition(f"{event!r} in the state {state!r}")
