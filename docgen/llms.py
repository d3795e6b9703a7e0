"""Writes ``docs/llms.txt``: the pages with one sentence each, for programs that read documentation."""

import re
from pathlib import Path
from typing import Final

_PARTS: Final = (
    ("Tutorials", "tutorials/*.md"),
    ("How-to", "how-to/*.md"),
    ("Topics", "*.md"),
    ("Concepts", "concepts/*.md"),
    ("Reference", "reference/*.md"),
)
_MOST: Final = 200
"""The most characters of a sentence."""


def llms_text(root: Path) -> str:
    """Build the list of pages in the form of llmstxt.org: a title, a summary, sections of links."""
    docs = root / "docs"
    about = (root / "README.md").read_text("utf-8").split("\n\n")[1]
    lines = ["# toolrelay", "", f"> {about}", ""]
    for title, pattern in _PARTS:
        lines += [f"## {title}", ""]
        for path in sorted(docs.glob(pattern)):
            head, sentence = _about(path.read_text("utf-8"))
            lines.append(f"- [{head}]({path.relative_to(docs).as_posix()}){sentence}")
        lines.append("")
    return "\n".join(lines)


def _about(text: str) -> tuple[str, str]:
    """Return a page's title, and the first sentence after it if it begins with prose."""
    head, _, rest = text.partition("\n\n")
    first = rest.split("\n\n", 1)[0]
    if not re.match(r"[A-Z]|`(?!``)|\*\*", first):
        return head.removeprefix("# "), ""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    sentence = re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0].rstrip(":")
    return head.removeprefix("# "), f": {sentence}" if len(sentence) <= _MOST else ""
