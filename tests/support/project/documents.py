"""The documents of the project and the snippets in them."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
"""The pages for users: the README and all of ``docs/``."""

_FENCE = re.compile(
    r"^(?:[ ]*<!-- snippet: (?P<mark>[^\n]*) -->\n\n?)?"
    r"(?P<indent>[ ]*)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Snippet:
    """A fenced block: its place, its language, and the mark in the comment above it.

    The comment is ``<!-- snippet: MARK -->``. ``goes on`` appends this snippet to the one before;
    ``only parsed: REASON`` says why no test runs it.
    """

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def _of_page(page: Path) -> Iterator[Snippet]:
    text = page.read_text("utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        code = textwrap.dedent(found["text"])
        yield Snippet(page, line, found["language"], code, found["mark"] or "")


def snippets(language: str, pages: tuple[Path, ...] = PAGES) -> list[Snippet]:
    """Return every fenced block of one language, in order; one that goes on includes the one before."""
    found: list[Snippet] = []
    for page in pages:
        before = ""
        for snippet in _of_page(page):
            if snippet.language == language:
                text = snippet.text
                if snippet.mark == "goes on":
                    assert before, f"{snippet} goes on from nothing"
                    text = f"{before}\n{text}"
                before = text
                found.append(Snippet(page, snippet.line, language, text, snippet.mark))
    return found
