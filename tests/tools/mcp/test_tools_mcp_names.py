"""The ids that the proxy gives to the tools of MCP servers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tools.contract.identifiers import check_tool_id
from proxy.tools.mcp.definitions import SERVER_NAME, pinned_tool_id


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("read", "mcp__files__read"),
        ("read_file-2", "mcp__files__read_file-2"),
        ("read.file", "mcp__files__read_file_"),
        ("_read", "mcp__files__read_"),
        ("a__b", "mcp__files__a_b_"),
        ("读", "mcp__files__"),
    ],
)
def test_a_name_that_fits_is_kept_and_any_other_gets_a_hash(name: str, identifier: str) -> None:
    """A valid name is kept; another is made valid, so that it is still readable, and gets a hash."""
    made = pinned_tool_id("files", name)
    assert re.fullmatch(re.escape(identifier) + ("" if made == identifier else "[0-9a-f]{8}"), made)
    assert made == pinned_tool_id("files", name)


def test_an_id_is_the_same_on_every_machine() -> None:
    """The hash in an id never changes, because operators write ids into policies."""
    assert pinned_tool_id("files", "read.file") == "mcp__files__read_file_dd32cdf5"


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_every_name_has_an_id_of_its_own(one: str, other: str) -> None:
    """Rule T5: every id is valid for all providers, and different names have different ids."""
    made = [pinned_tool_id("a" * 25, name) for name in (one, other)]
    for identifier in made:
        check_tool_id(identifier, "mcp")
    assert (made[0] == made[1]) == (one == other)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a" * 26, "a.b"])
def test_names_of_servers_are_few_characters(name: str) -> None:
    """A server name with other characters, or one too long for the ids of tools, is refused."""
    assert SERVER_NAME.fullmatch(name) is None
