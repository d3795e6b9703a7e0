"""Texts that clients carry: only a process with the key can read or write them."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.sealed_text import TextSeal

KEY, OLD, OTHER = (bytes([number]) * 32 for number in range(3))
SEAL = TextSeal([KEY, OLD], b"turns")
texts = st.binary(max_size=200)


@given(text=texts, place=texts)
def test_a_text_comes_back_to_its_place(text: bytes, place: bytes) -> None:
    """Any text opens at its own place, and sealing it again gives another result."""
    sealed = SEAL.close(text, place)
    assert SEAL.open(sealed, place) == text
    assert SEAL.close(text, place) != sealed


@given(text=texts, place=texts, at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_one_changed_bit_is_enough(text: bytes, place: bytes, at: int, bit: int) -> None:
    """A text with one changed bit does not open, wherever the bit is."""
    sealed = bytearray(base64.b64decode(SEAL.close(text, place)))
    sealed[at % len(sealed)] ^= 1 << bit
    assert SEAL.open(base64.b64encode(sealed).decode(), place) is None


@given(text=texts, place=texts, end=st.integers(0, 300))
def test_a_part_of_a_text_does_not_open(text: bytes, place: bytes, end: int) -> None:
    """A text does not open if its end is cut off, wherever it is cut."""
    sealed = SEAL.close(text, place)
    if end < len(sealed):
        assert SEAL.open(sealed[:end], place) is None


@given(text=texts, place=texts, other=texts)
def test_another_place_does_not_open_it(text: bytes, place: bytes, other: bytes) -> None:
    """A text does not open at another place, with another key, or for another purpose."""
    sealed = SEAL.close(text, place)
    if other != place:
        assert SEAL.open(sealed, other) is None
    assert TextSeal([OTHER], b"turns").open(sealed, place) is None
    assert TextSeal([KEY], b"summaries").open(sealed, place) is None


@given(sealed=st.text(max_size=100))
def test_any_other_text_is_none_of_ours(sealed: str) -> None:
    """A text that the proxy did not seal does not open, whatever its characters are."""
    assert SEAL.open(sealed, b"") is None


@pytest.mark.parametrize("keys", [[OTHER, KEY], [KEY], [OTHER, OLD, KEY]])
def test_old_keys_open(keys: list[bytes]) -> None:
    """A text opens if the key that sealed it is any of the known keys."""
    assert TextSeal(keys, b"turns").open(SEAL.close(b"x", b""), b"") == b"x"
    assert SEAL.open(TextSeal([OLD], b"turns").close(b"y", b""), b"") == b"y"
