"""An index of tools for search by words (BM25) over their names, descriptions and argument names.

The words of a model are untrusted: the time of a search is bounded by the lengths below and grows linearly.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, Final, cast

import orjson

from proxy.base.events import ToolDefinition

MOST_QUERY: Final = 500
"""How many characters of a query are read."""
_MOST_WORDS: Final = 32
"""How many words of a query count."""
_MOST_BEGUN: Final = 20
"""How many indexed words may match one word of a query as their prefix."""
_MOST_TEXT: Final = 4000
"""How many characters of a description are indexed."""
_MOST_ARGUMENTS: Final = 100

_NAME_WEIGHT: Final = 3.0
_ARGUMENT_WEIGHT: Final = 0.7
_PREFIX_WEIGHT: Final = 0.5
"""What a word counts that is only the beginning of an indexed one, such as "repo" of "repository"."""
_K: Final = 1.2
_B: Final = 0.6
"""The usual parameters of BM25: how soon repetition stops counting, and how much the length counts."""

_WORDS: Final = re.compile(r"[^\W\d_]{1,40}|\d{1,40}")
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_COMMON_TEXT: Final = """
a all an and any are as at be by can do does for from has have how i if in into is it its me my no not of on
or our please should so some that the their them then there these they this to tool tools up use used using
was we what when where which who will with would you your
"""
_COMMON: Final = frozenset(_COMMON_TEXT.split())
"""Words that say nothing about a tool."""

_LIKE_WEIGHT: Final = 0.4
_ALIKE: Final = (
    "add create insert make new write",
    "delete erase forget remove",
    "fetch get load open read show view",
    "find look query search",
    "change edit modify replace update",
    "move rename",
    "directory folder",
    "image photo picture",
    "email mail message",
    "history log",
    "link page url website",
    "memory remember",
    "repo repository",
)
"""Words for the same thing: a model may search with one, and a tool's author may have written another."""


class ToolIndex:
    """Tools that can be searched. It never changes; building it takes some 100 µs for each tool,
    and a fifth of that for a tool that was indexed before."""

    def __init__(self, tools: Iterable[ToolDefinition]) -> None:
        weights = {tool.name: _kept_weights(tool) for tool in tools}
        self._names = tuple(weights)
        lengths = [sum(each.values()) for each in weights.values()]
        mean = sum(lengths) / len(lengths) if lengths else 1.0
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for place, (each, length) in enumerate(zip(weights.values(), lengths, strict=True)):
            norm = _K * (1 - _B + _B * length / mean)
            for word, weight in each.items():
                score = weight * (_K + 1) / (weight + norm)
                self._postings.setdefault(word, []).append((place, score))
        self._vocabulary = sorted(self._postings)

    def find(self, query: str, most: int) -> Sequence[str]:
        """Return the names of the tools that fit best, the best first; at most ``most``.

        A tool that the query names in full comes before all others.
        """
        query = query[:MOST_QUERY]
        scores: dict[int, float] = {}
        for word in list(dict.fromkeys(words_of(query)))[:_MOST_WORDS]:
            for postings, weight in self._postings_of(word):
                idf = weight * math.log(1 + (len(self._names) - len(postings) + 0.5) / (len(postings) + 0.5))
                for place, score in postings:
                    scores[place] = scores.get(place, 0.0) + idf * score
        asked = set(re.findall(r"[\w-]+", query))
        named = [place for place, name in enumerate(self._names) if name in asked]
        ranked = sorted(scores, key=lambda place: (-scores[place], place))
        return [self._names[place] for place in islice(dict.fromkeys([*named, *ranked]), most)]

    def _postings_of(self, word: str) -> Iterator[tuple[Sequence[tuple[int, float]], float]]:
        """Yield where a word and those like it occur, with the weight of each.

        A word that occurs nowhere may begin another one, or begin with it.
        """
        for like in _LIKE.get(word, ()):
            yield self._postings.get(like, ()), _LIKE_WEIGHT
        if (found := self._postings.get(word)) is not None:
            yield found, 1.0
            return
        start = bisect_left(self._vocabulary, word)
        longer = self._vocabulary[start : start + _MOST_BEGUN] if len(word) > 2 else ()
        shorter = (word[:length] for length in range(4, len(word)))
        for known in (*takewhile(lambda known: known.startswith(word), longer), *shorter):
            yield self._postings.get(known, ()), _PREFIX_WEIGHT


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text or a name, in lower case and without common endings."""
    for found in _WORDS.findall(_CAMEL.sub(" ", text)):
        word = found.lower()
        if word not in _COMMON:
            yield _stem(word)


def _stem(word: str) -> str:
    """Return a word without an ending of English, so that "issues" finds "issue"."""
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("s", ""), ("e", "")):
        if word.endswith(ending) and len(word) - len(ending) > 2 and not word.endswith("ss"):
            return _stem(word[: -len(ending)]) if ending == "s" else word[: -len(ending)] + instead
    return word


def _alike() -> Mapping[str, frozenset[str]]:
    groups = [frozenset(map(_stem, words.split())) for words in _ALIKE]
    return {word: group - {word} for group in groups for word in group}


_LIKE: Final = _alike()


def _kept_weights(tool: ToolDefinition) -> Mapping[str, float]:
    """Return how much each word says about a tool.

    It is written beside the tool, because requests that differ in the client's tools have an index each.
    """
    if (written := tool.written.get("weights")) is not None:
        return cast(Mapping[str, float], orjson.loads(written))
    weights = _weights(tool)
    tool.written["weights"] = orjson.dumps(weights)
    return weights


def _weights(tool: ToolDefinition) -> Mapping[str, float]:
    """Return how much each word says about a tool."""
    fields = (
        (tool.name, _NAME_WEIGHT),
        (tool.description[:_MOST_TEXT], 1.0),
        (" ".join(islice(_argument_names(tool.parameters), _MOST_ARGUMENTS)), _ARGUMENT_WEIGHT),
    )
    counts: dict[str, float] = {}
    for text, weight in fields:
        for word in words_of(text):
            counts[word] = counts.get(word, 0.0) + weight
    return counts


def _argument_names(schema: Mapping[str, Any]) -> Iterator[str]:
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        yield from map(str, properties)
