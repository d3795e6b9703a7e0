"""Calls assembled from fragments: each case was seen with a provider."""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.base.errors import Unreadable, WireError
from proxy.base.events import ToolCall, ToolCallDelta, ToolCallFinished, ToolCallStarted, TurnEvent
from proxy.wires.turn import assembler
from proxy.wires.turn.assembler import Fragment, ToolCallAssembler, is_object, mint_call_id

MINTED = re.compile(r"call_[A-Za-z0-9]{24}")
DECLARED = ("get", "get_weather", "get_weather_now", "time", "book")


def f(
    index: int | None = None,
    call_id: str | None = None,
    name: str | None = None,
    arguments: str = "",
    **extra: Any,
) -> Fragment:
    """Make a fragment, with its fields in their order on the wire."""
    return Fragment(index, call_id, name, arguments, extra)


def run(*fragments: Fragment, declared: Collection[str] = DECLARED) -> list[TurnEvent]:
    """Return all events that the fragments and the end of the turn cause."""
    calls = ToolCallAssembler(declared)
    events: list[TurnEvent] = []
    for fragment in fragments:
        events += calls.add(fragment)
    return events + calls.finish()


def finished(events: Sequence[TurnEvent]) -> list[ToolCall]:
    """Return the calls in their final form."""
    return [event.call for event in events if isinstance(event, ToolCallFinished)]


def calls(*fragments: Fragment, declared: Collection[str] = DECLARED) -> list[tuple[str, str, str]]:
    """Return (id, name, arguments) of each call; a minted id reads ``minted``."""
    events = run(*fragments, declared=declared)
    check_order(events)
    return [
        ("minted" if MINTED.fullmatch(call.call_id) else call.call_id, call.name, call.arguments)
        for call in finished(events)
    ]


def check_order(events: Sequence[TurnEvent], unkept: str = "") -> None:
    """Rule W8: each call starts once, has one id and name to its end, and its pieces are its arguments.

    The arguments of calls named ``unkept`` may have been cut.
    """
    started: dict[int, ToolCallStarted] = {}
    pieces: dict[int, str] = {}
    ended: list[int] = []
    for event in events:
        if isinstance(event, ToolCallStarted):
            assert event.seq not in started
            started[event.seq] = event
            pieces[event.seq] = ""
        elif isinstance(event, ToolCallDelta):
            pieces[event.seq] += event.arguments
        elif isinstance(event, ToolCallFinished):
            assert event.seq not in ended
            ended.append(event.seq)
            assert (event.call.call_id, event.call.name) == (
                started[event.seq].call_id,
                started[event.seq].name,
            )
            told = assembler._last_word(pieces[event.seq])
            assert event.call.name == unkept or event.call.arguments == told
    assert sorted(started) == ended
    found = finished(events)
    assert [call.index for call in found] == list(range(len(found)))
    assert len({call.call_id for call in found}) == len(found)
    assert all(call.call_id for call in found)


# What different providers send.


def test_openai_streams_one_call() -> None:
    """OpenAI sends id and name once, then pieces of arguments with the index."""
    assert calls(f(0, "a", "time"), f(0, arguments='{"tz":'), f(0, arguments='"UTC"}')) == [
        ("a", "time", '{"tz":"UTC"}')
    ]


def test_parallel_calls_by_index() -> None:
    """Two calls with different indices stay separate, also when their fragments alternate."""
    assert calls(
        f(0, "a", "time"),
        f(1, "b", "book"),
        f(0, arguments='{"x":'),
        f(1, arguments='{"y":'),
        f(0, arguments="1}"),
        f(1, arguments="2}"),
    ) == [("a", "time", '{"x":1}'), ("b", "book", '{"y":2}')]


def test_index_missing() -> None:
    """Without an index, calls differ by ids (Mistral), or by names if they have no ids (Gemini)."""
    assert calls(f(None, "a", "time", '{"x":1}'), f(None, "b", "time", '{"x":2}')) == [
        ("a", "time", '{"x":1}'),
        ("b", "time", '{"x":2}'),
    ]
    assert calls(f(None, None, "time", '{"x":1}'), f(None, None, "time", '{"x":2}')) == [
        ("minted", "time", '{"x":1}'),
        ("minted", "time", '{"x":2}'),
    ]


def test_index_missing_in_a_stream() -> None:
    """A fragment without name, id and index continues the newest call."""
    assert calls(
        f(None, None, "time"),
        f(arguments='{"x":'),
        f(arguments="1}"),
        f(None, None, "book"),
        f(arguments='{"y":2}'),
    ) == [("minted", "time", '{"x":1}'), ("minted", "book", '{"y":2}')]


def test_one_index_for_parallel_calls() -> None:
    """If all calls have index 0, a new id with a name is a new call."""
    assert calls(f(0, "a", "time", '{"x":1}'), f(0, "b", "time", '{"x":2}')) == [
        ("a", "time", '{"x":1}'),
        ("b", "time", '{"x":2}'),
    ]


def test_one_index_and_equal_arguments() -> None:
    """Equal calls with different ids are two calls."""
    assert calls(f(0, "a", "time", '{"x":1}'), f(0, "b", "time", '{"x":1}')) == [
        ("a", "time", '{"x":1}'),
        ("b", "time", '{"x":1}'),
    ]


def test_one_index_and_streamed_arguments() -> None:
    """A fragment with only index 0 continues the newest call of that index."""
    assert calls(
        f(0, "a", "time"),
        f(0, arguments='{"x":1}'),
        f(0, "b", "time"),
        f(0, arguments='{"x":'),
        f(0, arguments="2}"),
    ) == [("a", "time", '{"x":1}'), ("b", "time", '{"x":2}')]


def test_one_index_a_new_id_and_no_name() -> None:
    """A new id opens a call without a name if the last call is complete and an object begins."""
    assert calls(
        f(0, "a", "time", '{"x":1}'), f(0, "b", None, ' {"y":'), f(0, arguments="2}"), f(0, "b", "book")
    ) == [("a", "time", '{"x":1}'), ("b", "book", ' {"y":2}')]


def test_one_index_and_no_ids() -> None:
    """Without ids, a name opens a new call once the last one is complete, also for the same tool."""
    assert calls(f(0, None, "time", '{"x":1}'), f(0, None, "time", '{"x":2}'), f(0, None, "book")) == [
        ("minted", "time", '{"x":1}'),
        ("minted", "time", '{"x":2}'),
        ("minted", "book", "{}"),
    ]


def test_one_index_no_ids_and_another_name() -> None:
    """Another name with equal arguments is another call."""
    assert calls(f(0, None, "time", '{"x":1}'), f(0, None, "book", '{"x":1}')) == [
        ("minted", "time", '{"x":1}'),
        ("minted", "book", '{"x":1}'),
    ]


def test_one_index_no_ids_and_no_arguments() -> None:
    """``null`` counts as complete arguments, so the next name opens a call."""
    assert calls(f(0, None, "time", "null"), f(0, None, "book", "null")) == [
        ("minted", "time", "{}"),
        ("minted", "book", "{}"),
    ]


def test_sparse_and_negative_indices() -> None:
    """Indices may start anywhere, have gaps and be negative."""
    assert calls(
        f(5, "a", "time"),
        f(5, arguments='{"x":1}'),
        f(2, "b", "book"),
        f(-1, "c", "get"),
        f(2, arguments="{}"),
    ) == [("a", "time", '{"x":1}'), ("b", "book", "{}"), ("c", "get", "{}")]


def test_id_in_every_fragment() -> None:
    """A call whose id is repeated on every fragment is one call, with or without an index."""
    for index in (0, None):
        assert calls(
            f(index, "a", "time"), f(index, "a", arguments='{"x":'), f(index, "a", arguments="1}")
        ) == [("a", "time", '{"x":1}')]


def test_ids_alternate_without_index() -> None:
    """A known id continues its call, also when another call is newer."""
    assert calls(
        f(None, "a", "time"),
        f(None, "b", "book"),
        f(None, "a", arguments='{"x":1}'),
        f(None, "b", arguments='{"y":2}'),
    ) == [("a", "time", '{"x":1}'), ("b", "book", '{"y":2}')]


def test_a_known_id_wins_over_an_index() -> None:
    """In a fragment without a name, a known id counts more than the index."""
    assert calls(f(0, "a", "time"), f(1, "b", "book"), f(1, "a", arguments='{"x":1}')) == [
        ("a", "time", '{"x":1}'),
        ("b", "book", "{}"),
    ]


def test_id_and_name_in_every_fragment() -> None:
    """A call whose id and name are repeated on every fragment is one call, also with blanks at its end."""
    for index in (0, None):
        assert calls(
            f(index, "a", "time", '{"x":'),
            f(index, "a", "time", "1}"),
            f(index, "a", "time", "\n"),
            f(index, "a", "time"),
        ) == [("a", "time", '{"x":1}\n')]


def test_whole_call_repeated_under_its_id() -> None:
    """A last chunk that repeats the complete call adds nothing, however its arguments are written."""
    assert calls(f(0, "a", "time", '{"x":1,"y":2}'), f(0, "a", "time", '{"y": 2, "x": 1}')) == [
        ("a", "time", '{"x":1,"y":2}')
    ]


def test_whole_call_repeated_without_id() -> None:
    """A repeated call without an id adds nothing if name, index and arguments are the same."""
    assert calls(f(0, None, "time", '{"x":1}'), f(0, None, "time", '{"x":1}')) == [
        ("minted", "time", '{"x":1}')
    ]
    assert calls(f(0, None, "time", '{"x":1}'), f(0, None, None, '{"x":1}')) == [
        ("minted", "time", '{"x":1}')
    ]


def test_whole_call_repeated_with_its_id_at_last() -> None:
    """A call that came without an id, and is repeated with one, stays one call."""
    assert calls(f(0, None, "time", '{"x":1}'), f(0, "late", "time", '{"x":1}')) == [
        ("minted", "time", '{"x":1}')
    ]


def test_the_same_id_for_another_tool() -> None:
    """An id that is repeated for another tool or other arguments becomes a new call with a minted id."""
    assert calls(f(None, "a", "time", '{"x":1}'), f(None, "a", "book", '{"x":1}')) == [
        ("a", "time", '{"x":1}'),
        ("minted", "book", '{"x":1}'),
    ]
    assert calls(f(None, "a", "time", '{"x":1}'), f(None, "a", "time", '{"x":2}')) == [
        ("a", "time", '{"x":1}'),
        ("minted", "time", '{"x":2}'),
    ]


def test_the_same_id_at_another_index() -> None:
    """One id with a name at two indices means two calls, whose fragments belong to them by index."""
    assert calls(
        f(0, "time:0", "time"),
        f(1, "time:0", "time"),
        f(0, "time:0", arguments='{"x":1}'),
        f(1, "time:0", arguments='{"x":2}'),
    ) == [("time:0", "time", '{"x":1}'), ("minted", "time", '{"x":2}')]


def test_the_same_id_at_an_index_and_without_one() -> None:
    """A known id with a name continues its call if only one of the fragments has an index."""
    assert calls(f(0, "a", "time"), f(None, "a", "time", '{"x":1}')) == [("a", "time", '{"x":1}')]
    assert calls(f(None, "a", "time"), f(0, "a", "time", '{"x":1}')) == [("a", "time", '{"x":1}')]


def test_an_id_that_comes_late() -> None:
    """A call that was not announced yet takes the id of a later fragment."""
    assert calls(f(0, None, "get"), f(0, "a", None, '{"x":'), f(0, arguments="1}")) == [
        ("a", "get", '{"x":1}')
    ]
    assert calls(f(0), f(0, "a", "time", '{"x":1}')) == [("a", "time", '{"x":1}')]


def test_an_id_that_comes_with_another_call() -> None:
    """If the call at an index is complete, a first id with another name opens another call."""
    assert calls(f(0, None, "time", '{"x":1}'), f(0, "b", "book", '{"y":2}')) == [
        ("minted", "time", '{"x":1}'),
        ("b", "book", '{"y":2}'),
    ]


def test_an_id_that_comes_too_late() -> None:
    """Rule W8: an id that comes after the call was announced changes nothing and opens no call."""
    assert calls(f(0, None, "time"), f(0, "a", "time", '{"x":'), f(0, "a", "time", "1}")) == [
        ("minted", "time", '{"x":1}')
    ]


def test_a_new_id_on_every_fragment() -> None:
    """If every fragment has a new id, the first one counts, with or without an index."""
    for index in (0, None):
        assert calls(
            f(index, "a", "time"),
            f(index, "b", None, '{"x":'),
            f(index, "c", None, "1}"),
            f(index, "d", None, ""),
            f(index, "e", None, " "),
        ) == [("a", "time", '{"x":1} ')]


def test_a_new_id_without_index_and_name() -> None:
    """After a complete call, a new id with arguments is a new call, whose name comes later."""
    assert calls(f(None, "a", "time", '{"x":1}'), f(None, "b", None, '{"y":2}'), f(None, "b", "book")) == [
        ("a", "time", '{"x":1}'),
        ("b", "book", '{"y":2}'),
    ]


def test_the_id_before_the_name() -> None:
    """A fragment with only an id opens a call, which takes its name from a later fragment."""
    assert calls(f(None, "a"), f(None, "a", "time"), f(None, "a", arguments='{"x":1}')) == [
        ("a", "time", '{"x":1}')
    ]


def test_name_split_over_fragments() -> None:
    """Pieces of a name are joined if they lead to a declared name."""
    for index in (0, None):
        assert calls(f(index, None, "get"), f(index, None, "_wea"), f(index, None, "ther", '{"x":1}')) == [
            ("minted", "get_weather", '{"x":1}')
        ]


def test_name_that_grows() -> None:
    """Each fragment may repeat the name so far."""
    assert calls(f(0, "a", "get_"), f(0, "a", "get_weather"), f(0, "a", arguments="{}")) == [
        ("a", "get_weather", "{}")
    ]


def test_name_that_leads_nowhere() -> None:
    """A second name is not joined to the first if no declared name begins so."""
    assert calls(f(0, "a", "get"), f(0, "a", "zzz"), f(0, "a", arguments='{"x":1}')) == [
        ("a", "get", '{"x":1}')
    ]


def test_name_after_the_arguments_began() -> None:
    """A name is final once arguments have come, but a first name is still taken then."""
    assert calls(f(0, "a", "get", '{"x":'), f(0, "a", "_weather", "1}")) == [("a", "get", '{"x":1}')]
    assert calls(f(0, "a", None, '{"x":'), f(0, "a", "time", "1}")) == [("a", "time", '{"x":1}')]
    assert calls(f(0, None, None, '{"x":1}'), f(0, None, "time")) == [("minted", "time", '{"x":1}')]


def test_name_of_nothing_declared() -> None:
    """An undeclared name makes a call like any other, so that it can be answered with an error."""
    assert calls(f(0, "a", "other", "{}"), declared=()) == [("a", "other", "{}")]


def test_name_never_sent() -> None:
    """A call without a name is dropped, and the indices of the others stay dense."""
    events = run(f(0, "a", None, '{"x":1}'), f(1, "b", "time"))
    assert [(call.call_id, call.index) for call in finished(events)] == [("b", 0)]


def test_a_repeated_name_without_index_and_id() -> None:
    """A name repeated before any arguments is the same call; after arguments it is another call."""
    assert calls(f(None, None, "time"), f(None, None, "time", '{"x":1}'), f(None, None, "time")) == [
        ("minted", "time", '{"x":1}'),
        ("minted", "time", "{}"),
    ]


def test_arguments_before_a_name_without_index_and_id() -> None:
    """A fragment without id, index and name belongs to the newest call, or opens the first one."""
    assert calls(f(arguments='{"x":'), f(None, None, "time", '{"y":1}')) == [("minted", "time", '{"y":1}')]
    assert calls(f(), f(None, None, "time", '{"y":1}')) == [("minted", "time", '{"y":1}')]
    assert [e.seq for e in run(f(), f(None, None, "time")) if isinstance(e, ToolCallStarted)] == [0]


def test_two_names_without_anything_else() -> None:
    """B.0-4: another name is another call, even if the first call has no arguments."""
    assert calls(f(None, None, "time"), f(None, None, "book", "{}")) == [
        ("minted", "time", "{}"),
        ("minted", "book", "{}"),
    ]


def test_whole_call_in_one_fragment() -> None:
    """A complete call may come in one fragment (Gemini, Groq, xAI, Mistral, Ollama)."""
    assert calls(f(0, "a", "time", '{"x":1}')) == [("a", "time", '{"x":1}')]


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [
        ([], "{}"),
        (["", ""], "{}"),
        ([" ", "\n"], "{}"),
        (["null"], "{}"),
        ([" nu", "ll "], "{}"),
        (['""'], "{}"),
        (['" "'], "{}"),
        (['"null"'], "{}"),
        (["{}"], "{}"),
        (["{", "}"], "{}"),
        (["{}", "{}"], "{}"),
        (["{}", "{}", '{"x":1}'], '{"x":1}'),
        (["{}", '{"x":', "1}"], '{"x":1}'),
        ([" {} ", ' {"x":1}'], ' {"x":1}'),
        (["{}", "\n"], "{}\n"),
        (["{", "}", "{}"], "{}"),
        (["{}", "junk"], "{}junk"),
        (['{"x":1}', '{"x":1}'], '{"x":1}'),
        (['{"x":1}', '{ "x" : 1 }'], '{"x":1}'),
        (['{"x":1}', '{"x":2}'], '{"x":1}{"x":2}'),
        (['{"x":{}', "}"], '{"x":{}}'),
        (['{"x":[{}', ",{}", "]}"], '{"x":[{},{}]}'),
        (['"{\\"x\\":1}"'], '{"x":1}'),
        (['"{\\"x\\"', ':1}"'], '{"x":1}'),
        ([' "{\\"x\\":1}" '], '{"x":1}'),
        (['"{\\"x\\":1"'], '"{\\"x\\":1"'),
        (['"text"'], '"text"'),
        (['"\\"{}\\""'], '"\\"{}\\""'),
        (["[1]"], "[1]"),
        (["1"], "1"),
        (['{"x":'], '{"x":'),
        (['{"x":NaN}'], '{"x":NaN}'),
        (['{"a":"}{"', ',"b":"\\"}"', "}"], '{"a":"}{","b":"\\"}"}'),
        (['"\\ud800{"'], '"\\ud800{"'),
    ],
)
def test_last_word_on_arguments(pieces: list[str], arguments: str) -> None:
    """Empty and ``null`` arguments become ``{}``, encoded strings are decoded, placeholders are dropped."""
    fragments = [f(0, arguments=piece) for piece in pieces]
    assert calls(f(0, "a", "time"), *fragments) == [("a", "time", arguments)]


def test_a_placeholder_is_not_told_before_it_is_known_to_be_none() -> None:
    """The client never gets ``{}`` with the real arguments after it."""
    events = run(f(0, "a", "time", "{}"), f(0, arguments='{"x":'), f(0, arguments="1}"))
    assert [event.arguments for event in events if isinstance(event, ToolCallDelta)] == ['{"x":', "1}"]
    events = run(f(0, "a", "time"), f(0, arguments="{}"))
    assert [event.arguments for event in events if isinstance(event, ToolCallDelta)] == ["{}"]
    events = run(f(0, "a", "time"), f(0, arguments="{}"), f(0, arguments=" "))
    assert [event.arguments for event in events if isinstance(event, ToolCallDelta)] == ["{} "]


def test_a_placeholder_before_the_name() -> None:
    """``{}`` with an id, then the name with the arguments, is one call."""
    assert calls(f(0, "a", None, "{}"), f(0, "a", "time", '{"x":1}')) == [("a", "time", '{"x":1}')]


def test_a_named_fragment_is_no_replacement() -> None:
    """After ``{}``, a fragment with a name and other arguments is another call."""
    assert calls(f(0, None, "time", "{}"), f(0, None, "time", '{"x":1}')) == [
        ("minted", "time", "{}"),
        ("minted", "time", '{"x":1}'),
    ]


def test_calls_of_whole_fragments_keep_their_order() -> None:
    """Fragments that are whole calls become calls in their order."""
    assert calls(f(0, "a", "time", "{}"), f(1, "b", "book", "{}")) == [
        ("a", "time", "{}"),
        ("b", "book", "{}"),
    ]


def test_legacy_function_call() -> None:
    """The legacy form is one call without index and id, whose name may come in pieces."""
    events = run(
        Fragment(name="get", legacy=True),
        Fragment(name="_weather", legacy=True),
        Fragment(arguments='{"x":', legacy=True),
        Fragment(name="other", arguments="1}", legacy=True),
    )
    check_order(events)
    (call,) = finished(events)
    assert (call.name, call.arguments, call.legacy) == ("get_weather", '{"x":1}', True)
    assert MINTED.fullmatch(call.call_id)


def test_item_ids_are_kept() -> None:
    """A call keeps the Responses item id of the fragment that opens it."""
    (call,) = finished(run(Fragment(0, "a", "time", "{}", item_id="fc_1")))
    assert (call.item_id, call.legacy) == ("fc_1", False)


# When a call is announced.


def test_a_name_that_may_grow_waits() -> None:
    """Rule W5: a call is announced only when its name cannot become another declared one."""
    assembled = ToolCallAssembler(DECLARED)
    assert assembled.add(f(0, "a", "get_weather")) == []
    assert assembled.undecided == 1
    assert assembled.add(f(0, "a", "get_weather_now")) == [ToolCallStarted(0, "a", "get_weather_now")]
    assert assembled.undecided == 0
    assert assembled.add(f(0, arguments="{")) == [ToolCallDelta(0, "{")]


def test_arguments_decide() -> None:
    """A name is complete once arguments follow it."""
    assembled = ToolCallAssembler(DECLARED)
    assert assembled.add(f(0, "a", "get", "{")) == [ToolCallStarted(0, "a", "get"), ToolCallDelta(0, "{")]


def test_a_name_that_cannot_grow_is_told_at_once() -> None:
    """A name that cannot become a longer declared one is announced at once."""
    for name in ("time", "get_weather_now", "unknown"):
        assert ToolCallAssembler(DECLARED).add(f(0, "a", name)) == [ToolCallStarted(0, "a", name)]


def test_the_next_call_decides_the_one_before() -> None:
    """When another call begins, a waiting call is announced before it."""
    assembled = ToolCallAssembler(DECLARED)
    assert assembled.add(f(0, "a", "get")) == []
    assert assembled.add(f(1, "b", "time")) == [
        ToolCallStarted(0, "a", "get"),
        ToolCallStarted(1, "b", "time"),
    ]


def test_a_new_call_decides_all_that_wait() -> None:
    """When another call begins, all waiting calls are announced in order."""
    assembled = ToolCallAssembler(DECLARED)
    for fragment in (f(0, "a"), f(1, "b", "get"), f(0, name="get")):
        assert assembled.add(fragment) == []
    assert assembled.add(f(2, "c", "time")) == [
        ToolCallStarted(0, "a", "get"),
        ToolCallStarted(1, "b", "get"),
        ToolCallStarted(2, "c", "time"),
    ]


def test_a_call_without_a_name_waits() -> None:
    """Arguments of a call without a name wait, and come in one piece after the name."""
    assembled = ToolCallAssembler(DECLARED)
    assert assembled.add(f(0, "a", None, '{"x"')) == []
    assert assembled.add(f(0, None, None, ":1")) == []
    assert assembled.undecided == 1
    assert assembled.add(f(0, None, "time", "}")) == [
        ToolCallStarted(0, "a", "time"),
        ToolCallDelta(0, '{"x":1}'),
    ]


def test_the_end_decides() -> None:
    """At the end of the turn every named call is announced, and a nameless one is dropped."""
    assembled = ToolCallAssembler(DECLARED)
    assembled.add(f(0, "a", "get"))
    assembled.add(f(0, "b"))
    call = ToolCall("a", "get", "{}", 0)
    assert assembled.finish() == [ToolCallStarted(0, "a", "get"), ToolCallFinished(0, call)]


def test_nothing_new_is_not_told() -> None:
    """A fragment that brings nothing new causes no event."""
    assembled = ToolCallAssembler(DECLARED)
    assembled.add(f(0, "a", "time", '{"x":1}'))
    for fragment in (f(0), f(0, "a"), f(0, arguments='{"x":1}'), f(0, "a", "time", '{"x":1}')):
        assert assembled.add(fragment) == []


# When arguments are complete.

LONG = json.dumps({"a": "x" * 80, "b": ['"}]', {"c": "\\\\"}], "d": {}})


@pytest.mark.parametrize("text", [LONG, json.dumps(LONG), json.dumps([LONG, [], {}])])
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_long_arguments_are_known_to_be_whole(text: str, size: int) -> None:
    """A name opens the next call exactly if the arguments before it are complete, however they are cut."""
    whole = [f(0, None, "time"), *(f(0, arguments=text[i : i + size]) for i in range(0, len(text), size))]
    for blank in ("", " ", "\n\t"):
        found = calls(*whole, f(0, arguments=blank), f(0, None, "book", "{}"))
        assert [name for _, name, _ in found] == ["time", "book"]
    assert [name for _, name, _ in calls(*whole[:-1], f(0, None, "book", "{}"))] == ["time"]
    assert [name for _, name, _ in calls(*whole, f(0, arguments="x"), f(0, None, "book", "{}"))] == ["time"]


json_texts = st.recursive(
    st.none() | st.text(st.sampled_from('ab"\\{}[]'), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("a{\\", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
).filter(lambda value: value is not None)


@given(json_texts, st.lists(st.integers(0, 60), max_size=5))
def test_brackets_close_at_the_end(value: Any, cuts: list[int]) -> None:
    """A value is closed exactly at its end, and is not closed if more than blanks follow, for every cut."""
    text = json.dumps(value)
    brackets = assembler._Brackets()
    places = sorted({min(cut, len(text)) for cut in cuts})
    for start, end in zip([0, *places], [*places, len(text)], strict=True):
        assert brackets.closed is (start == len(text))
        brackets.feed(text[start:end])
    for more, closed in (("", True), (" \n", True), (' "', False), ('"', False), (" ", False)):
        brackets.feed(more)
        assert brackets.closed is closed


@pytest.mark.parametrize(("end", "whole"), [("\n", True), (" \t\n", True), ("\n{", False), (" x", False)])
def test_what_follows_the_last_bracket(end: str, whole: bool) -> None:
    """Only blanks may follow a closed value, in the same piece or in a later one."""
    for pieces in (['{"x":[1]}' + end], ['{"x":[1]}', end]):
        brackets = assembler._Brackets()
        for piece in pieces:
            brackets.feed(piece)
        assert brackets.closed == whole


def test_a_call_as_it_was_sent() -> None:
    """``upstream_fields`` has the upstream's id, name and arguments, even if the call got another id."""
    made = ToolCallAssembler(DECLARED)
    for fragment in (f(0, "a", "time", "null"), f(1, "a", "book", '{"y":1}'), f(2, None, None, "{}")):
        made.add(fragment)
    assert [call.call_id == "a" for call in finished(made.finish())] == [True, False]
    assert [made.upstream_fields(seq) for seq in range(3)] == [
        ("a", "time", "null"),
        ("a", "book", '{"y":1}'),
        (None, "", "{}"),
    ]


def test_nothing_is_not_closed() -> None:
    """Blanks alone are not closed, and a surplus closing bracket counts as closed."""
    brackets = assembler._Brackets()
    brackets.feed(" ")
    assert not brackets.closed
    brackets.feed("}")
    assert brackets.closed


# Unknown fields.


def test_unknown_fields_are_kept() -> None:
    """Unknown fields, such as a thought signature, are merged into their call; fragments do not change."""
    assembled = ToolCallAssembler(DECLARED)
    first = f(0, "a", "time", "{}", extra_content={"google": {"thought_signature": "S1"}}, n=None)
    second = f(0, extra_content={"google": {"other": 1}, "flag": None}, n=2)
    third = f(0, extra_content={"google": {"other": None}}, n=None)
    (started,) = assembled.add(first)
    assert isinstance(started, ToolCallStarted)
    assert started.extra == first.extra
    assert assembled.add(second) == [ToolCallDelta(0, "", second.extra)]
    assembled.add(third)
    assert assembled.extra(0) == {
        "extra_content": {"google": {"thought_signature": "S1", "other": 1}, "flag": None},
        "n": 2,
    }
    # The fragments still hold what came.
    assert first.extra == {"extra_content": {"google": {"thought_signature": "S1"}}, "n": None}
    assert second.extra == {"extra_content": {"google": {"other": 1}, "flag": None}, "n": 2}


def test_an_object_takes_the_place_of_a_word() -> None:
    """A field that changes its type has its last value."""
    assembled = ToolCallAssembler(DECLARED)
    assembled.add(f(0, "a", "time", "", x="word", y={"a": 1}))
    assembled.add(f(0, x={"a": 1}, y="word"))
    assert assembled.extra(0) == {"x": {"a": 1}, "y": "word"}


# Bounds.


def test_too_many_calls() -> None:
    """Rule W7: a turn may have 256 calls, and one more is an error."""
    assembled = ToolCallAssembler(DECLARED)
    for number in range(256):
        assembled.add(f(number, f"id{number}", "time", "{}"))
    with pytest.raises(WireError, match="more than 256"):
        assembled.add(f(256, "id256", "time", "{}"))
    assert len(finished(assembled.finish())) == 256


@pytest.mark.parametrize(
    "fragment",
    [
        f(0, arguments="x" * 100),
        f(0, name="n" * 100),
        f(0, key="v" * 90),
        Fragment(0, None, None, "", {"k" * 92: None}),
    ],
)
def test_a_turn_has_a_bound(monkeypatch: pytest.MonkeyPatch, fragment: Fragment) -> None:
    """Rule W7: arguments, names and unknown fields of a turn share one size limit."""
    monkeypatch.setattr(assembler, "_MAX_TURN_BYTES", 1000)
    assembled = ToolCallAssembler(DECLARED)
    assembled.add(f(0, "a", "time"))
    for _ in range(9):
        assembled.add(fragment)
    with pytest.raises(WireError, match="larger than 1000 bytes"):
        assembled.add(f(0, arguments="x" * 100))


def test_the_bound_is_met_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn may be exactly as large as the limit."""
    monkeypatch.setattr(assembler, "_MAX_TURN_BYTES", 14)
    assembled = ToolCallAssembler(DECLARED)
    assembled.add(f(0, "a", "time", "1234567890"))
    with pytest.raises(WireError):
        assembled.add(f(0, arguments="1"))
    monkeypatch.setattr(assembler, "_MAX_TURN_BYTES", 16)
    assembled = ToolCallAssembler(DECLARED)
    assembled.add(f(0, "a", "time", "1234567890"))
    assembled.add(f(0, arguments="12"))


def test_unknown_fields_count_beside_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, arguments and unknown fields of one fragment all count."""
    monkeypatch.setattr(assembler, "_MAX_TURN_BYTES", 4 + 10 + len('{"x":1}'))
    ToolCallAssembler(DECLARED).add(f(0, "a", "time", "1234567890", x=1))
    with pytest.raises(WireError):
        ToolCallAssembler(DECLARED).add(f(0, "a", "time", "12345678901", x=1))


def test_replaced_arguments_have_the_same_bound() -> None:
    """Rule W7: final arguments replace the pieces of a call and have the same size limit."""
    assembled = ToolCallAssembler(DECLARED, is_hidden=lambda name: name != "book", kept_bytes=10)
    for index, name in enumerate(["time", "book", None]):
        assembled.add(f(index, f"id{index}", name, "pieces"))
        assembled.set_arguments(index, '{"x":"1234567"}')
    assembled.set_arguments(9, "{}")
    assembled.add(f(2, None, "book"))
    assert [call.arguments for call in finished(assembled.finish())] == [
        '{"x":"12345',
        '{"x":"1234567"}',
        '{"x":"1234567"}',
    ]


def test_arguments_of_an_unknown_owner_are_kept() -> None:
    """Rule W7: arguments stay complete as long as the call has no name."""
    assembled = ToolCallAssembler(DECLARED, is_hidden=lambda name: name != "book", kept_bytes=4)
    assembled.add(f(0, "a", None, '{"x":1}'))
    assembled.add(f(0, "a", "book"))
    assert finished(assembled.finish())[0].arguments == '{"x":1}'


def test_long_arguments_of_a_server_call_are_not_kept() -> None:
    """Rule W7: arguments of a server call are cut just beyond its limit, so they are never valid JSON."""
    assembled = ToolCallAssembler(DECLARED, is_hidden=lambda name: name == "time", kept_bytes=10)
    assembled.add(f(0, "a", "time", '{"x":"'))
    for _ in range(50):
        assembled.add(f(0, arguments="1234567"))
    assembled.add(f(0, arguments='"}'))
    assembled.add(f(1, "b", "book", '{"x":"1234567890"}'))
    hidden, visible = finished(assembled.finish())
    assert hidden.arguments == '{"x":"12345'
    assert visible.arguments == '{"x":"1234567890"}'


def test_arguments_as_long_as_the_bound_are_kept() -> None:
    """Arguments of exactly the limit stay complete."""
    assembled = ToolCallAssembler(DECLARED, is_hidden=lambda name: True, kept_bytes=10)
    assembled.add(f(0, "a", "time", '{"x":'))
    assembled.add(f(0, arguments="1234}"))
    assert finished(assembled.finish())[0].arguments == '{"x":1234}'


def test_a_name_on_every_fragment_costs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The assembler parses each piece of arguments about once, even if every fragment repeats the name."""
    parsed = 0
    inner = assembler._parse

    def counted(text: str) -> Any:
        nonlocal parsed
        parsed += len(text)
        return inner(text)

    monkeypatch.setattr(assembler, "_parse", counted)
    text = json.dumps({"x": [{"y": "}{"}] * 1000})
    pieces = [f(0, "a", "time", text[i : i + 3]) for i in range(0, len(text), 3)]
    again = [f(0, "a", "time", "") for _ in range(1000)] + [f(0, "a", "time", " ") for _ in range(1000)]
    assert calls(*pieces, *again) == [("a", "time", text + " " * 1000)]
    # It parses each piece once, the whole once or twice, and the first few pieces while they are short.
    assert parsed < 5 * len(text)


# Generated sequences.


STYLES = (
    "openai",
    "whole",
    "shared-index",
    "shared-index-streamed",
    "no-index",
    "no-index-streamed",
    "nothing-but-names",
    "nothing-but-names-streamed",
    "index-only",
    "index-only-whole",
    "sparse",
    "negative",
    "all-repeated",
    "id-repeated",
    "ids-minted",
    "ids-minted-no-index",
    "name-split",
    "name-grows",
    "name-last",
    "interleaved",
    "twice",
    "one-id-for-all",
)


def fragmented(style: str, call: tuple[str, str, str], position: int, pieces: list[str]) -> list[Fragment]:
    """Return one call as a provider of this style sends it."""
    call_id, name, text = call
    half = len(name) // 2
    match style:
        case "openai" | "interleaved":
            return [f(position, call_id, name), *(f(position, arguments=p) for p in pieces)]
        case "whole":
            return [f(position, call_id, name, text)]
        case "shared-index":
            return [f(0, call_id, name, text)]
        case "shared-index-streamed":
            return [f(0, call_id, name), *(f(0, arguments=p) for p in pieces)]
        case "no-index":
            return [f(None, call_id, name, text)]
        case "no-index-streamed":
            return [f(None, call_id, name), *(f(None, call_id, None, p) for p in pieces)]
        case "nothing-but-names":
            return [f(None, None, name, text)]
        case "nothing-but-names-streamed":
            return [f(None, None, name), *(f(arguments=p) for p in pieces)]
        case "index-only":
            return [f(position, None, name), *(f(position, arguments=p) for p in pieces)]
        case "index-only-whole":
            return [f(position, None, name, text)]
        case "sparse":
            return [f(3 + 2 * position, call_id, name), *(f(3 + 2 * position, arguments=p) for p in pieces)]
        case "negative":
            return [f(-1, call_id, name, text)]
        case "all-repeated":
            return [f(position, call_id, name, p) for p in ["", *pieces, ""]]
        case "id-repeated":
            return [f(position, call_id, name), *(f(position, call_id, None, p) for p in pieces)]
        case "ids-minted":
            rest = [f(position, f"{call_id}-{n}", None, p) for n, p in enumerate(pieces)]
            return [f(position, call_id, name), *rest]
        case "ids-minted-no-index":
            rest = [f(None, f"{call_id}-{n}", None, p) for n, p in enumerate(pieces)]
            return [f(None, call_id, name), *rest]
        case "name-split":
            parts = [name[:half], name[half:]]
            return [f(position, call_id, p) for p in parts if p] + [f(position, arguments=p) for p in pieces]
        case "name-grows":
            parts = [name[:half], name]
            return [f(position, call_id, p) for p in parts if p] + [f(position, arguments=p) for p in pieces]
        case "name-last":
            return [
                f(position, call_id),
                *(f(position, arguments=p) for p in pieces),
                f(position, None, name),
            ]
        case "twice":
            streamed = [f(position, arguments=p) for p in pieces]
            return [f(position, call_id, name), *streamed, f(position, call_id, name, text)]
        case "one-id-for-all":
            return [f(position, "same", name), *(f(position, "same", None, p) for p in pieces)]
    raise AssertionError(style)


@st.composite
def turns(draw: st.DrawFn) -> tuple[str, list[tuple[str, str, str]], list[Fragment]]:
    """A style, the calls of a turn, and their fragments."""
    style = draw(st.sampled_from(STYLES))
    count = draw(st.integers(1, 4))
    sent: list[tuple[str, str, str]] = []
    groups = []
    for position in range(count):
        name = draw(st.sampled_from(DECLARED))
        argument = draw(st.text(max_size=6) | st.sampled_from(['"', "\\", "}{", '{"x":1}']))
        value = {"n": position, "a": draw(st.sampled_from([argument, [argument], {"b": {}}, [{}, {}]]))}
        text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
        cuts = sorted(draw(st.lists(st.integers(1, len(text) - 1), max_size=5)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) if a < b]
        call = (f"id{position}", name, text)
        sent.append(call)
        groups.append(fragmented(style, call, position, pieces))
    if style == "interleaved":
        heads = [group[0] for group in groups]
        rest = [piece for group in groups for piece in group[1:]]
        order = draw(st.permutations(range(len(groups))))
        rest = sorted(rest, key=lambda piece: order[piece.index or 0])
        return style, sent, heads + rest
    return style, sent, [fragment for group in groups for fragment in group]


@given(turns())
def test_every_style_gives_the_same_calls(
    turn: tuple[str, list[tuple[str, str, str]], list[Fragment]],
) -> None:
    """Rule W7: the same calls come out in order, however a provider cuts them."""
    style, sent, fragments = turn
    events = run(*fragments)
    check_order(events)
    found = finished(events)
    assert [(call.name, call.arguments) for call in found] == [(name, text) for _, name, text in sent]
    if style not in ("nothing-but-names", "nothing-but-names-streamed", "index-only", "index-only-whole"):
        ids = ["same"] if style == "one-id-for-all" else [call_id for call_id, _, _ in sent]
        assert [call.call_id for call in found][: len(ids)] == ids


anything = st.builds(
    Fragment,
    index=st.none() | st.integers(-1, 2),
    call_id=st.sampled_from([None, None, "a", "b", "c"]),
    name=st.sampled_from([None, None, "get", "get_weather", "_weather", "time", "odd"]),
    arguments=st.sampled_from(
        [
            "",
            "",
            " ",
            "{}",
            "{",
            "}",
            '{"x":1}',
            '{"x":',
            '"y"',
            "null",
            '"{}"',
            "\\",
            "[",
            "]",
            "1",
            "\ud800",
        ]
    ),
    extra=st.sampled_from([{}, {}, {"e": {"a": 1}}, {"e": None}, {"e": "s"}]),
    legacy=st.sampled_from([False, False, False, True]),
)


@given(st.lists(anything, max_size=12), st.integers(0, 20))
@example([Fragment(0, None, None, '{"x":1}'), Fragment(0, "b", None, '{"x":1}')], 5)
def test_no_sequence_breaks_it(fragments: list[Fragment], kept: int) -> None:
    """Rule W7: in any sequence, each call has one start, one end, its own id and its own pieces, unless a
    visible call gets the name of a hidden tool."""
    assembled = ToolCallAssembler(DECLARED, is_hidden=lambda name: name == "time", kept_bytes=kept)
    events: list[TurnEvent] = []
    for fragment in fragments:
        try:
            events += assembled.add(fragment)
        except Unreadable:
            assert fragment.name == "time"
            return
        assert assembled.undecided >= 0
    events += assembled.finish()
    check_order(events, unkept="time")


def test_minted_ids() -> None:
    """A minted id has OpenAI's format and is always new."""
    ids = {mint_call_id() for _ in range(200)}
    assert len(ids) == 200
    assert all(MINTED.fullmatch(call_id) for call_id in ids)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("{}", True),
        (' {"a":1} ', True),
        ("[]", False),
        ("", False),
        ("{", False),
        ("null", False),
        ("{}{}", False),
    ],
)
def test_is_object(text: str, known: bool) -> None:
    """Rule W7: only the text of one JSON object can be run."""
    assert is_object(text) is known


def test_an_object_of_too_many_values_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule W7: an object with too many values is refused; a long text in it is allowed."""
    monkeypatch.setattr(assembler, "_MOST_VALUES", 40)
    assert is_object('{"a":[' + "1," * 10 + "1]}")
    assert not is_object('{"a":[' + "1," * 60 + "1]}")
    assert is_object('{"a":"' + "x" * 100 + '"}')


def test_what_python_alone_reads_is_no_object() -> None:
    """Rule W7: NaN and lone surrogates are refused, because not every JSON parser accepts them."""
    assert not is_object('{"a":NaN}')
    assert not is_object('{"a":"\\ud800"}')
    assert not is_object('{"a":"\ud800"}')


def test_the_last_word_on_a_name() -> None:
    """A name can be set until the call is announced; for an unknown call nothing happens."""
    calls = ToolCallAssembler(DECLARED)
    assert calls.add(f(0, "call_1", "get")) == []
    assert calls.set_name(0, "get_weather") == [ToolCallStarted(0, "call_1", "get_weather")]
    assert calls.set_name(0, "time") == []
    assert calls.set_name(1, "time") == []
    finished = [event.call.name for event in calls.finish() if isinstance(event, ToolCallFinished)]
    assert finished == ["get_weather"]
