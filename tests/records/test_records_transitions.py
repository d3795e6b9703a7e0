"""State machines as tables."""

from enum import StrEnum

import pytest

from proxy.records.transitions import IllegalTransition, Transitions


class Door(StrEnum):
    OPEN = "open"
    SHUT = "shut"


class Push(StrEnum):
    IN = "in"
    OUT = "out"


NEXT = Transitions({(Door.OPEN, Push.IN): Door.SHUT, (Door.SHUT, Push.OUT): Door.OPEN})


def test_a_table_says_the_next_state() -> None:
    """An event in the table leads to the state that the table gives."""
    assert NEXT[Door.OPEN, Push.IN] is Door.SHUT
    assert NEXT[Door.SHUT, Push.OUT] is Door.OPEN


def test_what_is_not_in_the_table_raises() -> None:
    """An event that is not in the table raises an error with event and state, and changes no table."""
    with pytest.raises(IllegalTransition, match=r"Push\.OUT.* in the state .*Door\.OPEN"):
        NEXT[Door.OPEN, Push.OUT]
    assert len(NEXT) == 2
