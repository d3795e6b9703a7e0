"""The table of a writer's transitions from the upstream's bytes to a composed stream."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.records.transitions import IllegalTransition
from proxy.wires.stream.phases import (
    CERTAIN,
    COMPOSING,
    HIDDEN,
    HOLDING,
    NEXT,
    OPEN,
    PASSING,
    TURN_ENDED,
    UNCERTAIN,
    WAITING,
    Phase,
    Sign,
)

OF_FRAMES = (CERTAIN, UNCERTAIN, OPEN)


@pytest.mark.parametrize(("phase", "sign"), [*product((PASSING, WAITING, HOLDING), Sign)])
def test_every_sign_has_a_meaning_until_the_writer_composes(phase: Phase, sign: Sign) -> None:
    """Every sign has a transition before composing, and only a hidden call starts composing."""
    assert (NEXT[phase, sign] is COMPOSING) == (sign is HIDDEN)


@pytest.mark.parametrize("sign", Sign)
def test_a_composed_stream_stays_one(sign: Sign) -> None:
    """Rule W4: after composing began, the upstream's own bytes are never forwarded again."""
    if sign in OF_FRAMES:
        with pytest.raises(IllegalTransition):
            NEXT[COMPOSING, sign]
    else:
        assert NEXT[COMPOSING, sign] is COMPOSING


@given(st.lists(st.sampled_from([*OF_FRAMES, TURN_ENDED])))
def test_what_hangs_on_the_end_of_a_turn_waits_for_it(signs: list[Sign]) -> None:
    """Rule W5: after a frame that depends on the turn's end, the writer holds the rest of the turn."""
    phase, is_open = PASSING, False
    for sign in signs:
        phase = NEXT[phase, sign]
        is_open = is_open or sign is OPEN
        assert (phase is HOLDING) == is_open
        assert (phase is WAITING) == (not is_open and sign is UNCERTAIN)
