"""The search for tools by a regular expression that a model wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.errors import ToolFailure
from proxy.base.events import ToolDefinition
from proxy.tools.searching.patterns import MOST_PATTERN, matching

TOOLS = [
    ToolDefinition("get_rate", "Look up an exchange rate", {"properties": {"currency": {}}}),
    ToolDefinition("get_price", "Look up a stock's price, not an exchange rate", {"properties": {}}),
    ToolDefinition("rate_film", "Give stars", {}),
]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("rate", ["get_rate", "rate_film", "get_price"]),
        ("^get_", ["get_rate", "get_price"]),
        ("GET", []),
        ("(?i)STARS|currency", ["get_rate", "rate_film"]),
        (r"\{", []),
        ("", ["get_rate", "get_price", "rate_film"]),
    ],
)
def test_a_pattern_is_searched_in_names_arguments_and_descriptions(pattern: str, found: list[str]) -> None:
    """Case counts as in Python; tools with the pattern in their names come first."""
    assert matching(pattern, TOOLS) == found


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", "[", "(?=x)", r"(a)\1", "a" * (MOST_PATTERN + 1)),
        *("a{2}", "a{ 2,}", "a{,2}", r"\\{9}", "(?x)a{#\n9}", "(?x)a{ \n # and so on\n9}"),
    ],
)
def test_what_cannot_be_used_is_refused(pattern: str) -> None:
    """A pattern that is too long, counts, or is none for this engine, is a failure that the model reads."""
    with pytest.raises(ToolFailure) as caught:
        matching(pattern, TOOLS)
    assert caught.value.code == "invalid_arguments"


@given(st.text(max_size=MOST_PATTERN))
def test_any_pattern_is_answered_or_refused(pattern: str) -> None:
    """Any text of a model finds known tools or is refused with a code."""
    codes: list[str] = []
    try:
        found = matching(pattern, TOOLS)
    except ToolFailure as failure:
        found, codes = [], [failure.code]
    assert set(found) <= {tool.name for tool in TOOLS}
    assert set(codes) <= {"invalid_arguments"}


def test_patterns_that_explode_elsewhere_do_not_here() -> None:
    """Nested repetition, which takes Python's engine exponential time, is answered at once."""
    tools = [ToolDefinition("t", "a" * 5000, {})]
    assert matching("(a+)+$", tools) == ["t"]
    assert matching("(a|a)*b", tools) == []
    assert matching(r"(\w*)*!", tools) == []


def test_a_search_that_takes_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time the search ends with a failure."""
    times = iter([0.0, 0.05, 0.2])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    with pytest.raises(ToolFailure) as caught:
        matching("x", TOOLS)
    assert caught.value.code == "timeout"
