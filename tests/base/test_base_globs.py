"""Patterns of names match as in the standard library, and the usual ones need no regular expression."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base import globs
from proxy.base.globs import fits


@given(name=st.text("ab-_*é\n", max_size=12), pattern=st.text("ab-_**?[]!é\n", max_size=10))
def test_the_answer_is_that_of_the_library(name: str, pattern: str) -> None:
    """For any name and any pattern, ``fits`` agrees with ``fnmatchcase``."""
    assert fits(name, pattern) is fnmatchcase(name, pattern)


@pytest.mark.parametrize("pattern", ["*", "gpt-*", "*-mini", "a*b*c*", "core__get_time", "", "**"])
def test_nothing_is_compiled(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern with no special characters but asterisks needs no regular expression."""
    monkeypatch.setattr(globs, "fnmatchcase", lambda *_: pytest.fail("compiled"))
    assert fits("a-b-c", pattern) is (pattern in ("*", "a*b*c*", "**"))
