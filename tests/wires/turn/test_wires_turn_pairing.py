"""Results are paired with calls by id, by name and by order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wires.turn.pairing import CallReference, pair_results

A, B = CallReference("1", "a"), CallReference("2", "b")
SAID = st.lists(
    st.builds(CallReference, st.sampled_from(["", "1", "2", "3"]), st.sampled_from(["", "a", "b"]))
)


@pytest.mark.parametrize(
    ("calls", "results", "places"),
    [
        ([A, B], [CallReference("2"), CallReference("1")], [1, 0]),
        ([A, B], [CallReference(name="b"), CallReference(name="a")], [1, 0]),
        ([A, B], [CallReference(), CallReference()], [0, 1]),
        ([A, A], [CallReference(name="a"), CallReference(name="a")], [0, 1]),
        (
            [CallReference(name="a"), CallReference(name="a")],
            [CallReference("x", "a"), CallReference("y", "a")],
            [0, 1],
        ),
        ([A, B], [CallReference(), CallReference("1")], [1, 0]),
        ([A, B], [CallReference(), CallReference(name="a")], [1, 0]),
        ([A], [CallReference("1"), CallReference("1")], [0, None]),
        ([A], [CallReference(name="c")], [None]),
        ([A], [CallReference(), CallReference()], [0, None]),
        ([], [CallReference("1", "a")], [None]),
    ],
)
def test_what_says_most_chooses_first(
    calls: list[CallReference], results: list[CallReference], places: list[int]
) -> None:
    """An id decides, else the name, else the order; what answers nothing is told apart."""
    assert pair_results(calls, results) == places


@given(SAID, SAID)
def test_no_call_is_answered_twice(calls: list[CallReference], results: list[CallReference]) -> None:
    """Whatever a client sends; a result never answers the call of another tool that it names alone."""
    places = pair_results(calls, results)
    known = [place for place in places if place is not None]
    assert len(places) == len(results)
    assert len(set(known)) == len(known)
    for result, place in zip(results, places, strict=True):
        if place is not None and result.name and result.call_id != calls[place].call_id:
            assert calls[place].name == result.name
