"""Extracts the readable text of an HTML page, in a process of its own.

A page is untrusted, and a large parser in C reads it. So this file is run as a program: HTML on standard
input, ``{"title", "text"}`` as JSON on standard output. Its memory, its time and its files are limited, it
gets no environment, and its parent can kill it.
"""

import contextlib
import json
import resource
import sys

_MEMORY = 1 << 30
_SECONDS = 20


def extract(html: str) -> dict[str, str | None]:
    """Return ``{"title", "text"}`` of a page; ``text`` is Markdown, and empty for a page without text."""
    import trafilatura  # Here, because only the child process needs it in memory.

    tree = trafilatura.load_html(html)
    if tree is None:
        # The library does not take a fragment for HTML.
        html = f"<html><body>{html}</body></html>"
        tree = trafilatura.load_html(html)
    if tree is None:
        return {"title": None, "text": ""}
    title = " ".join((tree.findtext(".//title") or "").split())[:300]
    text = trafilatura.extract(tree, output_format="markdown", include_comments=False, include_tables=True)
    if not text:
        # Pages that are no article (a list, a form, one line) have text, too.
        text = trafilatura.html2txt(html)
    return {"title": title or None, "text": text.strip()}


def confine() -> None:
    """Limit this process's memory and time, and forbid it to write files."""
    for limit, most in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CPU, _SECONDS),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        # Not every system accepts every limit. A stricter limit stays.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (most, most))


def main() -> None:
    """Read, extract, write; each failure ends with an exit status other than 0."""
    confine()
    html = sys.stdin.buffer.read().decode("utf-8", "replace")
    sys.stdout.write(json.dumps(extract(html)))


if __name__ == "__main__":
    main()
