"""Placeholders in texts: whole ones are restored, and only what may still become one is held back."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.hooks.placeholders import Placeholders

ORIGINALS = {"[EMAIL_a]": "anna@example.com", "[EMAIL_b]": 'the "other" one', "<<X>>": "[EMAIL_a]"}
PARTS = st.sampled_from([*ORIGINALS, "[EMAIL_", "[EM", "[", "<<X", "<", ">>", "a", " ", "[EMAIL_c]", "é"])


def placeholders() -> Placeholders:
    made = Placeholders()
    made.add(ORIGINALS)
    return made


def reference(text: str) -> str:
    """Restore a text in the plainest way."""
    out, at = "", 0
    while at < len(text):
        found = next((one for one in ORIGINALS if text.startswith(one, at)), "")
        out += ORIGINALS[found] if found else text[at]
        at += len(found) or 1
    return out


@given(st.lists(PARTS).map("".join), st.lists(st.integers(0, 60), max_size=8))
def test_pieces_give_what_the_whole_gives(text: str, cuts: list[int]) -> None:
    """Wherever a text is cut, its pieces together are restored as the whole is."""
    made = placeholders()
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    out = rest = ""
    for begin, end in pairwise(places):
        done, rest = made.split(rest + text[begin:end])
        out += done
        assert any(one.startswith(rest) for one in ORIGINALS)
    assert made.restored(text) == reference(text)
    assert out + made.restored(rest) == reference(text)


def test_only_what_may_become_a_placeholder_is_held() -> None:
    """The shortest end that may become one waits, and not one character more."""
    made = placeholders()
    assert made.split("see [EMAIL_") == ("see ", "[EMAIL_")
    assert made.split("see [EMAIL_c") == ("see [EMAIL_c", "")
    assert made.split("[[E") == ("[", "[E")
    assert made.split("[EMAIL_a] and <") == ("anna@example.com and ", "<")


def test_in_json_an_original_is_escaped() -> None:
    """An original with quotes stays one string of the JSON around it."""
    text = placeholders().restored('{"to": "[EMAIL_b]"}', in_json=True)
    assert json.loads(text) == {"to": 'the "other" one'}


@pytest.mark.parametrize(
    "wrong",
    [
        {"[a": "x", "[ab": "y"},
        {"[EMAIL_a]": "somebody else"},
        {"[EMAIL_a]]": "x"},
        {"ab": "x"},
        {"x" * 65: "x"},
        {'"abc"': "x"},
        {"a\\bc": "x"},
        {"[é]": "x"},
        {"[abc]": "x" * 65537},
        {"[abc]": "\ud800"},
        {f"[{number}]": "x" for number in range(5001)},
    ],
)
def test_what_could_not_be_put_back_is_refused_as_a_whole(wrong: dict[str, str]) -> None:
    """Ambiguous, too many and too large placeholders are refused, without their texts, and none is added."""
    made = placeholders()
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        made.add({"[good]": "fine", **wrong})
    assert "somebody" not in str(refused.value)
    assert made.restored("[good] [EMAIL_a]") == "[good] anna@example.com"


def test_beginnings_that_do_not_come_are_not_looked_for_again_and_again() -> None:
    """Many placeholders that begin differently, and a long text that nearly begins one at each place: the
    time is that of one reading, else this test would take minutes."""
    made = Placeholders()
    made.add({f"{chr(one)}_{one}": "x" for one in range(35, 91)})
    text = "#" * 300_000
    assert made.restored(f"{text}#_35") == f"{text}x"
