"""The alignment of both sides of the wire: right for any bytes, and near to linear in their length."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.ui.runs import aligning
from proxy.ui.runs.aligning import aligned


def pairs_of(came: bytes, went: bytes, kind: str = "text/event-stream") -> list[dict[str, Any]]:
    """Align the answer of an upstream with what the client got."""
    names = {"upstream.1.response": came, "client.response": went}
    legs = [{"id": name, "content_type": kind} for name in names]
    chunks = [{"leg": name, "data": base64.b64encode(data).decode()} for name, data in names.items()]
    return aligned(legs, chunks)


def check(pair: dict[str, Any], came: bytes, went: bytes) -> None:
    """The spans cover both sides in order, and what is untouched is equal."""
    at = {"a": 0, "b": 0}
    for span in pair["spans"]:
        for side in "ab":
            first, last = span[side]
            assert first <= last
            if first != last:
                assert first == at[side]
                at[side] = last
        if span["kind"] == "untouched":
            assert came[slice(*span["a"])] == went[slice(*span["b"])]
    assert at == {"a": len(came), "b": len(went)}


EVENTS = st.lists(st.sampled_from([b"data: %d\n\n" % number for number in range(9)]), min_size=1, max_size=40)


@given(EVENTS, EVENTS)
def test_every_byte_is_in_one_span(came: list[bytes], went: list[bytes]) -> None:
    """Whatever came and went, each byte of both sides is in one span, in order."""
    (pair,) = pairs_of(b"".join(came), b"".join(went))
    check(pair, b"".join(came), b"".join(went))


def test_what_is_equal_is_found_between_changes() -> None:
    """A rewritten event, one that was left out and one that was added, among many that are alike."""
    same = [b"data: %d\n\n" % number for number in range(6000)]
    came, went = (
        [b"data: a\n\n", *same, b"data: b\n\n"],
        [b"data: A\n\n", *same[:3000], b": hi\n\n", *same[3001:]],
    )
    (pair,) = pairs_of(b"".join(came), b"".join(went))
    kinds = [span["kind"] for span in pair["spans"]]
    assert kinds == ["rewritten", "untouched", "rewritten", "untouched", "withheld"]
    assert pair["joined"] == 0


class Counted:
    """Counts the pairs of pieces that are compared fully."""

    cells = 0

    def __init__(self, junk: Any, a: Any, b: Any, **options: Any) -> None:
        Counted.cells += len(a) * len(b)
        self._size = (len(a), len(b))

    def get_opcodes(self) -> list[tuple[str, int, int, int, int]]:
        return [("replace", 0, self._size[0], 0, self._size[1])] if any(self._size) else []


@pytest.mark.parametrize("size", [2000, 20_000])
@pytest.mark.parametrize("shape", ["alike", "cycles", "reversed"])
def test_the_work_is_bounded(shape: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long and alike the sides are, few pairs of pieces are compared, and few spans made."""
    Counted.cells = 0
    monkeypatch.setattr(aligning, "SequenceMatcher", Counted)
    pieces: dict[str, Callable[[int], bytes]] = {
        "alike": lambda at: b"data: x\n\n" if at % 2 else b"data: y\n\n",
        "cycles": lambda at: b"data: %d\n\n" % (at % 7),
        "reversed": lambda at: b"data: %d\n\n" % at,
    }
    made = pieces[shape]
    came = b"".join(made(at) for at in range(size))
    went = b"".join(made(size - at) if at % 41 else b"data: new %d\n\n" % at for at in range(size))
    (pair,) = pairs_of(came, went)
    check(pair, came, went)
    assert Counted.cells <= 400_000
    assert len(pair["spans"]) <= 5000
    assert pair["joined"] == 0 or size == 20_000
