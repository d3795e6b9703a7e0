"""Parsing of ``WWW-Authenticate`` challenges and of scopes, valid and invalid ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tools.oauth.challenges import Challenge, read_challenge
from proxy.tools.oauth.parameters import join_scopes, read_scopes


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("", Challenge()),
        ("Bearer", Challenge()),
        ('Bearer realm="x", scope="a b"', Challenge(scopes=("a", "b"))),
        ("bearer SCOPE=a,error=insufficient_scope", Challenge(scopes=("a",), error="insufficient_scope")),
        ('Basic realm="scope=\\"no\\"", Bearer scope="yes"', Challenge(scopes=("yes",))),
        ('Bearer scope="yes", Basic scope="no"', Challenge(scopes=("yes",))),
        ('Bearer scope="first", scope="second"', Challenge(scopes=("first",))),
        (
            'Bearer resource_metadata="https://a.example/x?y=1,2", error="invalid_token"',
            Challenge("https://a.example/x?y=1,2", (), "invalid_token"),
        ),
        ('Bearer scope="a\\"b c"', Challenge(scopes=("c",))),
        ('Negotiate abc==, Bearer scope="a"', Challenge(scopes=("a",))),
    ],
)
def test_a_challenge_is_read(header: str, found: Challenge) -> None:
    """The parser reads the parameters of the Bearer scheme; of a repeated parameter the first counts."""
    assert read_challenge(header) == found


@given(st.text(max_size=300))
def test_no_header_breaks_the_reader(header: str) -> None:
    """Any text gives a challenge whose scopes are valid."""
    for text in (header, f"Bearer {header}", f'Bearer scope="{header}"'):
        scopes = read_challenge(text).scopes
        assert read_scopes(list(scopes)) == scopes


def test_scopes_are_bounded() -> None:
    """Invalid scopes, overlong ones and those beyond the hundredth are dropped."""
    assert read_scopes("a  b a\tb c\\d é f") == ("a", "b", "f")
    assert read_scopes(["a b", 3, "c"]) == ("c",)
    assert read_scopes({"a": 1}) == ()
    assert len(read_scopes([str(number) for number in range(1000)])) == 100
    assert read_scopes("x" * 300) == ()
    assert join_scopes(("a", "b"), ("b", "c")) == ("a", "b", "c")
