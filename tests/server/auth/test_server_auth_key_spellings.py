"""The proxy finds a key in an address in any spelling, and refuses the request."""

import base64
import io
import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import pytest
from client_keys import ALICE, bearer, keyed, made
from logged import logged_to

from proxy.server.auth.key_spellings import KeyFinder, readings
from proxy.store.base import RunFilter


def hexed(text: str, form: str = "%{:02X}") -> str:
    """Each character as an escape."""
    return "".join(form.format(ord(character)) for character in text)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def url64(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def overlong(text: str) -> str:
    """UTF-8 with two bytes for each character, which decoders should refuse and some accept."""
    return "".join(f"%{0xC0 | ord(c) >> 6:02X}%{0x80 | ord(c) & 0x3F:02X}" for c in text)


def wide(text: str) -> str:
    """The full-width forms of letters, as UTF-8 in escapes."""
    return quote("".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text))


SPELLINGS: dict[str, Callable[[str], str]] = {
    "in the path": lambda k: f"/v1/models/{k}",
    "in the query": lambda k: f"/v1/models?api_key={k}",
    "as the query": lambda k: f"/v1/models?{k}",
    "as a query's name": lambda k: f"/v1/models?{k}=1",
    "behind another field": lambda k: f"/v1/models?a=1&b={k}&c=2",
    "with Bearer": lambda k: f"/v1/models?auth=Bearer%20{k}",
    "with Bearer and a plus": lambda k: f"/v1/models?auth=Bearer+{k}",
    "escaped": lambda k: f"/v1/models?k={hexed(k)}",
    "escaped in lower case": lambda k: f"/v1/models?k={hexed(k, '%{:02x}')}",
    "escaped in mixed case": lambda k: f"/v1/models?k={hexed(k[:9])}{hexed(k[9:], '%{:02x}')}",
    "one character escaped": lambda k: f"/v1/models?k={hexed(k[0])}{k[1:]}",
    "escaped in the path": lambda k: f"/v1/models/{hexed(k)}",
    "escaped twice": lambda k: f"/v1/models?k={quote(hexed(k))}",
    "escaped three times": lambda k: f"/v1/models?k={quote(quote(hexed(k[:4]) + k[4:]))}",
    "escaped name": lambda k: f"/v1/models?{hexed(k)}=1",
    "JSON escapes": lambda k: f"/v1/models?k={quote(hexed(k, chr(92) + 'u{:04x}'))}",
    "JavaScript escapes": lambda k: f"/v1/models?k={hexed(k, '%u{:04X}')}",
    "hexadecimal escapes": lambda k: f"/v1/models?k={quote(hexed(k, chr(92) + 'x{:02x}'))}",
    "HTML escapes": lambda k: f"/v1/models?k={quote(hexed(k, '&#x{:x};'))}",
    "HTML escapes in tens": lambda k: f"/v1/models?k={quote(hexed(k, '&#{};'))}",
    "overlong UTF-8": lambda k: f"/v1/models?k={overlong(k)}",
    "full width": lambda k: f"/v1/models?k={wide(k)}",
    "base64": lambda k: f"/v1/models?k={quote(b64(k))}",
    "base64 for URLs": lambda k: f"/v1/models?k={url64(k)}",
    "base64 in the path": lambda k: f"/v1/models/{url64(k)}",
    "base64 of Basic": lambda k: f"/v1/models?auth=Basic%20{quote(b64('me:' + k))}",
    "base64 of JSON": lambda k: f"/v1/models?s={url64(json.dumps({'token': k}))}",
    "base64 of base64": lambda k: f"/v1/models?s={url64(b64(k))}",
    "hexadecimal": lambda k: f"/v1/models?k={k.encode().hex()}",
    "JSON in the query": lambda k: f"/v1/models?s={quote(json.dumps({'key': k}))}",
    "split over path and query": lambda k: f"/v1/models/{k[:20]}?{k[20:]}",
    "split over segments": lambda k: f"/v1/models/{k[:20]}/{k[20:]}",
    "split over fields": lambda k: f"/v1/models?a={k[:20]}&b={k[20:]}",
    "with a NUL": lambda k: f"/v1/models?k={k[:20]}%00{k[20:]}",
    "with a line end": lambda k: f"/v1/models?k={k[:20]}%0D%0A{k[20:]}",
    "behind a NUL": lambda k: f"/v1/models?k=%00{k}",
    "in quotes": lambda k: f"/v1/models?k=%22{k}%22",
    "in the fragment": lambda k: f"/v1/models#{k}",
    "in the user of an absolute target": lambda k: f"http://{k}@localhost/v1/models",
    "in the password of an absolute target": lambda k: f"http://me:{k}@localhost/v1/models",
    "in the query of an absolute target": lambda k: f"http://localhost/v1/models?k={k}",
    "in a parameter of the path": lambda k: f"/v1/models;key={k}",
    "with dot segments": lambda k: f"/v1/x/../models?k={k}",
    "behind an empty segment": lambda k: f"/v1//{k}",
    "below nothing that is served": lambda k: f"/{k}",
    "at the health check": lambda k: f"/healthz?key={k}",
    "below /admin": lambda k: f"/admin/runs?key={k}",
    "behind much else": lambda k: f"/v1/models?pad={'x' * 7000}&k={k}",
}


def pieces_of(secret: str, target: str) -> list[str]:
    """The texts that must appear nowhere: the key, its halves, and its spelling in the target."""
    return [secret, secret[:20], secret[20:], target[-40:]]


@pytest.mark.parametrize("kind", ["declared", "stored"])
@pytest.mark.parametrize("spelling", sorted(SPELLINGS))
async def test_a_key_in_an_address_goes_no_further(spelling: str, kind: str) -> None:
    """A key in an address is a 400 with its own code, and reaches no upstream, log line or stored run."""
    log = io.StringIO()
    # The log is set up before the proxy, without a list of secrets to mask.
    with logged_to(log, level="debug"):
        async with keyed(auth={"mode": "open"}) as (proxy, upstream):
            secret = ALICE if kind == "declared" else await made(proxy.services.store)
            target = SPELLINGS[spelling](secret)
            answer = await proxy.ask(None, method="GET", path=target)
            assert (answer.status, answer.error["code"]) == (400, "key_in_address")
            assert upstream.requests == []
            assert await proxy.services.store.list_runs(RunFilter()) == []
            written = f"{log.getvalue()} {answer.body!r} {answer.headers}"
            assert '"path":"(withheld)"' in written.replace(" ", "")
            assert [piece for piece in pieces_of(secret, target) if piece in written] == []


@pytest.mark.parametrize("mode", ["keys", "forward", "open"])
async def test_a_key_is_looked_for_in_every_mode(mode: str) -> None:
    """In every mode the proxy looks for keys in the address, also on a connection that it knows."""
    async with keyed(auth={"mode": mode}) as (proxy, upstream), proxy.connect() as conversation:
        for path, status in (("/v1/models", 200), (f"/v1/models?k={quote(b64(ALICE))}", 400)):
            shown = bearer(ALICE if mode == "keys" else "sk-x")
            conversation.writer.write(proxy.request(None, shown, method="GET", path=path))
            assert (await conversation.answer()).status == status
        assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    "target",
    [
        "/v1/responses/resp_0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f6071",
        "/v1/chat/completions?api-version=2024-10-21&x=" + "y" * 80,
        "/v1/models/accounts%2Ffireworks/models/llama-v3p1-405b-instruct-and-more",
        "/v1/files?after=file-tr_short&limit=100&order=desc&purpose=assistants",
        "/v1/x?s=" + url64(json.dumps({"page": 1, "token": "this is nobody's key, it is long though"})),
    ],
)
def test_other_addresses_are_nobodys_keys(target: str) -> None:
    """The proxy does not take long ids, names and cursors for keys."""
    assert not finder().holds(target)


async def test_an_overlong_target_is_withheld_from_the_log() -> None:
    """A target that is too long to be searched is a 414, and the log has no key of it."""
    log = io.StringIO()
    with logged_to(log, level="debug"):
        async with keyed(auth={"mode": "open"}) as (proxy, upstream):
            answer = await proxy.get(f"/v1/{ALICE}/{'x' * 9000}")
        assert answer.status == 414
        assert upstream.requests == []
        assert ALICE not in f"{log.getvalue()} {answer.body!r}"


def finder() -> KeyFinder:
    class Known:
        """Knows one key, and counts what it is asked."""

        asked = 0

        def knows(self, secret: str) -> bool:
            self.asked += 1
            return secret == ALICE

        def declared_at(self, text: str, starts: Sequence[int]) -> bool:
            self.asked += 1
            return any(text.startswith(ALICE, start) for start in starts)

        async def refresh(self) -> None:
            raise AssertionError("asked anew")

    return KeyFinder(Known())


@pytest.mark.parametrize(
    "text",
    [
        "%25" * 2700,
        "%2525252525252525" * 500,
        b64(b64(b64("x" * 3400)))[:8192],
        "tr_%20" * 1300,
        "%74r_/" * 1300,
        "ab" * 4096,
        "?a=" * 2700,
        "&#" * 4096,
        "+" * 8192,
    ],
)
def test_reading_a_text_in_every_way_is_bounded(text: str) -> None:
    """However a text is encoded, the number of its readings and their total length are bounded."""
    total = [len(reading) for reading in readings(text)]
    assert sum(total) <= len(text) + 12 * 1024
    assert len(total) < 1100
    found: Any = finder()
    assert not found.holds(text)
