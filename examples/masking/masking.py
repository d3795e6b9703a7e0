"""Mask personal data before a model sees it, and put it back into the answer.

Placeholders are made of the text itself with a secret key, so one text has the same placeholder in every
request: conversations stay consistent, and prompt caches work. Without the key nobody can try out which text
a placeholder stands for. If ``presidio-analyzer`` is installed, it finds names and places, too.
"""

import asyncio
import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Iterator

from proxy.hooks import OutcomeChange, Request, RequestChange, ToolOutcome

try:
    from presidio_analyzer import AnalyzerEngine
except ImportError:
    ANALYZER = None
else:
    ANALYZER = AnalyzerEngine()

KEY = os.environ["MASKING_KEY"].encode()

PATTERNS = [
    ("EMAIL", re.compile(r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}")),
    ("IBAN", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b")),
    ("CARD", re.compile(r"\b\d{4}(?:[ -]?\d{4}){3}\b")),
    ("PHONE", re.compile(r"(?<![\w+])\+?\d(?:[ /()-]{0,2}\d){6,14}(?!\w)")),
]

_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")


def placeholder(kind: str, text: str) -> str:
    """Return the placeholder of a text: letters only, so that no pattern finds anything in it."""
    digest = hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest()[:16]
    return f"[{kind}_{digest.translate(_LETTERS)}]"


def found(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield where private texts begin and end, and their kinds; an earlier pattern wins."""
    taken = bytearray(len(text))
    spans = [(*match.span(), kind) for kind, pattern in PATTERNS for match in pattern.finditer(text)]
    if ANALYZER is not None:
        spans += [(one.start, one.end, one.entity_type) for one in ANALYZER.analyze(text, language="en")]
    for begin, end, kind in spans:
        if not any(taken[begin:end]):
            taken[begin:end] = b"\1" * (end - begin)
            yield begin, end, kind


def masked(texts: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return the texts with placeholders, and what each placeholder stands for."""
    left, originals = [], {}
    for text in texts:
        parts, at = [], 0
        for begin, end, kind in sorted(found(text)):
            mark = placeholder(kind, text[begin:end])
            originals[mark] = text[begin:end]
            parts += (text[at:begin], mark)
            at = end
        left.append("".join((*parts, text[at:])))
    return left, originals


class Masking:
    """The hook. Searching may take long, so it runs in a thread."""

    async def before_request(self, request: Request) -> RequestChange:
        texts, originals = await asyncio.to_thread(masked, [one.text for one in request.texts])
        return RequestChange(texts=texts, originals=originals)

    async def after_tool(self, outcome: ToolOutcome) -> OutcomeChange:
        (text,), originals = await asyncio.to_thread(masked, [outcome.text])
        return OutcomeChange(text=text, originals=originals)


hooks = Masking()
