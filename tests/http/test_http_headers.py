"""Headers as columns of names and values: the results are those of pairs, and the cache is bounded."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.headers import Columns, Headers, HeaderSection, by_names, media_type_and_coding
from proxy.http.rules import HeaderRules
from proxy.relay.headers import forwardable as goes_up
from proxy.relay.headers import returned

NAMES = (
    "Accept", "accept-encoding", "Authorization", "Connection", "CONTENT-TYPE", "content-length", "Cookie",
    "Content-Encoding", "Keep-Alive", "Close", "proxy-x", "Set-Cookie", "Transfer-Encoding", "X-A", "x-a",
    "X-50%d", "x-ratelimit-limit-tokens", "x-request-id", "x-toolrelay-tools", "b d", "é",
)  # fmt: skip
VALUES = ("", "1", "a, X-A", "keep-alive", "Keep-Alive, close", "gzip", "text/html; x=1", "%s", "sk-secret-1",
          "say sk-secret-1", "ä", "\t", "a\x01b", "\x7f", "\udcff")  # fmt: skip
SECRET = b"sk-secret-1"
HEADERS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=8)


def one_by_one(headers: Headers, listed: tuple[str, ...]) -> list[tuple[str, str]]:
    """The headers that are forwarded, if each header is checked by itself."""
    named = {
        token.strip()
        for name, value in headers
        if name.lower() == "connection"
        for token in value.lower().split(",")
    }
    return [
        (name, value)
        for name, value in headers
        if name.lower().startswith(listed)
        and name.lower() != "accept-encoding"
        and (name.lower() not in named or named <= {"", "keep-alive", "close"})
        and " " not in name
        and name.isascii()
        and not any((c < " " and c != "\t") or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in value)
    ]


RULES = HeaderRules("main", ["X-A"], ["x-a"])
BODY = ("content-encoding", "content-type")


@given(HEADERS)
def test_the_client_s_headers_are_chosen_as_one_by_one(sent: list[tuple[str, str]]) -> None:
    """A decision about all names of a request at once gives each header what it gets by itself."""
    assert RULES.request_headers(sent) == one_by_one(sent, ("accept", *BODY, "x-a"))
    assert goes_up(sent, identity=True) == [
        pair for pair in sent if pair[0].lower() not in ("accept-encoding", "content-length")
    ]


@given(HEADERS)
def test_the_upstream_s_headers_are_chosen_as_one_by_one(sent: list[tuple[str, str]]) -> None:
    """The same holds for a response, in which secrets and bytes that are not text are replaced."""
    raw = [(name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in sent]
    clean = RULES.response_headers([name for name, _ in raw], [value for _, value in raw], (SECRET,))
    shown = [
        (name, value.replace("\udcff", "�").replace(SECRET.decode(), "[redacted]")) for name, value in sent
    ]
    assert clean == one_by_one(shown, (*BODY, "content-length", "x-ratelimit-", "x-request-id", "x-a"))
    whole = [("x-upstream-request-id" if n.lower() == "x-request-id" else n, v) for n, v in clean]
    assert returned(clean, keep_length=True) == whole
    assert returned(clean) == [pair for pair in whole if pair[0].lower() != "content-length"]
    kinds = [value for name, value in clean if name.lower() == "content-type"]
    assert media_type_and_coding(clean)[0] == (kinds[0].split(";")[0].strip().lower() if kinds else "")


@given(
    st.lists(st.booleans(), min_size=len(SECRET), max_size=len(SECRET)),
    st.sampled_from(("", "\\n", "ä", "\xff")),
)
def test_no_header_has_a_secret_in_escapes(escaped: list[bool], beside: str) -> None:
    """A secret in a header with JSON is redacted even if any of its characters are escaped."""
    spelled = "".join(
        f"\\u{ord(one):04x}" if is_escaped else one
        for one, is_escaped in zip(SECRET.decode(), escaped, strict=True)
    )
    value = f'{{"a":"{beside}{spelled}"}}'.encode()
    clean = RULES.response_headers([b"x-a"], [value], (SECRET,))
    assert clean == [("x-a", f'{{"a":"{beside}[redacted]"}}')]


@given(HEADERS)
def test_a_section_is_its_pairs(pairs: list[tuple[str, str]]) -> None:
    """A header section equals the pairs that it was made of, and writes a line for each."""
    section = HeaderSection.of(pairs)
    assert section == pairs
    assert ([*section], len(section)) == (pairs, len(pairs))
    assert section[1:] == pairs[1:]
    assert section.lines() == "".join(f"{name}: {value}\r\n" for name, value in pairs)
    columns = Columns.where(section.names, lambda name: name != "X-A")
    assert section.only(columns) == [pair for pair in pairs if pair[0] != "X-A"]


def test_columns_take_what_their_mask_says() -> None:
    """``take`` returns the values of no, one or several columns, from a list or a tuple."""
    names = ("A", "B", "C")
    for wanted in ((), ("B",), ("A", "C"), names):
        columns = Columns.where(names, wanted.__contains__)
        for values in (["1", "2", "3"], ("1", "2", "3")):
            assert columns.names == wanted
            assert columns.take(values) == tuple(
                value for value, mine in zip(values, columns.mask, strict=True) if mine
            )


def test_a_value_without_a_name_is_not_written() -> None:
    """More or fewer values than names raise ValueError, so that no value is sent with a wrong name."""
    for values in (["1"], ["1", "2", "3"]):
        with pytest.raises(ValueError, match="not as many"):
            HeaderSection(("A", "B"), values)


def test_what_is_kept_for_names_is_bounded() -> None:
    """The cache by names holds few entries and no long names, so that it cannot fill the memory."""

    class Found:
        pass

    @by_names
    def find(names: tuple[str, ...]) -> Found:
        return Found()

    kept = find(("a", "b"))
    assert find(("a", "b")) is kept
    assert find(("b", "a")) is not kept
    long = ("x" * 3000,)
    assert find(long) is not find(long)
    for number in range(1000):
        find((f"x-{number}",))
    assert find(("x-999",)) is find(("x-999",))
    assert find(("a", "b")) is not kept
    del kept
    assert sum(type(one) is Found for one in gc.get_objects()) < 300
