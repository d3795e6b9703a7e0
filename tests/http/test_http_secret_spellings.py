"""A secret of the proxy is removed even if JSON escapes hide its characters; all other bytes pass."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_upstream import RawUpstream, Step
from running_proxy import SERVER_KEY, make_config, running

from proxy.http.bodies import REDACTED, Scrubber, shapes_of_secrets
from proxy.http.secret_spellings import SecretSpellings
from proxy.http.secrets import SecretFilterSink, Secrets

KEY = "sk-Proj_09/aB+zz-77sk-"
OTHER = "vk_AbCdEf0123456789/xyz"


def escaped(text: str, how: str = "u") -> str:
    """A text with each character as an escape, in lower or upper case, or with only its slashes escaped."""
    if how == "/":
        return text.replace("/", "\\/")
    digits = "{:04X}" if how == "U" else "{:04x}"
    return "".join("\\u" + digits.format(ord(character)) for character in text)


@st.composite
def spelled(draw: st.DrawFn, secret: str = KEY) -> str:
    """One of the ways to write a secret in JSON."""
    return "".join(draw(st.sampled_from([c, escaped(c), escaped(c, "U"), escaped(c, "/")])) for c in secret)


NOISE = st.sampled_from(
    ["a", "s", "\\u00", "\\u0073", "\\\\", "\\n", "\\/", "é", "\\u00e9", KEY[:7], '"', "{}"]
)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(data[at : at + size])
        at, turn = at + size, turn + 1
    return pieces


def decoded(data: bytes) -> str:
    """A text with its escapes decoded, as a lenient reader decodes them."""
    text = re.sub(rb"\\u00([0-9a-fA-F]{2})", lambda m: bytes([int(m[1], 16)]), data)
    return text.replace(b"\\/", b"/").decode("latin-1")


@given(
    parts=st.lists(NOISE | spelled(), max_size=8), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4)
)
def test_no_spelling_survives_any_cut(parts: list[str], sizes: list[int]) -> None:
    """Rule R3: no body keeps a secret in any spelling, however it was cut; the sink keeps the length."""
    data = "".join(parts).encode()
    scrubber = Scrubber(shapes_of_secrets([KEY, OTHER]))
    got = b"".join(scrubber.feed(piece) for piece in cut(data, sizes)) + scrubber.finish()
    assert KEY not in decoded(got)

    out: list[bytes] = []
    secrets = Secrets(shapes_of_secrets([KEY, OTHER]))
    whole_ones = SecretFilterSink(secrets, out.append)
    for piece in cut(data, sizes):
        whole_ones(piece)
    whole_ones.finish()
    blanked = b"".join(out)
    assert KEY not in decoded(blanked)
    assert len(blanked) == len(data)


@given(
    text=st.text(st.characters(max_codepoint=0x2FFF)),
    ascii_only=st.booleans(),
    sizes=st.lists(st.integers(1, 9), min_size=1),
)
def test_what_is_no_secret_keeps_every_byte(text: str, ascii_only: bool, sizes: list[int]) -> None:
    """Rule W1: escapes, slashes and the beginning of a key pass unchanged."""
    data = json.dumps({"x": text + KEY[:-1], "y": "<\\/>"}, ensure_ascii=ascii_only).encode()
    out: list[bytes] = []
    whole_ones = SecretFilterSink(Secrets(shapes_of_secrets([KEY])), out.append)
    for piece in cut(data, sizes):
        whole_ones(piece)
    whole_ones.finish()
    assert b"".join(out) == data


def test_an_ordinary_body_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text whose escapes are no letters of a secret is not searched for all its spellings."""
    spellings = SecretSpellings([b"sk-abc-12345678"])

    class Whole:
        def sub(self, *_: object) -> bytes:
            raise AssertionError("searched for all spellings")

    monkeypatch.setattr(spellings, "_whole", Whole())
    for text in (
        b"plain",
        b"caf\\u00e9 \\u4e2d",
        b'line\\nline \\"q\\"',
        b"\\u003cb\\u003e \\u0026",
        b"http:\\/\\/x",
    ):
        assert spellings.replaced(text * 50, lambda _: REDACTED) == text * 50
    with pytest.raises(AssertionError, match="all spellings"):
        spellings.replaced(b"\\u0073", lambda _: REDACTED)


SPELLED = {
    "plain": SERVER_KEY,
    "escaped": escaped(SERVER_KEY),
    "escaped in capitals": escaped(SERVER_KEY, "U"),
    "one letter": escaped("s") + SERVER_KEY[1:],
    "the last letter": SERVER_KEY[:-1] + escaped(SERVER_KEY[-1], "U"),
    "a dash": SERVER_KEY.replace("-", "\\u002D", 1),
}


ASKS = {
    "/v1/chat/completions": {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/embeddings": {"model": "text-embedding-3-small", "input": "x"},
    "/v1/models": None,
}


@pytest.mark.parametrize("spelling", sorted(SPELLED))
@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request"])
@pytest.mark.parametrize("path", list(ASKS))
@pytest.mark.parametrize("tools", [False, True])
async def test_our_key_does_not_reach_the_client(spelling: str, status: str, path: str, tools: bool) -> None:
    """Rule R3: an answer holds the provider's key in no spelling, in whatever pieces it came."""
    body = (
        f'{{"object":"x","id":"1","data":[],"choices":[{{"index":0,"message":{{"role":"assistant",'
        f'"content":"{SPELLED[spelling]}"}},"finish_reason":"stop"}}],"say":"caf\\u00e9 \\/"}}'.encode()
    )
    at = body.index(SPELLED[spelling].encode()) + 4
    answer_head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    )
    steps: list[Step] = [answer_head + body[:at], 0.05, body[at:]]
    async with RawUpstream(steps) as upstream:
        config = make_config(upstream.url, allow=("core__*",) if tools else ())
        async with running(config) as proxy:
            ask = ASKS[path]
            answer = await proxy.ask(ask, method="GET" if ask is None else "POST", path=path)
    assert answer.clean
    assert SERVER_KEY not in decoded(answer.body)
    assert b"caf\\u00e9 \\/" in answer.body
