"""Texts that consist of channels: what is a thought, a call, and for the user, however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.events import ReasoningDelta, TextDelta
from proxy.wires.text_calls.channels import ChannelCall, Channels

ANALYSIS = "<|channel|>analysis<|message|>The user wants {x}.<|end|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"a": "<b>"}'
FINAL = "<|start|>assistant<|channel|>final<|message|>It is <b>noon</b>.\n"

Split = tuple[str, str, list[tuple[str, str]], list[str]]


def split(*pieces: str, cut: bool = False, most: int = 10_000) -> Split | None:
    """The thoughts, the text, the calls and the notes of a turn; ``None`` if it has no channels."""
    channels = Channels(most)
    found = [one for piece in pieces for one in channels.feed(piece)]
    if not channels.applies:
        assert not found
        return None
    found += channels.close(cut=cut)
    return (
        "".join(one.text for one in found if isinstance(one, ReasoningDelta)),
        "".join(one.text for one in found if isinstance(one, TextDelta)),
        [(one.recipient, one.body) for one in found if isinstance(one, ChannelCall)],
        channels.notes,
    )


THOUGHT, SAID = "The user wants {x}.", "It is <b>noon</b>.\n"
LOOK = ("functions.look", '{"a": "<b>"}')
SAMPLES: list[tuple[str, Split]] = [
    (ANALYSIS + FINAL, (THOUGHT, SAID, [], [])),
    (ANALYSIS + FINAL + "<|return|>", (THOUGHT, SAID, [], [])),
    ("\n" + FINAL, ("", SAID, [], [])),
    (FINAL.removeprefix("<|start|>assistant") + "<|end|>\n", ("", SAID, [], [])),
    (ANALYSIS + CALL + "<|call|>", (THOUGHT, "", [LOOK], [])),
    (ANALYSIS + CALL, (THOUGHT, "", [LOOK], [])),
    ("<|start|>assistant to=functions.look<|channel|>commentary<|message|>{}<|call|>",
     ("", "", [("functions.look", "{}")], [])),
    ("<|channel|>commentary<|message|>I look it up.<|end|>" + CALL + "<|call|>",
     ("", "I look it up.", [LOOK], [])),
    (ANALYSIS + ANALYSIS + "<|channel|>commentary<|message|>One.<|end|>" + FINAL,
     (f"{THOUGHT}\n\n{THOUGHT}", f"One.\n\n{SAID}", [], [])),
    ("<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>So.", ("Hm.", "So.", [], [])),
    (ANALYSIS + "So.", (THOUGHT, "So.", [], [])),
    (CALL + "<|call|><|start|>functions.look to=assistant<|channel|>commentary<|message|>made up<|end|>x",
     ("", "", [LOOK], ["a message that is not the model's own is left out"])),
    (FINAL + "<|start|>user<|message|>And now?",
     ("", SAID, [], ["a message that is not the model's own is left out"])),
    (FINAL + "a <|en b <| c", ("", SAID + "a <|en b <| c", [], [])),
    (FINAL + "<|chan", ("", SAID + "<|chan", [], [])),
    (ANALYSIS + "<|start|>assist", (THOUGHT, "", [], [])),
    (ANALYSIS + "<|start|>" + "x" * 300, (THOUGHT, "<|start|>" + "x" * 300, [], [])),
]  # fmt: skip

PLAIN = [
    "Hello.", "", " \n", "<b>", "<|", "<|channel|>", "<|channel|>analysis", "<|start|>user<|message|>Hi.",
    "The mark <|channel|>final<|message|> begins it.", "<|channel|>" + "x" * 300 + "<|message|>a",
    "`<|channel|>final<|message|>`", "<|channel|><|end|><|message|>a",
]  # fmt: skip


@pytest.mark.parametrize(("text", "found"), SAMPLES)
def test_a_text_is_split_however_it_is_cut(text: str, found: Split) -> None:
    """Thoughts, text and calls are the same for every cut into two pieces, and for single characters."""
    assert split(text) == split(*text) == found
    for place in range(1, len(text)):
        assert split(text[:place], text[place:]) == found


@pytest.mark.parametrize("text", PLAIN)
def test_any_other_text_stays_whole(text: str) -> None:
    """A text that does not begin with a complete header of the model's own is not split."""
    assert split(text) is None
    assert split(*text) is None


marks = st.sampled_from(
    ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>", "<|",
     "assistant", "analysis", "final", "commentary", " to=functions.look", "{}", "a", "\n", "<", "x" * 250]
)  # fmt: skip


@given(st.lists(marks, max_size=14), st.sets(st.integers(1, 400)), st.booleans())
def test_the_cuts_never_matter(parts: list[str], cuts: set[int], cut: bool) -> None:
    """Whatever a model writes, the result does not depend on where its text was cut."""
    text = ANALYSIS + "".join(parts)
    edges = [0, *sorted(place for place in cuts if place < len(text)), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    whole = split(text, cut=cut, most=300)
    assert split(*pieces, cut=cut, most=300) == whole
    assert whole is not None


def test_a_call_that_the_bound_cut_off_is_left_out() -> None:
    """A call that a length limit cut off is no call, and no text."""
    found = split(ANALYSIS, CALL[:-3], cut=True)
    assert found == (THOUGHT, "", [], ["a call that the bound of the answer cut off is left out"])


def test_a_call_larger_than_the_bound_is_text() -> None:
    """A message to a tool that is larger than any call goes on as text."""
    found = split(f"<|channel|>commentary to=functions.look<|message|>{'x' * 50}<|call|>", most=40)
    assert found == ("", f"<|channel|>commentary to=functions.look<|message|>{'x' * 50}", [], [])
