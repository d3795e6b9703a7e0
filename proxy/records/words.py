"""The words that a search finds: which texts of a run count, how they become words, and queries for them.

Words are folded (NFKC, case folding) and cut where letters and digits end. Scripts without spaces between
words, such as Chinese, Japanese, Korean and Thai, become pairs of neighbouring characters, and the last
character alone, so that every part of a text is the beginning of one of its words. A database only compares
such words, so it needs no tokenizer or dictionary of its own, and nothing in a query has a meaning in the
syntax of SQLite's FTS5 (https://www.sqlite.org/fts5.html#full_text_query_syntax) or of PostgreSQL's
``tsquery`` (https://www.postgresql.org/docs/current/datatype-textsearch.html).
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import orjson

from proxy.records.rows import MessageRecord

ROLES: Final = ("request", "assistant", "tool", "function", "program", "output", "error")
"""The roles of the messages that are searched."""
MOST_BYTES: Final = 256 * 1024
"""Longer messages are not searched, nor read for a list."""

MOST_WORDS_BYTES: Final = 400_000
"""A run with more than that is not indexed; PostgreSQL takes a little more than twice as much."""

Words = Sequence[Sequence[str]]
"""What is searched: of each member, one of its alternatives must occur."""

_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3041-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_PIECE: Final = re.compile(f"([{_UNSPACED}]+)|(?:(?![{_UNSPACED}])[^\\W_])+")
_LONGEST: Final = 64
_LONGEST_SOLID: Final = 1000
_MOST_IN_QUERY: Final = 32
_SAME_IN_ALL: Final = frozenset({"role", "type"})
"""Members of messages and parts whose values nobody wrote."""
_DECLARED: Final = _SAME_IN_ALL | {"tools", "functions"}
"""The same for whole requests; the tools that a client only declares are no part of what was said."""


def folded(text: str) -> str:
    """Return a text as searches compare it."""
    return unicodedata.normalize("NFKC", text).casefold()


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a folded text; long ones are cut."""
    for match in _PIECE.finditer(text):
        piece = match[0]
        if match[1] is None:
            yield piece[:_LONGEST]
            continue
        for one, next_one in pairwise(piece):
            yield one + next_one
        yield piece[-1]


def run_words(texts: Iterable[str]) -> str | None:
    """Return the words of a run's texts, each once, as they are indexed; ``None`` if they are too many."""
    found: set[str] = set()
    for text in texts:
        found.update(words_of(folded(text)))
    words = " ".join(sorted(found))
    return words if len(words.encode()) <= MOST_WORDS_BYTES else None


def fts5_query(wanted: Words) -> str:
    """Return the expression for FTS5; empty if nothing that is wanted has a word."""
    return _query(wanted, lambda word, *, begins: f'"{word}"' + " *" * begins, " AND ", " OR ")


def ts_query(wanted: Words) -> str:
    """Return the text of a ``tsquery``; empty if nothing that is wanted has a word."""
    return _query(wanted, lambda word, *, begins: f"'{word}'" + ":*" * begins, " & ", " | ")


def _query(wanted: Words, term: Callable[..., str], both: str, either: str) -> str:
    every = []
    for alternatives in wanted:
        made = [_terms(text, term, both) for text in alternatives]
        if made and all(made):  # Without words of its own, it may stand in any run.
            every.append(f"({either.join(made)})")
    return both.join(every)


def _terms(text: str, term: Callable[..., str], both: str) -> str:
    """Return the terms for one wanted text; its last word may be the beginning of a longer one."""
    words = list(words_of(folded(text)))
    # The end of a text without spaces is in the pair before it, and is no last character in every text.
    pairs = len(words) > 1 and re.match(f"[{_UNSPACED}]", words[-1]) and words[-2].endswith(words[-1])
    if pairs:
        del words[-1]
    kept = words[:_MOST_IN_QUERY]
    terms = [term(word, begins=place == len(words) - 1) for place, word in enumerate(kept)]
    return f"({both.join(terms)})" if terms else ""


def texts_of(row: MessageRecord) -> Iterator[str]:
    """Yield the texts of a message, as people read them."""
    if row.content:
        yield row.content
    yield from _texts(row.content_json)
    yield from _texts(row.tool_calls)


def _texts(text: str | None) -> list[str]:
    """Return the texts in JSON, as people read them: without escapes, names of members, what every request of
    a dialect has, and encoded files; the text itself if it is not JSON."""
    try:
        left: list[Any] = [orjson.loads(text)] if text else []
    except orjson.JSONDecodeError:
        return [text or ""]
    if left and isinstance(left[0], dict):
        left = [value for name, value in left[0].items() if name not in _DECLARED]
    texts: list[str] = []
    while left:
        value = left.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list):
            left += reversed(value)
        elif isinstance(value, dict):
            left += (part for name, part in value.items() if name not in _SAME_IN_ALL)
    return [one for one in texts if not _is_encoded(one)]


def _is_encoded(text: str) -> bool:
    """Return whether a text is an encoded file: long, and without a space."""
    return len(text) > _LONGEST_SOLID and text.isascii() and len(text.split(None, 1)) == 1
