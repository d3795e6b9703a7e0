"""Align both sides of the proxy: find which bytes passed untouched, and what happened to the rest.

The module compares only the captured bytes, after the run, so the relay need not record anything for it.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

__all__ = ["aligned"]

_MOST_COMPARED: Final = 3000
"""The most pieces of a side that are compared fully; for longer sides only both ends are compared."""
_EVENT: Final = re.compile(rb".+?(?:\r\n\r\n|\n\n|\r\r|\Z)", re.DOTALL)
_LINE: Final = re.compile(rb"[^\n]*\n|[^\n]+\Z")
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|[^"]+', re.DOTALL)


class _Piece(NamedTuple):
    """A part of a leg, from ``start`` to ``end``, that is compared as a whole."""

    leg: str
    start: int
    end: int
    data: bytes


def aligned(legs: Sequence[Mapping[str, Any]], chunks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return pairs of legs with their spans, in order.

    A span is ``untouched``, ``rewritten``, ``withheld`` (only the first leg has it), or ``inserted`` or
    ``composed`` (only the second has it).  ``a`` and ``b`` are its offsets in the two legs.
    """
    bodies: dict[str, bytes] = {}
    for chunk in chunks:
        name = str(chunk["leg"])
        bodies[name] = bodies.get(name, b"") + base64.b64decode(chunk["data"])
    kinds = {str(leg["id"]): str(leg["content_type"]) for leg in legs}
    pairs = []
    for name in kinds:
        if name.startswith("upstream.") and name.endswith(".request"):
            a = _pieces("client.request", bodies.get("client.request", b""), _TOKEN)
            b = _pieces(name, bodies.get(name, b""), _TOKEN)
            spans = _merged([span for _, span in _spans(a, b, added="inserted")])
            pairs.append({"between": ["client.request", name], "spans": spans})
    answers = [name for name in kinds if name.startswith("upstream.") and name.endswith(".response")]
    came = [piece for name in answers for piece in _cut(name, bodies, kinds)]
    went = _cut("client.response", bodies, kinds)
    of_leg: dict[str, list[dict[str, Any]]] = {name: [] for name in answers}
    for leg, span in _spans(came, went, added="composed"):
        if leg in of_leg:
            of_leg[leg].append(span)
    pairs += [{"between": [name, "client.response"], "spans": _merged(of_leg[name])} for name in answers]
    return pairs


def _cut(name: str, bodies: Mapping[str, bytes], kinds: Mapping[str, str]) -> list[_Piece]:
    """Split a body according to its type: into events, lines, or tokens of JSON."""
    kind = kinds.get(name, "")
    form = _EVENT if kind.endswith("event-stream") else _LINE if "ndjson" in kind else _TOKEN
    return _pieces(name, bodies.get(name, b""), form)


def _pieces(leg: str, body: bytes, form: re.Pattern[bytes]) -> list[_Piece]:
    return [_Piece(leg, found.start(), found.end(), found[0]) for found in form.finditer(body)]


def _spans(a: Sequence[_Piece], b: Sequence[_Piece], *, added: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the spans of two sides, each with the leg of the first side that it belongs to."""
    found: list[tuple[str, dict[str, Any]]] = []
    for kind, a1, a2, b1, b2 in _opcodes([piece.data for piece in a], [piece.data for piece in b]):
        if kind == "equal":
            found += [
                _span("untouched", a, i, b, j) for i, j in zip(range(a1, a2), range(b1, b2), strict=True)
            ]
            continue
        common = min(a2 - a1, b2 - b1)
        found += [_span("rewritten", a, a1 + i, b, b1 + i) for i in range(common)]
        found += [_one_sided("withheld", a, i, b, b1 + common, ours=True) for i in range(a1 + common, a2)]
        found += [_one_sided(added, a, a1 + common, b, j, ours=False) for j in range(b1 + common, b2)]
    return found


def _opcodes(a: Sequence[bytes], b: Sequence[bytes]) -> list[tuple[str, int, int, int, int]]:
    """Return the edits that turn one list into the other; in long lists, find only equal ends."""
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    inner_a, inner_b = a[head : len(a) - tail], b[head : len(b) - tail]
    codes: list[tuple[str, int, int, int, int]] = []
    if head:
        codes.append(("equal", 0, head, 0, head))
    if len(inner_a) > _MOST_COMPARED or len(inner_b) > _MOST_COMPARED:
        codes.append(("replace", head, len(a) - tail, head, len(b) - tail))
    elif inner_a or inner_b:
        matcher = SequenceMatcher(None, inner_a, inner_b, autojunk=False)
        codes += [
            (kind, a1 + head, a2 + head, b1 + head, b2 + head)
            for kind, a1, a2, b1, b2 in matcher.get_opcodes()
        ]
    if tail:
        codes.append(("equal", len(a) - tail, len(a), len(b) - tail, len(b)))
    return codes


def _span(kind: str, a: Sequence[_Piece], i: int, b: Sequence[_Piece], j: int) -> tuple[str, dict[str, Any]]:
    return a[i].leg, {"kind": kind, "a": [a[i].start, a[i].end], "b": [b[j].start, b[j].end]}


def _one_sided(
    kind: str, a: Sequence[_Piece], i: int, b: Sequence[_Piece], j: int, *, ours: bool
) -> tuple[str, dict[str, Any]]:
    """Return a span that only one side has; it is empty on the other side, at the place where it would be."""
    if ours:
        at = b[j].start if j < len(b) else b[-1].end if b else 0
        return a[i].leg, {"kind": kind, "a": [a[i].start, a[i].end], "b": [at, at]}
    before = a[min(i, len(a)) - 1] if a and i else None
    leg = before.leg if before is not None else a[0].leg if a else ""
    at = before.end if before is not None else 0
    return leg, {"kind": kind, "a": [at, at], "b": [b[j].start, b[j].end]}


def _merged(spans: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join neighbouring spans of the same kind; rewritten spans stay in pairs."""
    found: list[dict[str, Any]] = []
    for span in spans:
        last = found[-1] if found else None
        follows = (
            last is not None
            and last["kind"] == span["kind"] != "rewritten"
            and last["a"][1] == span["a"][0]
            and last["b"][1] == span["b"][0]
        )
        if follows and last is not None:
            last["a"][1], last["b"][1] = span["a"][1], span["b"][1]
        else:
            found.append({"kind": span["kind"], "a": list(span["a"]), "b": list(span["b"])})
    return found
