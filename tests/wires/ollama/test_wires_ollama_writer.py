"""The client's stream and reply in Ollama's dialect, composed of all turns of a run."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ollama_rig import OURS, compose, play, writer_of
from ollama_script import call, done, error, read_reply, read_stream, said, tool, turn

from proxy.base.events import FinishReason, ToolCall, ToolResult

MINE = {"tools": [tool("mine")]}
FIRST = turn("One. ", call(OURS, {"a": 1}, "call_1"), thinking="Hm.")
SECOND = turn("Two.", call("mine", {"b": 2}, "call_1"))


@given(st.sets(st.integers(1, max(len(FIRST), len(SECOND)))))
def test_turns_are_one_answer(cuts: set[int]) -> None:
    """Rules W3, W5, W6: the client gets one answer with one last line, summed counts and no hidden call."""
    out = compose(FIRST, SECOND, ask=MINE, at=cuts)
    read = read_stream(out)
    assert (read.text, read.thinking, read.called()) == ("One. Two.", "Hm.", [("mine", {"b": 2})])
    assert (read.last["prompt_eval_count"], read.last["eval_count"]) == (20, 14)
    assert OURS.encode() not in out


def test_what_hides_nothing_is_handed_on() -> None:
    """Rule W2: the writer forwards a turn without server calls unchanged, whatever its lines contain."""
    data = said("a") + said("", call("mine", {}, index=None)) + b"\n" + done("length", "z", odd=1)
    assert compose(data, ask=MINE) == data


def test_indices_are_dense_and_ids_new() -> None:
    """Next to a hidden call, indices stay dense, and an id of the history is not used again."""
    line = said("", call(OURS, {}, "c0"), call("mine", {"n": 1}, "c1", 1), call("mine", {"n": 2}, "c2", 2))
    history = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call("mine", {}, "c1")]}]}
    writer = writer_of({**MINE, **history})
    out = play(line + done(), writer, "mine").out + writer.turn_ended("suspended") + writer.finish(None)
    read = read_stream(out)
    assert read.called() == [("mine", {"n": 1}), ("mine", {"n": 2})]
    assert read.calls[0]["id"] != "c1"
    assert read.calls[1]["id"] == "c2"
    assert set(writer.client_ids()) == {"c1", "c2"}
    assert len(set(writer.client_ids().values())) == 2


def test_calls_and_text_of_a_last_line_are_told_before_it() -> None:
    """The client gets text and calls before the last line, from which some clients read nothing."""
    out = compose(FIRST, done("stop", "Two.", call("mine", {"b": 2}, "call_2")), ask=MINE)
    read = read_stream(out)
    assert (read.text, read.called()) == ("One. Two.", [("mine", {"b": 2})])
    assert read.last["message"]["content"] == ""


@pytest.mark.parametrize("streaming", [True, False])
def test_json_is_of_the_last_turn_alone(streaming: bool) -> None:
    """For a JSON answer the client gets the text of the last turn only, so that it stays valid JSON."""
    ask = {"format": "json", "stream": streaming}
    writer = writer_of(ask)
    out = b""
    for number, text in enumerate(("Let me see.", '{"a":1}')):
        calls = [call(OURS, {}, f"c{number}")] if not number else []
        if streaming:
            out += play(turn(text, *calls), writer).out
        else:
            reader = play(b"").reader
            out += writer.write(reader.read_reply(done("stop", text, *calls)))
        out += writer.turn_ended("final" if number else "hidden")
    out += writer.finish(None)
    assert (read_stream(out) if streaming else read_reply(out)).text == '{"a":1}'


def test_an_error_is_the_last_word() -> None:
    """Rule W3: after the lines before it an error is written once, and no last line follows."""
    writer = writer_of()
    out = play(FIRST, writer).out + writer.turn_ended("hidden") + play(said("a"), writer).out
    out += writer.fail("It broke.", type="x", code="y") + writer.turn_ended("final") + writer.finish(None)
    assert writer.fail("Again.", type="x", code="y") == b""
    read = read_stream(out)
    assert (read.text, read.error, read.last) == ("One. a", "It broke.", {})
    assert out.endswith(b'\n{"error":"It broke."}\n')
    assert out.count(b'"error"') == 1


def test_an_upstreams_error_in_another_form_becomes_a_text() -> None:
    """The writer turns an error object into text, since clients would show ``[object Object]``."""
    assert read_stream(compose(said("a") + b'{"error":{"message":"hot"}}\n')).error == "hot"
    assert compose(said("a") + error("hot")) == said("a") + error("hot")


def test_keep_alive_and_traces_are_lines() -> None:
    """Keep-alives, traces and notes are lines that clients can read; traces have redacted results."""
    writer = writer_of({"model": "q"}, "events")
    made = ToolCall("c", "core.now", "{}", 0)
    out = writer.keep_alive() + writer.tool_started(made, {"a": 1})
    out += writer.tool_finished(made, ToolResult("c", True, "noon", redacted="***"))
    out += writer.note("A word.") + writer.finish(None)
    read = read_stream(out)
    assert (read.empty, read.text) == (1, "A word.")
    assert [one["type"] for one in read.traces] == ["tool_call", "tool_result"]
    assert b"noon" not in out
    assert read.last["model"] == "m"


def test_the_reasons_of_a_run() -> None:
    """Ollama has only two stop reasons, and ``length`` is the one for an answer that is not whole."""
    for reason, told in (("length", "length"), ("tool_calls", "stop"), ("content_filter", "length")):
        writer = writer_of()
        writer.turn_ended("hidden")
        assert json.loads(writer.finish(FinishReason(reason)))["done_reason"] == told
