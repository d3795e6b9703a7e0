"""The readable text of an HTML page, in a process of its own.

A page is a stranger's, and what reads it is a large parser in C.  So this file is run as a program:
HTML on standard input, ``{"title", "text"}`` as JSON on standard output.  Its memory, its time and
its files are bounded, it gets no environment, and whoever started it can kill it.
"""

import contextlib
import json
import resource
import sys

__all__ = ["confine", "extract", "main"]

_MEMORY = 1 << 30
_SECONDS = 20


def extract(html: str) -> dict[str, str | None]:
    """``{"title", "text"}`` of a page; ``text`` is Markdown, and empty for a page without any."""
    import trafilatura  # Here, because only the child process has to have it in memory.

    tree = trafilatura.load_html(html)
    if tree is None:
        # A piece without a frame is not taken for HTML.
        html = f"<html><body>{html}</body></html>"
        tree = trafilatura.load_html(html)
    if tree is None:
        return {"title": None, "text": ""}
    title = " ".join((tree.findtext(".//title") or "").split())[:300]
    text = trafilatura.extract(tree, output_format="markdown", include_comments=False, include_tables=True)
    if not text:
        # What is no article (a list, a form, one line) has text all the same.
        text = trafilatura.html2txt(html)
    return {"title": title or None, "text": text.strip()}


def confine() -> None:
    """Bound this process's memory and time, and let it write no file."""
    for limit, most in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CPU, _SECONDS),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        # Not every system takes every limit, and one that is stricter already stays.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (most, most))


def main() -> None:
    """Read, extract, write; every failure is an exit status other than 0."""
    confine()
    html = sys.stdin.buffer.read().decode("utf-8", "replace")
    sys.stdout.write(json.dumps(extract(html)))


if __name__ == "__main__":
    main()
