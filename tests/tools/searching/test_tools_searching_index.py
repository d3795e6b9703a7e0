"""The search for tools by words, and the list of their names for a model."""

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.events import ToolDefinition
from proxy.tools.searching.index import MOST_QUERY, ToolIndex, words_of
from proxy.tools.searching.listing import listing, shortened


def definition(name: str, description: str = "", *arguments: str) -> ToolDefinition:
    """A tool with these arguments."""
    return ToolDefinition(
        name, description, {"type": "object", "properties": {each: {} for each in arguments}}
    )


TOOLS = [
    definition("mcp__hub__create_issue", "Open a new issue in a repository", "title", "body"),
    definition("mcp__hub__list_issues", "List the issues of a repository", "state"),
    definition("mcp__shop__placeOrder", "Buy goods", "sku", "postalCode"),
    definition("mcp__mail__send", "Send a message to people", "recipients"),
]
INDEX = ToolIndex(TOOLS)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("create issues", "mcp__hub__create_issue"),
        ("listing all issue", "mcp__hub__list_issues"),
        ("PLACE AN ORDER", "mcp__shop__placeOrder"),
        ("something with a postal code", "mcp__shop__placeOrder"),
        ("recipient", "mcp__mail__send"),
        ("email somebody", "mcp__mail__send"),
        ("list the issues, as mcp__mail__send", "mcp__mail__send"),
    ],
)
def test_what_fits_best_comes_first(query: str, first: str) -> None:
    """Names, descriptions and argument names count, in any case and form; a full name comes first."""
    assert INDEX.find(query, 3)[0] == first


def test_what_does_not_fit_is_not_found() -> None:
    """Words that no tool has, and words that say nothing, find nothing; no more come than were asked for."""
    assert INDEX.find("zebra", 5) == []
    assert INDEX.find("what is the tool for this", 5) == []
    assert INDEX.find("", 5) == []
    assert len(INDEX.find("issue repository order message", 2)) == 2
    assert ToolIndex([]).find("issue", 5) == []


@given(st.text(max_size=2000), st.integers(0, 5))
def test_any_query_is_answered(query: str, most: int) -> None:
    """Any text of a model finds known tools, each once, and the same each time."""
    found = INDEX.find(query, most)
    assert len(found) <= most
    assert set(found) <= {tool.name for tool in TOOLS}
    assert len(set(found)) == len(found)
    assert INDEX.find(query, most) == found


def test_a_query_has_a_bound() -> None:
    """What is beyond the bound of a query is not read."""
    padding = "x " * MOST_QUERY
    assert INDEX.find(f"{padding} issue", 5) == []
    assert INDEX.find(f"issue {padding}", 5) != []


def steps_of(query: str, index: ToolIndex) -> int:
    """How many lines a search runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        index.find(query, 5)
    finally:
        sys.settrace(before)
    return count


def test_the_work_of_a_search_has_a_bound() -> None:
    """However a model writes its query, a search among many tools stays within the work of a long one."""
    index = ToolIndex(definition(f"mcp__s{at}__issue{at}", f"issue word{at}") for at in range(300))
    queries: Sequence[str] = ("issue " * 80, "wor " * 120, "word1 " * 80, "a" * 500, "ab1" * 160)
    assert max(steps_of(query, index) for query in queries) < 20_000


def test_words_of_names() -> None:
    """Names are divided at underscores, hyphens, capitals and digits."""
    assert list(words_of("getUserById2_fast-mode")) == ["get", "user", "id", "2", "fast", "mod"]


def test_a_list_says_as_much_as_it_has_room_for() -> None:
    """Few tools are described, more are named, and of very many the groups are counted."""
    assert listing(TOOLS).splitlines()[0] == "mcp__hub__create_issue: Open a new issue in a repository"
    many = [
        definition(f"mcp__s{at // 20}__make_thing_{at % 20}", "Make a thing of the kind. More.")
        for at in range(300)
    ]
    named = listing(many)
    assert "mcp__s3__make_thing_0, make_thing_1," in named
    assert "of the kind" not in named
    counted = listing([definition(f"{tool.name}_{at}") for at in range(10) for tool in many])
    assert "mcp__s3__: 200 tools" in counted.splitlines()
    assert max(len(named), len(counted)) < 12_100


def test_descriptions_are_shortened() -> None:
    """A description becomes its first sentence, on one line, or its beginning."""
    assert shortened("Reads a file.\n\nFurther words. And more.", 80) == "Reads a file"
    assert shortened("One\n  line", 80) == "One line"
    assert shortened("long " * 50, 20) == "long long long long…"
