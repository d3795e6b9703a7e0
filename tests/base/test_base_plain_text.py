"""Hostile text on a terminal has no effect there."""

import io
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from proxy.base.plain_text import plain_text, safe_cell


def _printed(cell: Text) -> str:
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="truecolor", width=100_000).print(
        cell, highlight=False, emoji=False, soft_wrap=True, end=""
    )
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ü, 日本, 😀", "plain, ü, 日本, 😀"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x1b]8;;http://x\x1b\\link", r"\x1b]8;;http://x\x1b\\link"),
        ("\x9b2J", r"\x9b2J"),
        ("a\rb\nc\td\x00\x7f", r"a\rb\nc\td\x00\x7f"),
        ("safe\u202etxt.exe", r"safe\u202etxt.exe"),
        ("\u2066a\u2069\u200b\ufeff", r"\u2066a\u2069\u200b\ufeff"),
        ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
        ("\ud800\U000e0041\ue000", r"\ud800\U000e0041\ue000"),
        ("C:\\x1b", r"C:\\x1b"),
        ("a" + "\u0301" * 6, "a" + "\u0301" * 4 + r"\u0301" * 2),
    ],
)
def test_what_does_something_is_written_out(text: str, shown: str) -> None:
    """Control characters, escapes, overrides and hidden characters are written out; ordinary text stays."""
    assert plain_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "[bold]x[/bold]",
        "[link=http://evil]x[/link]",
        "[/]",
        "[@click=x]",
        "\\[red]x",
        "x\\\\\\",
        ":smile:",
        "[[a]",
    ],
)
def test_markup_in_untrusted_text_is_shown_as_it_stands(text: str) -> None:
    """Rich prints the brackets of the text as they are, in the proxy's own style."""
    assert _printed(safe_cell(text, "bold")) == f"\x1b[1m{plain_text(text)}\x1b[0m"
    assert safe_cell(text).plain == plain_text(text)


def test_the_length_is_bounded() -> None:
    """At most ``limit`` characters of the text are shown, and a cut is marked."""
    assert plain_text("x" * 200) == "x" * 200
    assert plain_text("x" * 201) == "x" * 200 + "…"
    assert safe_cell("[b]" * 10**6, limit=3).plain == "[b]…"
    assert len(plain_text("\x1b" * 10**6, limit=50)) == 50 * 4 + 1


@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=60))
@example("\\")
@example("\\\\[/bold]\\")
def test_no_text_can_reach_the_terminal_or_the_markup(text: str) -> None:
    """For any text, only visible characters are printed, and the proxy's own style ends with it."""
    for character in plain_text(text):
        assert unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    printed = _printed(safe_cell(text, "bold"))
    assert printed.endswith("\x1b[0m" if text else "")
    assert printed.count("\x1b") == (2 if text else 0)
