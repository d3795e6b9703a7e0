"""Align both sides of the proxy: find which bytes passed untouched, and what happened to the rest.

The module compares only the captured bytes, after the run, so the relay need not record anything for it.
"""

import base64
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from proxy.json.patterns import repeated

_MOST_COMPARED: Final = 48
"""The most pieces of a side that are compared fully between two pieces that both sides have once."""
_MOST_CELLS: Final = 400_000
"""The most pairs of pieces that are compared fully in all."""
_MOST_SPANS: Final = 5000
"""The most spans of a pair of legs; the last one stands for all that follow."""
_EVENT: Final = re.compile(rb".+?(?:\r\n\r\n|\n\n|\r\r|\Z)", re.DOTALL)
_LINE: Final = re.compile(rb"[^\n]*\n|[^\n]+\Z")
_TOKEN: Final = re.compile(rb'"[^"\\]*+%b"?|[^"]+' % repeated(rb'\\.[^"\\]*+'), re.DOTALL)


_Edit = tuple[str, int, int, int, int]
"""A kind of :mod:`difflib`, and the first and last piece of each list."""


class _Piece(NamedTuple):
    """A part of a leg, from ``start`` to ``end``, that is compared as a whole."""

    leg: str
    start: int
    end: int
    data: bytes


def aligned(legs: Sequence[Mapping[str, Any]], chunks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return pairs of legs with their spans, in order.

    A span is ``untouched``, ``rewritten``, ``withheld`` (only the first leg has it), or ``inserted`` or
    ``composed`` (only the second has it). ``a`` and ``b`` are its offsets in the two legs.
    """
    parts: dict[str, list[bytes]] = {}
    for chunk in chunks:
        parts.setdefault(str(chunk["leg"]), []).append(base64.b64decode(chunk["data"]))
    bodies = {name: b"".join(some) for name, some in parts.items()}
    kinds = {str(leg["id"]): str(leg["content_type"]) for leg in legs}
    pairs = []
    for name in kinds:
        if name.startswith("upstream.") and name.endswith(".request"):
            a = _pieces("client.request", bodies.get("client.request", b""), _TOKEN)
            b = _pieces(name, bodies.get(name, b""), _TOKEN)
            spans = [span for _, span in _spans(a, b, added="inserted")]
            pairs.append({"between": ["client.request", name], **_merged(spans)})
    answers = [name for name in kinds if name.startswith("upstream.") and name.endswith(".response")]
    came = [piece for name in answers for piece in _cut(name, bodies, kinds)]
    went = _cut("client.response", bodies, kinds)
    of_leg: dict[str, list[dict[str, Any]]] = {name: [] for name in answers}
    for leg, span in _spans(came, went, added="composed"):
        if leg in of_leg:
            of_leg[leg].append(span)
    pairs += [{"between": [name, "client.response"], **_merged(of_leg[name])} for name in answers]
    return pairs


def _cut(name: str, bodies: Mapping[str, bytes], kinds: Mapping[str, str]) -> list[_Piece]:
    """Split a body according to its type: into events, lines, or tokens of JSON."""
    kind = kinds.get(name, "")
    form = _EVENT if kind.endswith("event-stream") else _LINE if "ndjson" in kind else _TOKEN
    return _pieces(name, bodies.get(name, b""), form)


def _pieces(leg: str, body: bytes, form: re.Pattern[bytes]) -> list[_Piece]:
    return [_Piece(leg, match.start(), match.end(), match[0]) for match in form.finditer(body)]


def _spans(a: Sequence[_Piece], b: Sequence[_Piece], *, added: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the spans of two sides, each with the leg of the first side that it belongs to."""
    spans: list[tuple[str, dict[str, Any]]] = []
    for kind, a1, a2, b1, b2 in _opcodes([piece.data for piece in a], [piece.data for piece in b]):
        if kind == "equal":
            spans += [
                _span("untouched", a, i, b, j) for i, j in zip(range(a1, a2), range(b1, b2), strict=True)
            ]
            continue
        common = min(a2 - a1, b2 - b1)
        spans += [_span("rewritten", a, a1 + i, b, b1 + i) for i in range(common)]
        spans += [_one_sided("withheld", a, i, b, b1 + common, ours=True) for i in range(a1 + common, a2)]
        spans += [_one_sided(added, a, a1 + common, b, j, ours=False) for j in range(b1 + common, b2)]
    return spans


def _opcodes(a: Sequence[bytes], b: Sequence[bytes]) -> list[_Edit]:
    """Return the edits that turn one list into the other, in time near to linear in their lengths.

    Pieces that occur once on each side are the anchors, as in a patience diff. What is between two anchors
    is compared fully if it is short, since that takes cubic time; the rest counts as replaced.
    """
    edits: list[_Edit] = []
    cells, last_a, last_b = _MOST_CELLS, 0, 0
    for at_a, at_b in [*_anchors(a, b), (len(a), len(b))]:
        head, tail = _ends(a, b, (last_a, at_a), (last_b, at_b))
        a1, a2, b1, b2 = last_a + head, at_a - tail, last_b + head, at_b - tail
        edits.append(("equal", last_a, a1, last_b, b1))
        size = (a2 - a1) * (b2 - b1)
        if max(a2 - a1, b2 - b1) <= _MOST_COMPARED and size <= cells:
            cells -= size
            edits += [
                (kind, x1 + a1, x2 + a1, y1 + b1, y2 + b1)
                for kind, x1, x2, y1, y2 in SequenceMatcher(
                    None, a[a1:a2], b[b1:b2], autojunk=False
                ).get_opcodes()
            ]
        else:
            edits.append(("replace", a1, a2, b1, b2))
        edits.append(("equal", a2, at_a + 1, b2, at_b + 1))
        last_a, last_b = at_a + 1, at_b + 1
    # The end of both lists stands for an anchor, but is no piece.
    _, a1, _, b1, _ = edits.pop()
    edits.append(("equal", a1, len(a), b1, len(b)))
    return [edit for edit in edits if edit[2] > edit[1] or edit[4] > edit[3]]


def _ends(
    a: Sequence[bytes], b: Sequence[bytes], in_a: tuple[int, int], in_b: tuple[int, int]
) -> tuple[int, int]:
    """Return how many pieces are equal at the beginning and at the end of a part of each list."""
    (a1, a2), (b1, b2) = in_a, in_b
    head = 0
    while head < min(a2 - a1, b2 - b1) and a[a1 + head] == b[b1 + head]:
        head += 1
    tail = 0
    while tail < min(a2 - a1, b2 - b1) - head and a[a2 - 1 - tail] == b[b2 - 1 - tail]:
        tail += 1
    return head, tail


def _anchors(a: Sequence[bytes], b: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return the places of pieces that occur once in each list, as many as have the same order in both."""
    once_a, once_b = _once(a), _once(b)
    pairs = [(index_a, once_b[piece]) for piece, index_a in once_a.items() if piece in once_b]
    # The longest increasing subsequence: the smallest end of each length, and what stands before each pair.
    ends: list[int] = []
    at_end: list[int] = []
    before: list[int] = []
    for number, (_, at_b) in enumerate(pairs):
        length = bisect_left(ends, at_b)
        before.append(at_end[length - 1] if length else -1)
        ends[length : length + 1] = [at_b]
        at_end[length : length + 1] = [number]
    chain: list[tuple[int, int]] = []
    number = at_end[-1] if at_end else -1
    while number >= 0:
        chain.append(pairs[number])
        number = before[number]
    return chain[::-1]


def _once(pieces: Sequence[bytes]) -> dict[bytes, int]:
    """Return the places of the pieces that occur once, in order."""
    count = Counter(pieces)
    return {piece: index for index, piece in enumerate(pieces) if count[piece] == 1}


def _span(kind: str, a: Sequence[_Piece], i: int, b: Sequence[_Piece], j: int) -> tuple[str, dict[str, Any]]:
    return a[i].leg, {"kind": kind, "a": [a[i].start, a[i].end], "b": [b[j].start, b[j].end]}


def _one_sided(
    kind: str, a: Sequence[_Piece], i: int, b: Sequence[_Piece], j: int, *, ours: bool
) -> tuple[str, dict[str, Any]]:
    """Return a span that only one side has; it is empty on the other side, at the place where it would be."""
    if ours:
        offset = b[j].start if j < len(b) else b[-1].end if b else 0
        return a[i].leg, {"kind": kind, "a": [a[i].start, a[i].end], "b": [offset, offset]}
    before = a[min(i, len(a)) - 1] if a and i else None
    leg = before.leg if before is not None else a[0].leg if a else ""
    offset = before.end if before is not None else 0
    return leg, {"kind": kind, "a": [offset, offset], "b": [b[j].start, b[j].end]}


def _merged(spans: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join neighbouring spans of the same kind; rewritten spans stay in pairs.

    Return the ``spans``, and in ``joined`` how many are in the last one because there are too many.
    """
    merged: list[dict[str, Any]] = []
    for span in spans:
        last = merged[-1] if merged else None
        follows = (
            last is not None
            and last["kind"] == span["kind"] != "rewritten"
            and last["a"][1] == span["a"][0]
            and last["b"][1] == span["b"][0]
        )
        if follows and last is not None:
            last["a"][1], last["b"][1] = span["a"][1], span["b"][1]
        else:
            merged.append({"kind": span["kind"], "a": list(span["a"]), "b": list(span["b"])})
    rest = merged[_MOST_SPANS - 1 :]
    if len(rest) < 2:
        return {"spans": merged, "joined": 0}
    whole = {side: [min(row[side][0] for row in rest), max(row[side][1] for row in rest)] for side in "ab"}
    return {"spans": [*merged[: _MOST_SPANS - 1], {"kind": "rewritten", **whole}], "joined": len(rest)}
