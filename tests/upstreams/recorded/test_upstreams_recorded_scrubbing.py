"""What is removed from a recording: known secrets, what looks like one, and what its user names."""

import json

import pytest

from proxy.base.errors import ConfigError
from proxy.upstreams.recorded.scrubbing import Scrubbing

TOKENS = (
    "sk-ant-REDACTED-example0000",
    "sk-proj-0123456789abcdefghij",
    "ghp_0123456789abcdefghijABCDEF",
    "github_pat_0123456789abcdefghijAB",
    "glpat-0123456789abcdefghij",
    "xoxb-0123456789-abcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "AIza0123456789abcdefghij0123456789abcde",
    "hf_0123456789abcdefghijAB",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIabc+/=\n-----END RSA PRIVATE KEY-----",
    "Bearer 0123456789abcdef",
    "https://ada:hunter22@db.example/x",
    "https://api.example/x?page=2&api_key=hunter22",
    "KNOWN/secret+value",
    "acct_hunter22",
)
PARTS = (
    "hunter22",
    "0123456789abcdef",
    "KNOWN/secret+value",
    "example0000",
    "EXAMPLE",
    "MIIabc",
    "c2lnbmF0dXJl",
)
SCRUBBING = Scrubbing(["KNOWN/secret+value"], ["acct_*"])


@pytest.mark.parametrize("token", TOKENS)
def test_a_secret_is_removed_wherever_it_stands(token: str) -> None:
    """In a text, in JSON, in JSON within JSON, and with characters written as escapes."""
    text = f"Take {token} please."
    nested = json.dumps({"arguments": json.dumps({"note": text})})
    for body in (text, json.dumps({"a": text}), nested, json.dumps({"deep": nested})):
        cleaned = SCRUBBING.clean(body.encode()).decode()
        assert "[redacted]" in cleaned
        assert not [part for part in PARTS if part in cleaned]
        assert "please." in cleaned
    assert json.loads(json.loads(SCRUBBING.clean(nested.encode()))["arguments"])["note"].startswith("Take ")


@pytest.mark.parametrize(
    "name", ["password", "api_key", "X-Api-Key", "client_secret", "refresh_token", "db_password"]
)
def test_a_member_with_the_name_of_a_secret_loses_its_value(name: str) -> None:
    """Also where an object is written as text, as arguments of tools are."""
    whole = {name: "plain words", "city": "Rome"}
    outer = {"arguments": json.dumps(whole), **whole}
    cleaned = json.loads(SCRUBBING.clean(json.dumps(outer).encode()))
    assert cleaned[name] == "[redacted]"
    assert json.loads(cleaned["arguments"]) == {name: "[redacted]", "city": "Rome"}


def test_escapes_do_not_hide_a_known_secret() -> None:
    """A secret whose characters are written as escapes of JSON is found."""
    hidden = "".join(f"\\u{ord(character):04x}" for character in "KNOWN") + "\\/secret+value"
    assert SCRUBBING.clean(f'{{"a":"{hidden}"}}'.encode()) == b'{"a":"[redacted]"}'


def test_the_keys_of_a_request_are_removed_from_its_body() -> None:
    """A body that repeats the key of its own request does not keep it."""
    headers = [("Authorization", "Bearer plain-key"), ("X-Api-Key", "other-key"), ("Accept", "text/html")]
    assert (
        Scrubbing().clean_of(headers, b"plain-key other-key text/html") == b"[redacted] [redacted] text/html"
    )


@pytest.mark.parametrize(
    "text",
    [
        "The task-force asked for basic understanding of Bearer bonds.",
        "key: C major; token count: 12; the secret garden",
        "https://example.org/a?page=2#b and ada@example.org",
        '{"key": "C major", "tokens": "many", "max_tokens": 12}',
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    """Words that only resemble secrets are left alone."""
    assert Scrubbing().clean(text.encode()) == text.encode()


@pytest.mark.parametrize("entry", ["*", "a*", "abc", "a*b*c*d", "", "**abcdef"])
def test_an_entry_that_would_match_too_much_is_refused(entry: str) -> None:
    """An entry needs four characters besides its one asterisk."""
    with pytest.raises(ConfigError, match="would match too much"):
        Scrubbing(scrub=[entry])


@pytest.mark.parametrize(
    "flood",
    [
        b'"password":"', b"-----BEGIN PRIVATE KEY-----", b"://a:", b"eyJaaaaaaaa.", b"?api_key=", b"secret_",
        b"Bearer ", b"bearer a", b"acct_", b'\\"password\\":\\"', b"sk-", b"a_",
    ],
)  # fmt: skip
def test_no_text_holds_the_recorder_up(flood: bytes) -> None:
    """A megabyte of beginnings of secrets is read once; a pattern that went back would take minutes."""
    SCRUBBING.clean(flood * (1_000_000 // len(flood)))


@pytest.mark.parametrize("value", ['hunt"er22', "hunter22\\", '\\"hunter22"', "hunt\n\\n er22 é\\\\"])
def test_quotes_and_backslashes_in_a_secret_do_not_end_it(value: str) -> None:
    """A password with a quote is removed whole, at each depth of JSON within JSON, and JSON stays JSON."""
    whole = {"password": value, "city": "Rome"}
    for _ in range(3):
        cleaned = Scrubbing().clean(json.dumps(whole).encode())
        assert b"er22" not in cleaned
        unpacked = json.loads(cleaned)
        while "arguments" in unpacked:
            unpacked = json.loads(unpacked["arguments"])
        assert unpacked == {"password": "[redacted]", "city": "Rome"}
        whole = {"arguments": json.dumps(whole)}


@pytest.mark.parametrize("key", ["unused", "ollama", "EMPTY"])
def test_a_placeholder_is_no_key(key: str) -> None:
    """What people write where no key is needed stays in the body, or a replay would find no fixture."""
    body = f"Which {key} variables does it have?".encode()
    assert Scrubbing().clean_of([("Authorization", f"Bearer {key}")], body) == body
