"""The values of a JSON text are counted before it is parsed; whether they are within a limit is exact."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.json import size as json_size
from proxy.json.size import count_values

ODD = st.text(alphabet='a",[]{}\\:é\n\u2028')
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | ODD,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(ODD, inner, max_size=6),
    max_leaves=40,
)


def real_count(value: Any) -> int:
    """How many values a parsed text has, with itself; an empty container counts as two."""
    if not isinstance(value, dict | list):
        return 1
    inner = value.values() if isinstance(value, dict) else value
    return 1 + (sum(map(real_count, inner)) if value else 1)


@pytest.fixture(params=[2, 3, 7, 1 << 16])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Windows so small that each string, escape and bracket is split by one somewhere."""
    monkeypatch.setattr(json_size, "_WINDOW", request.param)
    return int(request.param)


@pytest.mark.usefixtures("window")
@given(value=JSON, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_the_answer_is_right_on_both_sides_of_the_limit(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    """A text counts as within a limit exactly if it has no more values than that, however it is written."""
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    real = real_count(value)
    for limit in {real, real + 1, real + 1000}:
        assert real <= count_values(data, limit) <= limit
    for limit in range(1, real):
        assert count_values(data, limit) > limit


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7", 1),
        ("[]", 2),
        ("{}", 2),
        ("[1,2,3]", 4),
        ('{"a":{"b":[1,{"c":2}]}}', 6),
        ('["' + ",[{" * 1000 + '"]', 2),
        (json.dumps([r"\"," * 500, "\\" * 3, '",[{"' * 500]), 4),
    ],
)
def test_values_of_known_texts(text: str, count: int) -> None:
    """Commas and brackets in strings are no values, even after escaped quotes."""
    data = text.encode()
    for limit in range(1, count + 3):
        assert (count_values(data, limit) <= limit) == (count <= limit), limit


def test_a_long_prompt_is_not_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary body is counted without a walk through its strings."""

    def walk(*_: object) -> int:
        raise AssertionError("walked through")

    monkeypatch.setattr(json_size, "_count_outside_strings", walk)
    body = json.dumps({"messages": [{"role": "user", "content": "one, two, three " * 1000}] * 50}).encode()
    assert count_values(body, 400_000) < 400_000


def test_a_text_of_nothing_but_quotes_is_left_early() -> None:
    """Counting stops early if a text cannot be within the limit, or is no JSON."""

    class Counting(bytes):
        """Bytes that count how many of them were read."""

        seen = 0

        def __getitem__(self, key: Any) -> Any:
            Counting.seen += key.stop - key.start
            return super().__getitem__(key)

    assert count_values(Counting(b"[" + b'"",' * 1_000_000), 1000) > 1000
    assert count_values(Counting(b'"' * 3_000_000 + b"," * 2000), 1000) > 1000
    assert Counting.seen < 500_000
