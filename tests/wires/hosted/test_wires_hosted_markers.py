"""Numbered markers in a text that comes in any pieces, and the numbers that a model reads."""

import itertools
import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.base.events import CitationAdded, TextDelta, ToolResult
from proxy.wires.hosted.links import LinkFinder
from proxy.wires.hosted.markers import LONGEST, highest_number, numbered
from proxy.wires.hosted.tools import FoundPage

PAGES = {
    url: FoundPage(url, f"Title of {url}", "text")
    for url in ("https://a.example/x_(y)", "https://b.example", "http://c.example/)")
}
NUMBERS = dict(enumerate(PAGES.values(), start=7))
PIECES = st.sampled_from(
    [
        *(
            "[7]",
            "【8】",
            "【9†L1-L3】",
            "[8][7]",
            "【1】",
            "[1]",
            "[77777]",
            "[777777]",
            "【7",
            "【7†",
            "】",
            "[8",
        ),
        *(
            "[a](https://b.example)",
            "[7](https://b.example)",
            "[7]: x",
            "a[7]",
            "`",
            "```",
            "\n",
            "\n\n",
            " ",
        ),
        *("\U0001f30a", "河", "e\u0301", "\U0001f468\u200d\U0001f469", "x", "(", "]", "[["),
    ]
)


def read(pieces: list[str]) -> tuple[str, list[CitationAdded]]:
    """Return the text and the citations of a text in these pieces."""
    finder, text = LinkFinder(PAGES, NUMBERS), ""
    found: list[CitationAdded] = []
    for event in itertools.chain(itertools.chain.from_iterable(map(finder.take, pieces)), finder.end()):
        if isinstance(event, TextDelta):
            text += event.text
        else:
            assert event.end == len(text)
            found.append(event)
    return text, found


@example("【7†`】", [])
@example("【7†x】", [3])
@example("【12345†L123456-L123456】【7†L123456-L123456】", [20])
@given(st.lists(PIECES, max_size=14).map("".join), st.lists(st.integers(0, 200), max_size=20))
def test_any_cut(whole: str, cuts: list[int]) -> None:
    """Text and citations do not depend on how the text is cut; each citation is over its link."""
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[a:b] for a, b in itertools.pairwise(places)]
    text, found = read(pieces)
    assert (text, found) == read([whole]) == read(list(whole))
    left = text
    for citation in reversed(found):
        link = text[citation.start : citation.end]
        assert citation.url in link
        if link.startswith("[["):
            left = left[: citation.start] + left[citation.end :]
    # Nothing but markers is replaced, and nothing else of the text changes.
    assert "".join(ch for ch in left if ch not in "[]【】†0123456789L-") == "".join(
        ch for ch in whole if ch not in "[]【】†0123456789L-"
    )


@pytest.mark.parametrize(
    ("whole", "text"),
    [
        ("河[8].", "河[[8]](https://b.example)."),
        ("\U0001f30a 【7】【8】", "\U0001f30a [[7]](https://a.example/x_(y))[[8]](https://b.example)"),
        ("so【8†L1-L3】", "so[[8]](https://b.example)"),
        ("so【8†source】【8†L12】", "so[[8]](https://b.example)[[8]](https://b.example)"),
        ("【8†see `b`】 【8†】 【8†sources】", "【8†see `b`】 【8†】 【8†sources】"),
        ("see [9]", "see [[9]](<http://c.example/)>)"),
        ("word[8]", "word[8]"),
        ("[8]: https://x.example", "[8]: https://x.example"),
        ("[8](https://x.example)", "[8](https://x.example)"),
        ("[1] 【2】 [8 ] [08]", "[1] 【2】 [8 ] [[8]](https://b.example)"),
        ("`b [8]` [8]", "`b [8]` [[8]](https://b.example)"),
        ("```\nb [8]\n\n【8】\n``` [8]", "```\nb [8]\n\n【8】\n``` [[8]](https://b.example)"),
        ("a ` b\n\n[8]", "a ` b\n\n[[8]](https://b.example)"),
        ("``a ` [8]`` [8]", "``a ` [8]`` [[8]](https://b.example)"),
    ],
)
def test_the_markers_of_a_text(whole: str, text: str) -> None:
    """A marker of a known page becomes a link to it; code, identifiers and definitions stay."""
    found = read(list(whole))
    assert found == read([whole])
    assert found[0] == text
    assert all(found[0][one.start : one.end].startswith("[[") for one in found[1])


def test_what_is_held_back_is_bounded() -> None:
    """A bracket that never becomes a marker holds back no more than a marker's length."""
    for start in ("【", "【7", "【7†"):
        finder, sent = LinkFinder(PAGES, NUMBERS), 0
        for count in range(100):
            events = finder.take(start if not count else "x")
            sent += sum(len(event.text) for event in events if isinstance(event, TextDelta))
            assert len(start) + count - sent <= LONGEST


def test_many_brackets_take_little_time() -> None:
    """The time grows with the length of the text alone."""
    began = time.process_time()
    for piece in ("【7", "[7]x", "`[7]", "【7†"):
        read([piece * 50_000])
    assert time.process_time() - began < 20


def test_without_numbers_the_text_stays() -> None:
    """A finder of links alone changes no text."""
    finder = LinkFinder(PAGES)
    events = [*finder.take("[8] 【8】 [a](https://b.example) ["), *finder.end()]
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert "".join(texts) == "[8] 【8】 [a](https://b.example) ["


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {"results": [{"url": "https://a.example", "title": "A"}, {"url": "https://x.example"}, 3]},
            {
                "results": [
                    {"url": "https://a.example", "title": "A", "cite_as": "【7】"},
                    {"url": "https://x.example"},
                    3,
                ]
            },
        ),
        ([{"link": "https://b.example"}], [{"link": "https://b.example", "cite_as": "【8】"}]),
        (
            {"url": "https://a.example", "text": "t"},
            {"url": "https://a.example", "text": "t", "cite_as": "【7】"},
        ),
    ],
)
def test_numbers_of_results(content: object, expected: object) -> None:
    """Each result with a number says how to cite it; the next search finds the highest number."""
    numbers = {"https://a.example": 7, "https://b.example": 8}
    result = numbered(ToolResult("c", True, json.dumps(content)), numbers)
    assert json.loads(result.content) == expected
    said = json.dumps({"input": [{"output": result.content}]}).encode()
    assert highest_number(said) == highest_number(
        json.dumps({"a": result.content}, ensure_ascii=False).encode()
    )
    assert highest_number(said) in (7, 8)


def test_numbers_of_a_text() -> None:
    """A result that is a text names the numbers below it; odd numbers in a conversation count as none."""
    result = numbered(ToolResult("c", True, "See https://a.example."), {"https://a.example": 7})
    assert result.content == "See https://a.example.\nCite these pages so:\n【7】 https://a.example"
    assert numbered(result, {}) is result
    assert highest_number(b"") == 0
    assert highest_number(b'{"cite_as":"\xe3\x80\x9099999\xe3\x80\x91"}') == 0
