"""Which addresses have occurred in a conversation."""

import pytest

from proxy.base.conversation import Spoken
from proxy.tools.access.prior_addresses import mentions, occurred, repeats

PAGE = "https://notes.example/rivers?of=Berlin&n=1"


@pytest.mark.parametrize(
    "text",
    [
        PAGE,
        f"See {PAGE}, please.",
        f"([rivers]({PAGE})).",
        f"<{PAGE}>",
        f'{{"url": "{PAGE}"}}',
        '{"url": "https:\\/\\/notes.example\\/rivers?of=Berlin\\u0026n=1"}',
        '"text": "https://notes.example/rivers?of=Berlin&n=1\\nMore"',
        '<a href="https://notes.example/rivers?of=Berlin&amp;n=1">',
        f"{PAGE}#top",
        "HTTPS://Notes.Example:443/rivers?of=Berlin&n=1",
        f"{PAGE}。次",
    ],
)
def test_spellings_of_one_address(text: str) -> None:
    """What an address means counts, not how the text around it writes it."""
    assert mentions(text, PAGE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://notes.example/rivers",
        f"{PAGE}0",
        f"{PAGE}&d=1",
        f"{PAGE}/more",
        "https://notes.example/Rivers?of=Berlin&n=1",
        "http://notes.example/rivers?of=Berlin&n=1",
        "https://notes.example:8443/rivers?of=Berlin&n=1",
        "https://www.notes.example/rivers?of=Berlin&n=1",
        "https://notes.example.evil.example/rivers?of=Berlin&n=1",
        f"https://evil.example/?to={PAGE}",
        "notes.example/rivers?of=Berlin&n=1",
        "https://user@notes.example/rivers?of=Berlin&n=1",
    ],
)
def test_other_addresses(text: str) -> None:
    """Another host, port, path, query or letter is another address, and so is one inside an address."""
    assert not mentions(text, PAGE)


def test_names_in_other_letters() -> None:
    """A name in its own letters means the same host as in the form of the DNS, and no other."""
    assert mentions("https://bücher.example/a", "https://xn--bcher-kva.example/a")
    assert not mentions("https://bucher.example/a", "https://xn--bcher-kva.example/a")
    assert not mentions("https://bücher.example/a", "https://bücher.example/a".replace("ü", "u"))


def test_addresses_without_a_scheme() -> None:
    """People write addresses without a scheme; in results these do not count."""
    said = "Read notes.example/rivers?of=Berlin&n=1, and me@notes.example."
    assert mentions(said, PAGE, bare=True)
    assert not mentions(said, "https://notes.example/", bare=True)
    assert occurred(PAGE, [("client", said)])
    assert not occurred(PAGE, [("result", said)])


ECHO = f"cannot open {PAGE}"


@pytest.mark.parametrize(
    ("conversation", "known"),
    [
        ([("client", PAGE)], True),
        ([("result", PAGE)], True),
        ([("model", PAGE)], False),
        ([("model", PAGE), ("client", f"Open {PAGE}")], True),
        # An error that repeats what the model asked for, whole, in parts or encoded.
        ([("model", PAGE), ("result", ECHO)], False),
        ([("model", '{"host": "notes.example", "path": "/rivers?of=Berlin&n=1"}'), ("result", ECHO)], False),
        ([("model", '{"path": "rivers?of=Berlin&n=1"}'), ("result", ECHO)], False),
        ([("model", "rivers%3Fof%3DBerlin%26n%3D1"), ("result", ECHO)], False),
        ([("model", "NOTES.example"), ("result", ECHO)], False),
        ([("result", "https://notes.example/"), ("model", "notes.example"), ("result", ECHO)], True),
        ([("result", ECHO), ("model", PAGE)], True),
        # A search within a site names it, and not its pages.
        ([("model", '{"query": "rivers site:notes.example"}'), ("result", ECHO)], True),
        ([("model", "site:notes.example, notes.example"), ("result", ECHO)], False),
        ([("model", "site:notes.example/rivers?of=Berlin&n=1"), ("result", ECHO)], False),
        ([("model", "I look for rivers."), ("result", ECHO)], True),
    ],
)
def test_who_mentioned_it(conversation: list[Spoken], known: bool) -> None:
    """What the model wrote does not count, nor a result that may only repeat it."""
    assert occurred(PAGE, conversation) is known


def test_a_site_that_only_the_model_has_named() -> None:
    """A page of a site whose name the model may have made up is known; the site's own address is not."""
    host = "https://tulip-4711.example/"
    said: list[Spoken] = [("model", "site:tulip-4711.example"), ("result", f"Nothing at {host}")]
    assert not occurred(host, said)


def test_a_long_conversation() -> None:
    """What comes after the searched part is not known; a quadratic search of these texts would never end."""
    assert not occurred(PAGE, [("client", "x" * (65 << 20)), ("client", PAGE)])
    for hard in ("https://notes.example/" + "(" * 500_000, "notes.example-" * 50_000, "a." * 500_000):
        assert not mentions(f"notes.example {hard}", PAGE, bare=True)


def test_many_spellings() -> None:
    """A text with a million addresses that all look like the wanted one is not read for minutes."""
    read: set[str] = set()
    assert not mentions("".join(f"{PAGE}{n}&amp;)))))))) " for n in range(20_000)), PAGE, read=read)
    assert len(read) == 5000
    assert mentions(f"https://notes.example/lakes {PAGE}", PAGE, read=set())
    assert mentions(f"{'https://notes.example/lakes/0 ' * 20_000} {PAGE}", PAGE)


@pytest.mark.parametrize(
    ("written", "is_repeated"),
    [
        (PAGE, True),
        ("notes.example/rivers?of=Berlin&n=1", True),
        ("rivers%3Fof%3DBerlin%26n%3D1", True),
        ("rivers of Berlin site:notes.example", False),
        ("", False),
    ],
)
def test_what_a_result_may_repeat(written: str, is_repeated: bool) -> None:
    """An address whose path and query a model wrote may come from there; the name of its site alone says
    nothing."""
    assert repeats(written, PAGE) is is_repeated
    assert repeats(f"tulip-4711.example {written}", "https://tulip-4711.example/")
