"""Shows people how a request differs from a recorded one: which message, and which words.

Texts in the output are untrusted. Who prints them on a terminal escapes control characters first.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Final

import orjson

from proxy.wires.registry.comparing import tool_name

_MOST_PLACES: Final = 8
"""At most so many messages, tools or other members are shown."""
_MOST_WORDS: Final = 1500
"""Words of one text that are compared with each other: the time grows with their square."""
_CONTEXT: Final = 14
"""Equal words, spaces and signs that are shown around a difference."""
_MOST_CHARS_ALONE: Final = 300
"""Characters that are shown of what only one of the requests has."""
_MOST_CHARS: Final = 2000
"""Characters that are shown of one place."""
_SHORTEST_DATA: Final = 64
_WORDS: Final = re.compile(r"\s+|\w+|[^\w\s]")
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.-]+)*;base64,")

Difference = tuple[str, Any, Any]
"""A place in a request, the recorded value there and the value that was asked; ``None`` for no value."""


def readable(differences: Sequence[Difference]) -> str:
    """Return lines that show each difference: ``[-recorded-]{+asked+}`` within the words around it."""
    places = [place for difference in differences for place in _places(*difference)]
    lines = ["- is recorded, + is asked; words that differ: [-recorded-]{+asked+}"]
    for place, recorded, given in places[:_MOST_PLACES]:
        lines += ["", place, *(f"  {line}" for line in _shown(recorded, given).split("\n"))]
    if len(places) > _MOST_PLACES:
        lines += ["", f"… and {len(places) - _MOST_PLACES} more"]
    return "\n".join(lines)


def _places(name: str, recorded: Any, given: Any) -> Iterator[Difference]:
    """Cut a difference into those of messages and tools."""
    if name == "tools":
        yield from _tools(recorded or [], given or [])
    elif isinstance(recorded, list) and isinstance(given, list):
        yield from _entries(name, recorded, given)
    else:
        yield name, recorded, given


def _tools(recorded: Sequence[Any], given: Sequence[Any]) -> Iterator[Difference]:
    theirs, ours = ({tool_name(tool): tool for tool in tools} for tools in (recorded, given))
    for name in dict.fromkeys([*theirs, *ours]):
        if theirs.get(name) != ours.get(name):
            yield f"tool {name}", theirs.get(name), ours.get(name)


def _entries(name: str, recorded: Sequence[Any], given: Sequence[Any]) -> Iterator[Difference]:
    """Align two lists, so that one message more does not make all later ones differ."""
    theirs, ours = ([orjson.dumps(one, option=orjson.OPT_SORT_KEYS) for one in x] for x in (recorded, given))
    for tag, a, b, c, d in SequenceMatcher(None, theirs, ours).get_opcodes():
        if tag == "equal":
            continue
        for at, (left, right) in enumerate(zip_longest(recorded[a:b], given[c:d])):
            holder = right if right is not None else left
            role = holder.get("role") or holder.get("type") if isinstance(holder, dict) else None
            number = c + at if right is not None else a + at
            yield f"{name}[{number}]" + (f" ({role})" if isinstance(role, str) else ""), left, right


def _shown(recorded: Any, given: Any) -> str:
    if recorded is None or given is None:
        sign, value = ("+", given) if recorded is None else ("-", recorded)
        shown = orjson.dumps(_digested(value), option=orjson.OPT_SORT_KEYS).decode()
        text = f"{sign} {shown}"[:_MOST_CHARS_ALONE]
    else:
        texts = [_text(recorded), _text(given)]
        if texts[0] == texts[1]:
            texts = [_as_json(recorded), _as_json(given)]
        text = _by_words(*texts)
    return text if len(text) <= _MOST_CHARS else text[:_MOST_CHARS] + "…"


def _by_words(recorded: str, given: str) -> str:
    theirs, ours = (_WORDS.findall(text) for text in (recorded, given))
    start = next(
        (at for at, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b),
        min(len(theirs), len(ours)),
    )
    begin = max(0, start - _CONTEXT)
    left, right = (words[begin : start + _MOST_WORDS] for words in (theirs, ours))
    shown = ["… "] if begin else []
    # It anchors long texts at rare words only. Without that, two texts of spaces alone take seconds.
    for tag, a, b, c, d in SequenceMatcher(None, left, right).get_opcodes():
        if tag == "equal":
            shown.append(_shortened(left[a:b]))
        else:
            shown += [f"[-{''.join(left[a:b])}-]"] if b > a else []
            shown += [f"{{+{''.join(right[c:d])}+}}"] if d > c else []
    return "".join(shown)


def _shortened(words: Sequence[str]) -> str:
    if len(words) <= 2 * _CONTEXT:
        return "".join(words)
    return f"{''.join(words[:_CONTEXT])} … {''.join(words[-_CONTEXT:])}"


def _text(value: Any) -> str:
    """Return a value as text: what a message says, else indented JSON with digests for its images."""
    if (
        isinstance(value, dict)
        and isinstance(value.get("content"), str)
        and value.keys() <= {"role", "content"}
    ):
        value = value["content"]
    if isinstance(value, str):
        return _without_data(value)
    return _as_json(value)


def _as_json(value: Any) -> str:
    return orjson.dumps(_digested(value), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()


def _digested(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _digested(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_digested(inner) for inner in value]
    return _without_data(value) if isinstance(value, str) else value


def _without_data(text: str) -> str:
    """Return a text, or what stands for it if it is the base64 of an image or another file."""
    if len(text) < _SHORTEST_DATA:
        return text
    found = _DATA_URL.match(text)
    try:
        data = base64.b64decode(text[found.end() if found else 0 :], validate=True)
    except (binascii.Error, ValueError):
        return text
    kind = (found[1] if found else None) or "data"
    return f"<{kind} of {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:12]}>"
