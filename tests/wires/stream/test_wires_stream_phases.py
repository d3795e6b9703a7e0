"""The table by which writers go from the upstream's own bytes to a stream of their own."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.transitions import IllegalTransition
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
    """A writer knows what to do about any frame and any end; only what is hidden makes it compose."""
    assert (NEXT[phase, sign] is COMPOSING) == (sign is HIDDEN)


@pytest.mark.parametrize("sign", Sign)
def test_a_composed_stream_stays_one(sign: Sign) -> None:
    """Rule W4: the upstream's own bytes never follow composed ones, and nobody asks what a frame says."""
    if sign in OF_FRAMES:
        with pytest.raises(IllegalTransition):
            NEXT[COMPOSING, sign]
    else:
        assert NEXT[COMPOSING, sign] is COMPOSING


@given(st.lists(st.sampled_from([*OF_FRAMES, TURN_ENDED])))
def test_what_hangs_on_the_end_of_a_turn_waits_for_it(signs: list[Sign]) -> None:
    """Rule W5: after a frame that may go out only without a hidden call, no frame of the turn goes out."""
    phase, is_open = PASSING, False
    for sign in signs:
        phase = NEXT[phase, sign]
        is_open = is_open or sign is OPEN
        assert (phase is HOLDING) == is_open
        assert (phase is WAITING) == (not is_open and sign is UNCERTAIN)
