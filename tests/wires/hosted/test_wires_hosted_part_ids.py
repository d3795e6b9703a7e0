"""The signed ids of parts that show calls of the provider's tools."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wires.hosted.part_ids import PartIds

KEY, OLD, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))
MARKS = ("ws_toolrelay", "ig_toolrelay", "srvtoolu_toolrelay")


@pytest.mark.parametrize("mark", MARKS)
def test_an_id_is_for_its_caller_and_key(mark: str) -> None:
    """Whoever has the key knows an id again, also an old key, and only for the caller that got it."""
    ids = PartIds([OLD], "ada")
    made = [ids.make(mark), ids.make(mark)]
    assert len(set(made)) == 2
    assert ids.made == made
    assert all(re.fullmatch(mark + "[0-9a-f]{48}", one) for one in made)
    assert PartIds([KEY, OLD], "ada").verified(made) == made
    assert PartIds([KEY], "ada").verified(made) == []
    assert PartIds([OLD], "eve").verified(made) == []
    assert PartIds([OTHER], "ada").verified(made) == []


@given(st.text(max_size=80), st.sampled_from(MARKS))
def test_no_other_text_is_an_id(text: str, mark: str) -> None:
    """Nothing that was not made is an id, whatever its length and characters."""
    ids = PartIds([KEY], "ada")
    made = ids.make(mark)
    guesses = [
        text,
        mark + text,
        made + text,
        text + made,
        made.upper(),
        made[: len(text)],
        text + made[-32:],
    ]
    assert ids.verified([guess for guess in guesses if guess != made]) == []
