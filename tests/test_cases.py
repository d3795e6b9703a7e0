"""A test of many cases fails at the first case that fails, and says which."""

from pathlib import Path

import pytest
from cases import each


@each("text", ["a", "bb"], str)
def test_other_arguments_are_fixtures(text: str, tmp_path: Path) -> None:
    """The values come from the decorator, everything else from pytest."""
    assert tmp_path.is_dir()
    assert text in ("a", "bb")


def test_the_case_that_fails_is_named() -> None:
    """Each case is tried in turn, and the one that fails is named in the failure."""
    tried = []

    @each("number", [1, 2, 3], "number {}".format)
    def failing(number: int) -> None:
        tried.append(number)
        assert number < 2

    with pytest.raises(AssertionError) as failure:
        failing()
    assert failure.value.__notes__ == ["in the case number 2"]
    assert tried == [1, 2]


def test_a_test_without_a_case_fails() -> None:
    """A loop over nothing would test nothing."""

    @each("number", [], str)
    def empty(number: int) -> None:
        raise AssertionError(number)

    with pytest.raises(AssertionError):
        empty()
