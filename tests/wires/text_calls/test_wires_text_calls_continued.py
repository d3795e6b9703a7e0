"""The byte stream of a turn whose text is searched for calls: what stays unchanged, however it is cut."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_call_rig import WIRES, ask, body_of, say
from text_call_samples import SAMPLES
from toy_dialect import ToyWire, event

from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.client_port import ClientView
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.stream.fast_path import FastPath
from proxy.wires.text_calls.port import text_call_port
from proxy.wires.text_calls.rules import FORMS, TextCallRules

DIALECTS: dict[str, Any] = {
    "chat": ChatWire(),
    "responses": ResponsesWire(b"key"),
    "anthropic": AnthropicWire(),
    "ollama": OllamaWire(),
}
CALL = SAMPLES["hermes"][0][0]
MINTED = re.compile(
    rb"(call_|toolu_|fc_|msg_|resp_)[A-Za-z0-9]{16,}"
    # The time of an Ollama line that the proxy made has six decimals; the test double's has not.
    rb'|("created_at":")[^".]{19}\.\d{6}(?=Z")'
    # The duration in a last line that the proxy wrote; the test double always writes 9 ns.
    rb'|("total_duration":)\d{2,}'
    # Seconds since the epoch: the next second may begin between two plays.
    rb'|("(?:created|created_at|completed_at)":)\d{9,}'
)


def unminted(data: bytes) -> bytes:
    """Return the data without ids, times and durations, which are new each time."""
    return MINTED.sub(lambda found: found[1] or found[2] or found[3] or found[4], data)


class Turn:
    """One turn as the relay processes it, and the client's bytes."""

    def __init__(self, wire: str, *, hidden: Sequence[str] = (), form: str = "hermes") -> None:
        asked = ask(wire)
        dialect = DIALECTS[wire]
        request = dialect.parse(asked)
        self.notes: list[Mapping[str, Any]] = []
        rules = TextCallRules(FORMS[form])
        port = text_call_port(dialect, dialect, request, rules, self.notes.append)
        port.editor(json.dumps(asked).encode(), request)
        self.reader = port.reader({"get_weather", "get_time"}, lambda name: name in hidden, 8192)
        self.writer = dialect.writer(request, ClientView("m", lambda name: name in hidden))
        self.fast = FastPath.of(self.reader, self.writer)
        self.taken_unread = 0

    def play(self, pieces: Sequence[bytes]) -> bytes:
        """Read and write all pieces, as the relay does."""
        out = b""
        fast = self.fast
        for piece in pieces:
            if fast is not None and fast.transform is not None and fast.take_unread(piece):
                self.taken_unread += 1
                out += fast.transform(piece)
                continue
            frames = fast.feed(piece) if fast is not None else self.reader.feed(piece)
            out += b"".join(map(self.writer.write, frames))
            if fast is not None:
                fast.transform = fast.writer.transform()
        frames = [*(fast.reader.catch_up() if fast is not None else ()), *self.reader.close()]
        out += b"".join(map(self.writer.write, frames))
        assert self.reader.fault is None
        return unminted(out + self.writer.turn_ended("final") + self.writer.finish(None))


def stream_of(wire: str, text: str) -> bytes:
    """Return the bytes of a turn with this text."""
    return body_of(say(wire, text, repeats={"tools": ask(wire)["tools"]}))


def as_it_came(wire: str, data: bytes) -> bytes:
    """Return what a client gets of a turn without calls, with an end mark if it is missing (rule W1)."""
    return unminted(data) + (b"data: [DONE]\n\n" if wire == "responses" else b"")


def events_of(wire: str, data: bytes) -> list[bytes]:
    """Return the events of a stream, each with its end."""
    end = b"\n" if wire == "ollama" else b"\n\n"
    return [one + end for one in data.split(end)[:-1]]


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Return the data in pieces."""
    ends = sorted({place % len(data) for place in places} - {0})
    return [data[begin:end] for begin, end in zip([0, *ends], [*ends, len(data)], strict=True)]


TEXTS = st.lists(
    st.sampled_from(
        [
            *("Some words. ", "\n", "\n\n", "<", "<b>", "`x`", "```\n", "[1]", "é𝄞", '"quoted"', "\\"),
            *("<think>", "</think>", "word "),
            *(CALL, CALL[:30], "<tool_call>", "</tool_call>", '{"name": "get_weather"}'),
        ]
    ),
    min_size=1,
    max_size=6,
).map("".join)


@given(
    wire=st.sampled_from(WIRES),
    text=TEXTS,
    places=st.lists(st.integers(0, 1 << 16), max_size=12),
    hidden=st.booleans(),
)
def test_any_cut_gives_the_same_bytes(wire: str, text: str, places: list[int], hidden: bool) -> None:
    """Rule W6: the client gets the same bytes however they are cut, with or without calls in the text."""
    data = stream_of(wire, text)
    ours = ("get_weather",) if hidden else ()
    whole = Turn(wire, hidden=ours).play([data])
    assert Turn(wire, hidden=ours).play(cut(data, places)) == whole
    assert Turn(wire, hidden=ours).play(events_of(wire, data)) == whole
    read = text.partition("</think>")[2] if text.lstrip().startswith("<think>") else text
    if CALL not in read:
        assert whole == as_it_came(wire, data)


@pytest.mark.parametrize("wire", WIRES)
def test_events_of_plain_text_are_not_read(wire: str) -> None:
    """The fast path forwards plain text unread, and does so again after text that could have begun a call."""
    data = stream_of(wire, "word " * 200 + "\n<b>bold</b> and " + "more " * 200)
    turn = Turn(wire)
    assert turn.play(events_of(wire, data)) == as_it_came(wire, data)
    if wire != "responses":  # The test double of Responses sends its text in three events.
        assert turn.taken_unread > 300


@pytest.mark.parametrize("wire", ["chat", "anthropic", "ollama"])
def test_events_are_told_together_again(wire: str) -> None:
    """After an event that could have begun a call, the reader again puts several events into one frame."""
    events = events_of(wire, stream_of(wire, "<b> and " + "word " * 40))
    begins = max(at for at, one in enumerate(events) if b"<" in one)
    turn = Turn(wire)
    assert turn.fast is not None
    turn.fast.reader.feed(b"".join(events[: begins + 2]))
    rest = events[begins + 2 : -4]
    assert len(turn.fast.reader.feed(b"".join(rest), together=True)) < len(rest)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_no_form_closes_the_fast_path(form: str) -> None:
    """The fast path stays open for plain text with every format of text calls."""
    data = stream_of("chat", "Some words, and more of them. " * 50)
    turn = Turn("chat", form=form)
    assert turn.play(events_of("chat", data)) == data
    assert turn.taken_unread > 300


@pytest.mark.parametrize("wire", WIRES)
def test_what_was_found_is_told(wire: str) -> None:
    """The proxy notes the form, the number of calls, and changes to the text; without calls, nothing."""
    turn = Turn(wire)
    turn.play([stream_of(wire, f"{CALL}\n<tool_response>\n5 C\n</tool_response>")])
    assert turn.notes == [
        {
            "form": "hermes",
            "calls": 1,
            "notes": ["a result that the model made up behind its call is left out"],
        }
    ]
    turn = Turn(wire)
    turn.play([stream_of(wire, "Hello.")])
    assert turn.notes == []


def test_a_dialect_with_nothing_but_its_ports() -> None:
    """Calls are also found in a dialect whose encoder notes nothing of a response that has begun."""
    toy = ToyWire()
    asked = {
        "model": "m",
        "live": True,
        "turns": [{"by": "user", "text": "Weather?"}],
        "kit": [{"tool": "get_weather", "about": "d", "takes": {"type": "object"}}],
    }
    request = toy.parse(asked)
    port = text_call_port(toy, toy, request, TextCallRules(FORMS["hermes"]), lambda facts: None)
    editor = port.editor(json.dumps(asked).encode(), request)
    assert json.loads(editor.render())["kit"]
    reader = port.reader({"get_weather"}, lambda name: False, 8192)
    said = [event({"text": "Hm.\n" + CALL[:9]}), event({"text": CALL[9:]}), event({"why": "done"})]
    frames = reader.feed(b"".join(said) + b"data: bye\n\n")
    kinds = [type(one).__name__ for frame in [*frames, *reader.close()] for one in frame.events]
    assert kinds.count("ToolCallStarted") == kinds.count("ToolCallFinished") == 1
