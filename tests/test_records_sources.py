"""The sources of untrusted text, as one text that conversations keep."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.records.rows import join_sources
from proxy.tools.running.ledger import RunLedger

SOURCES = st.sampled_from(["mcp__a__*", "mcp__b__*", "web__fetch_page", "mcp__a__list"])
SERVER = "mcp__a__*"


@given(st.lists(st.lists(SOURCES)))
def test_only_a_single_source_looks_like_one(read: list[list[str]]) -> None:
    """However texts are joined, the result is one source exactly if only this source was read."""
    joined = join_sources(*(join_sources(*some) for some in read))
    known = {source for some in read for source in some}
    assert (joined == SERVER) == (known == {SERVER})
    assert (joined == "") == (not known)
    assert len(joined) < 100


@given(st.lists(st.tuples(SOURCES, st.integers(0, 5))), st.integers(0, 6))
def test_a_ledger_knows_what_was_read_before_each_turn(marks: list[tuple[str, int]], turn: int) -> None:
    """A run knows every source that the model had read when it wrote a turn, in whatever order they came."""
    ledger = RunLedger()
    for source, at in marks:
        ledger.mark_untrusted(source, at)
    before = {source for source, at in marks if at < turn}
    found = ledger.untrusted_before(turn)
    assert (found == SERVER) == (before == {SERVER})
    assert bool(found) == bool(before)


def test_a_mark_of_an_older_version_is_no_server() -> None:
    """An older version stored the first of several tools, so its mark must not count as a server's."""
    assert join_sources("mcp__a__list") != SERVER
    assert join_sources("mcp__a__list", SERVER) != SERVER
