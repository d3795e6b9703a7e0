"""Runs are printed as tables, timelines and JSON."""

import io
import json
from pathlib import Path
from types import MappingProxyType

import pytest
from msgspec.structs import replace
from rich.console import Console

from proxy.api.admin.json_output import costs_text, detail_to_json, run_to_json, tokens_text
from proxy.commands.runs.text_output import render_detail, render_list
from proxy.records.rows import (
    MessageRecord,
    NativeCall,
    RunRecord,
    ToolEffect,
    ToolInvocationRecord,
    TurnRecord,
)
from proxy.store.base import RunDetail, UsageRow

T0 = 1_760_000_000.0
GOLDEN = Path(__file__).parent / "golden"

RUN = RunRecord(
    id="run_0123456789abcdef",
    request_id="req-1",
    caller="open",
    wire="chat",
    model="gpt-4o-mini",
    upstream="default",
    stream=True,
    status="completed",
    started_at=T0,
    ended_at=T0 + 4,
    finish_reason="stop",
    turns=2,
    tool_calls=1,
    input_tokens=200,
    output_tokens=30,
    total_tokens=230,
    offered=("core__get_weather",),
    withheld=MappingProxyType({"core__erase": "policy.allow"}),
    trace="silent",
    prompt_hash="0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    cost=123_000,
)
TURNS = [
    TurnRecord("r", 1, "up-1", "tool_calls", T0, T0 + 1, 100, 10, 110, 1),
    TurnRecord("r", 2, "up-2", "stop", T0 + 3, T0 + 4, 100, 20, 120, 0, cost=123_000),
]
CALL = ToolInvocationRecord(
    id="inv_1",
    run_id="r",
    turn=1,
    seq=0,
    call_id="c1",
    tool="core__get_weather",
    provider="core",
    spec_digest="sha256:00",
    effect=ToolEffect.READ_ONLY,
    decision="allow:core__*",
    status="success",
    started_at=T0 + 1,
    ended_at=T0 + 3,
    arguments_redacted={"city": "Wien"},
    result_redacted={"celsius": 22},
    result_bytes=80,
)
SECRET = MessageRecord("r", 1, 0, "tool", content="what the tool said to the model alone")
DETAIL = RunDetail(RUN, TURNS, [SECRET], [CALL])
EVIL = "\x1b]0;owned\x07[bold red]x[/][link=http://evil]\u202e"


def _console() -> Console:
    return Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)


def _text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_list_has_a_line_for_each_run() -> None:
    """The list has one line per run, in the given order, with id, age, status and use."""
    console = _console()
    failed = replace(RUN, id="run_2", status="failed", error_code="upstream_error", started_at=T0 - 7200)
    render_list(console, [RUN, failed], now=T0 + 5)
    head, first, second = _text(console).splitlines()
    assert head.split()[:3] == ["run", "started", "status"]
    assert first.split() == [
        "01234567", "5", "s", "ago", "completed", "gpt-4o-mini", "open",
        "2", "1", "230", "0.000123", "4.00", "s", "stop", "0a1b2c3d",
    ]  # fmt: skip
    assert second.split()[:5] == ["2", "2", "h", "ago", "failed"]
    assert "upstream_error" in second


LISTED = [
    RUN,
    replace(
        RUN,
        id="run_0123456789ffffff",
        caller="key_1/somebody@example.com",
        model="anthropic/claude-sonnet-4-5-20250929",
        status="failed",
        error_code="upstream_unreachable",
        started_at=T0 - 90_000,
        ended_at=None,
        total_tokens=1_234_567,
        cost=12_345_678_900,
    ),
]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_list_fits_the_terminal(width: int) -> None:
    """Golden: the list fits each width; the least important columns are left out first."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    render_list(console, LISTED, {"key_1": "webui"}, now=T0 + 5)
    lines = _text(console).splitlines()
    assert all(len(line) <= width and line == line.rstrip() for line in lines)
    assert "\n".join(lines) + "\n" == (GOLDEN / f"list-{width}.txt").read_text("utf-8")


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_detail_fits_the_terminal(width: int) -> None:
    """Golden: the detail fits each width; if there is no room beside a bar, the turn's use is below it."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    render_detail(console, DETAIL)
    lines = [line.rstrip() for line in _text(console).splitlines()]
    assert all(len(line) <= width for line in lines)
    assert "\n".join(lines) + "\n" == (GOLDEN / f"show-{width}.txt").read_text("utf-8")


def test_what_is_piped_is_whole_and_not_padded() -> None:
    """In a pipe, the list has full ids and times, separated by tabs, at any width."""
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    render_list(console, LISTED, {"key_1": "webui"}, now=T0 + 5)
    head, first, _ = _text(console).splitlines()
    assert head.split("\t")[:3] == ["run", "started", "status"]
    assert first.split("\t")[:5] == [
        "run_0123456789abcdef",
        "2025-10-09 08:53:20",
        "completed",
        "gpt-4o-mini",
        "open",
    ]


def test_an_empty_list_says_so() -> None:
    """A list without runs is a sentence and not an empty table."""
    console = _console()
    render_list(console, [])
    assert _text(console) == "No runs.\n"


def test_a_detail_draws_turns_and_tools_in_time() -> None:
    """Each turn and each tool has a bar at its place, with offset, length, status and what it used."""
    console = _console()
    render_detail(console, DETAIL)
    lines = [line for line in _text(console).splitlines() if line.lstrip().startswith("+")]
    places = [(line.index("━"), line.count("━")) for line in lines]
    begin = places[0][0]
    assert [(first - begin, cells) for first, cells in places] == [(0, 8), (8, 16), (24, 8)]
    assert "turn 1" in lines[0]
    assert "tool_calls" in lines[0]
    assert "100 in, 10 out" in lines[0]
    assert "cost" not in lines[0]
    assert "100 in, 20 out, cost 0.000123" in lines[2]
    assert lines[1].split()[:1] == ["+1.000"]
    assert "2.00 s" in lines[1]
    assert "core__get_weather success" in " ".join(lines[1].split())
    assert '← {"city":"Wien"} → {"celsius":22}' in lines[1]


def test_a_detail_names_tools_offered_and_withheld_by_which_rule() -> None:
    """The detail lists the tools offered, and each withheld tool with its rule."""
    console = _console()
    render_detail(console, DETAIL)
    lines = [line.split() for line in _text(console).splitlines()]
    assert ["offered", "core__get_weather"] in lines
    assert ["withheld", "core__erase", "policy.allow"] in lines


def test_a_detail_names_what_the_upstream_was_not_sent() -> None:
    """The detail lists the request's fields that the upstream's dialect cannot express."""
    console = _console()
    render_detail(console, replace(DETAIL, run=replace(RUN, left_out=("seed", "input[].phase"))))
    assert "left out seed, input[].phase" in [" ".join(line.split()) for line in _text(console).splitlines()]


def test_a_detail_says_from_which_turn_on_a_tool_was_withheld() -> None:
    """A tool that is withheld from a later turn on is named once, with that turn and the rule."""
    rule = {"core__get_weather": "policy.after_untrusted"}
    later = [*TURNS, replace(TURNS[1], number=3, withheld={**rule, EVIL: EVIL})]
    detail = replace(DETAIL, turns=[later[0], replace(later[1], withheld=MappingProxyType(rule)), later[2]])
    console = _console()
    render_detail(console, detail)
    lines = [" ".join(line.split()) for line in _text(console).splitlines()]
    assert lines.count("withheld core__get_weather from turn 2 on: policy.after_untrusted") == 1
    assert sum("from turn 3 on: " in line for line in lines) == 1
    assert "\x1b]0" not in _text(console)
    said = json.loads(json.dumps(detail_to_json(detail)))
    assert [turn["withheld"] for turn in said["turns"]] == [{}, rule, {**rule, EVIL: EVIL}]


def test_a_detail_says_what_the_client_did_not_get_and_why() -> None:
    """The detail names the calls, turn ends and results that the client did not get, with the reason."""

    def withheld(detail: RunDetail) -> str:
        console = _console()
        render_detail(console, detail)
        return _text(console).partition("Kept from the client\n")[2].partition("\n\n")[0]

    text = withheld(DETAIL)
    assert "1 tool call, arguments and results" in text
    assert "the trace was silent" in text
    assert "1 end of a turn" in text
    assert "wait" not in text
    shown = withheld(replace(DETAIL, run=replace(RUN, trace="status")))
    assert "each call in a short line, as text" in shown
    waiting = replace(DETAIL, run=replace(RUN, status="suspended", turns=1), turns=TURNS[:1])
    assert "the results of turn 1" in withheld(waiting)
    assert "end of a turn" not in withheld(waiting)
    assert "the record does not have" in withheld(replace(DETAIL, run=replace(RUN, trace="")))
    plain = withheld(RunDetail(RUN, TURNS[:1], [], []))
    assert "nothing" in plain


def test_content_is_shown_only_where_asked_for() -> None:
    """Rule R3: text and JSON contain a run's content only if it is asked for."""
    for content in (False, True):
        console = _console()
        render_detail(console, DETAIL, content=content)
        assert ("what the tool said" in _text(console)) is content
        said = json.dumps(detail_to_json(DETAIL, content=content))
        assert ("what the tool said" in said) is content
    assert detail_to_json(DETAIL)["message_count"] == 1


def test_what_never_ended_or_has_an_odd_clock_is_drawn_too() -> None:
    """An interrupted tool is drawn with dots; times that go backwards or are absurd cause no error."""
    console = _console()
    broken = replace(CALL, status="interrupted", ended_at=None, error_code="timeout", turn=7)
    odd = replace(
        TURNS[0], started_at=T0 - 50, ended_at=T0 - 60, finish_reason=None, error_code="upstream_broken"
    )
    absurd = replace(RUN, started_at=1e300, ended_at=None, status="running", finish_reason=None)
    render_detail(console, RunDetail(replace(RUN, ended_at=None), [odd], [], [broken]))
    render_list(console, [absurd])
    text = _text(console)
    assert "interrupted timeout" in text
    assert "·" in text
    assert "upstream_broken" in text
    assert "The store keeps no content" in text
    assert "1e+300" in text


def test_calls_as_they_came_are_shown_with_content_alone() -> None:
    """Rule R3: a call in the upstream's own form is shown only if content is asked for."""
    native = NativeCall(CALL.id, "r", '{"extra_content":"AbC=="}')
    detail = replace(DETAIL, native_calls=[native])
    for content in (False, True):
        console = _console()
        render_detail(console, detail, content=content)
        assert ("AbC==" in _text(console)) is content
        said = detail_to_json(detail, content=content)
        assert said.get("native_calls") == (
            [{"invocation_id": CALL.id, "run_id": "r", "payload": native.payload}] if content else None
        )


def test_hostile_names_reach_neither_terminal_nor_markup() -> None:
    """Control characters and markup in values of clients, models and upstreams are printed escaped."""
    run = replace(
        RUN, id=EVIL, request_id=EVIL, caller=EVIL, model=EVIL, upstream=EVIL, finish_reason=EVIL,
        offered=(EVIL,), withheld={EVIL: EVIL},
    )  # fmt: skip
    turn = replace(TURNS[0], finish_reason=EVIL)
    call = replace(CALL, tool=EVIL, decision=EVIL, arguments_redacted={EVIL: EVIL}, result_redacted=EVIL)
    said = MessageRecord("r", 1, 0, EVIL, content=EVIL)
    native = NativeCall(call.id, "r", EVIL)
    console = _console()
    render_list(console, [run])
    render_detail(console, RunDetail(run, [turn], [said], [call], [native]), content=True)
    text = _text(console)
    for character in "\x1b\x07\u202e":
        assert character not in text
    assert "[bold red]" in text


def test_the_json_is_plain_and_complete() -> None:
    """The JSON has the fields of the records as plain values under their own names."""
    said = json.loads(json.dumps(detail_to_json(DETAIL, content=True)))
    assert said["run"] == json.loads(json.dumps(run_to_json(RUN)))
    assert said["run"]["withheld"] == {"core__erase": "policy.allow"}
    assert said["run"]["offered"] == ["core__get_weather"]
    assert said["run"]["duration_s"] == 4
    assert [turn["number"] for turn in said["turns"]] == [1, 2]
    assert said["invocations"][0]["effect"] == "read_only"
    row = DETAIL.invocations[0]
    assert said["invocations"][0]["operation_id"] == f"{row.run_id}.{row.turn}.{row.seq}"
    assert said["invocations"][0]["arguments_redacted"] == {"city": "Wien"}
    assert set(said["messages"][0]) == {
        "run_id", "turn", "seq", "role", "content", "content_json", "tool_calls", "function_call",
        "tool_call_id", "name",
    }  # fmt: skip
    assert run_to_json(replace(RUN, ended_at=None))["duration_s"] is None


def test_cost_is_shown_where_there_is_a_price() -> None:
    """Text shows the cost, or that there is no price; JSON has a number or null."""
    console = _console()
    render_detail(console, DETAIL)
    render_detail(console, replace(DETAIL, run=replace(RUN, cost=None)))
    render_list(console, [replace(RUN, cost=None)])
    text = " ".join(_text(console).split())
    assert "cost 0.000123 prompt" in text
    assert "cost no price for this model" in text
    assert "230 - 4.00 s" in text
    answer = detail_to_json(DETAIL)
    assert answer["run"]["cost"] == 0.000123
    assert [turn["cost"] for turn in answer["turns"]] == [None, 0.000123]


def test_use_that_was_not_reported_is_shown_as_that() -> None:
    """Use that the upstream did not report is ``-`` or null; a sum that lacks some turns has a ``+``."""
    none = replace(RUN, unreported=2, input_tokens=0, output_tokens=0, total_tokens=0)
    some = replace(RUN, unreported=1)
    zero = replace(RUN, input_tokens=0, output_tokens=0, total_tokens=0)
    assert [tokens_text(run.total_tokens, run) for run in (RUN, some, none, zero)] == [
        "230",
        "230+",
        "-",
        "0",
    ]
    keys = ("input_tokens", "output_tokens", "total_tokens")
    assert [run_to_json(none)[key] for key in keys] == [None] * 3
    assert [run_to_json(zero)[key] for key in keys] == [0] * 3
    assert (run_to_json(some)["total_tokens"], run_to_json(some)["unreported"]) == (230, 1)
    console = _console()
    silent = replace(TURNS[1], input_tokens=None, output_tokens=None, total_tokens=None, cost=None)
    render_detail(console, replace(DETAIL, run=some, turns=[TURNS[0], silent]))
    render_detail(console, replace(DETAIL, run=none))
    text = " ".join(_text(console).split())
    assert "200 in, 30 out, 230 in total, without 1 unreported turn" in text
    assert "- (the upstream reported none)" in text
    assert "tokens -" in text


def test_a_cost_that_nobody_knows_is_no_cost_of_nothing() -> None:
    """If the upstream reported no use, a run's cost is ``-`` and null, never 0."""
    none = replace(RUN, unreported=2, input_tokens=0, output_tokens=0, total_tokens=0, cost=0)
    some = replace(RUN, unreported=1, cost=123_000)
    free = replace(RUN, cost=0)
    assert [costs_text(run) for run in (none, some, free)] == ["-", "0.000123+", "0.00"]
    assert [run_to_json(run)["cost"] for run in (none, some, free)] == [None, 0.000123, 0]
    console = _console()
    render_detail(console, replace(DETAIL, run=none))
    render_list(console, [none])
    text = " ".join(_text(console).split())
    assert "cost - (the upstream reported none)" in text
    group = UsageRow(("m",), runs=1, tool_calls=0, errors=0, turns=2, unreported=2, cost=0)
    assert costs_text(group) == "-"


def test_the_budget_that_is_spent_is_named() -> None:
    """Text and JSON name the setting whose budget a run has used up."""
    console = _console()
    render_detail(console, replace(DETAIL, run=replace(RUN, spent="tools.max_calls")))
    assert "budget tools.max_calls is used up" in " ".join(_text(console).split())
    assert run_to_json(replace(RUN, spent="tools.max_calls"))["spent"] == "tools.max_calls"
    assert run_to_json(RUN)["spent"] is None
