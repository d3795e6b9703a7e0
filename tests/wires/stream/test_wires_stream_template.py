"""The template of an event: which events fit it, and which events are too uncertain for one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wires.stream import template as template_module
from proxy.wires.stream.template import Template

EVENT = b'data: {"id":"c","n":7,"delta":{"content":"word"},"pad":"abc"}\n\n'


def template_of(raw: bytes = EVENT) -> Template | None:
    """Return the template of an event whose text is its content."""
    return Template.of(raw, ["content"], ["pad", "n"])


def made() -> Template:
    """Return the template of the usual event."""
    template = template_of()
    assert template is not None
    return template


def said(content: bytes, number: bytes = b"7", pad: bytes = b"abc") -> bytes:
    """Return the event with other values."""
    return b'data: {"id":"c","n":%b,"delta":{"content":"%b"},"pad":"%b"}\n\n' % (number, content, pad)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"more words",
        b"{}[],:",
        rb"\" \\ \/ \b \f \n \r \t",
        rb"\u00e9 \ud83d\ude00",
        "é € 😀 \x7f".encode(),
        rb"\\",
    ],
)
def test_an_event_with_another_text_fits(content: bytes) -> None:
    """An event with any other valid text fits, at any position in the data."""
    event = said(content, b"0", b"")
    json.loads(event[6:])
    template = made()
    assert template.fit(b"xyz" + event + EVENT, 3) == 3 + len(event)
    assert template.found == [b"0", content, b""]


@pytest.mark.parametrize(
    "event",
    [
        said(b'x"'),
        said(b"x\\"),
        said(b'"},"tool_calls":[],"x":{"y":"'),
        said(b"\n"),
        said(b"\x00"),
        said(rb"\x"),
        said(rb"\u12"),
        said(rb"\ud83d"),
        said(rb"\ude00"),
        said(rb"\ud83d\u0041"),
        said(b"\xf0\x9f"),
        said(b"\x98\x80"),
        said(b"\xc0\xaf"),
        said(b"\xed\xa0\x80"),
        said(b"\xf5\x80\x80\x80"),
        said(b"x", b"07"),
        said(b"x", b"-7"),
        said(b"x", b"7.5"),
        said(b"x", b""),
        said(b"x").replace(b'"c"', b'"d"'),
        said(b"x")[:-1],
        said(b"x")[1:],
        b"",
    ],
)
def test_what_is_not_certain_does_not_fit(event: bytes) -> None:
    """An event does not fit if its text is invalid or ends early, or if other bytes differ."""
    template = made()
    assert template.fit(event, 0) == -1
    assert template.found == []


@pytest.mark.parametrize(
    "raw",
    [
        EVENT[:-1],
        EVENT.replace(b'"content"', b'"cont\\u0065nt"'),
        EVENT.replace(b'"id":"c"', b'"cont\\u0065nt":"c"'),
        EVENT.replace(b'"id":"c"', b'"content":"c"'),
        EVENT.replace(b'"id"', b'"content"'),
        EVENT.replace(b'"id":"c"', b'"id":"content"'),
        EVENT.replace(b'"word"', b"null"),
        EVENT.replace(b'"word"', b'"\\ud83d"'),
        EVENT.replace(b'"word"', b'"a\xff"'),
        EVENT.replace(b":7", b":null"),
        EVENT.replace(b":7", b":7e300"),
        EVENT.replace(b":7", b":7.5"),
        b'data: {"content":"a","pad":"","n":7',
        EVENT.replace(b'"pad":', b'"pad"'),
        EVENT.replace(b'"pad"', b'"other"'),
        EVENT.replace(b',"delta"', b',\ndata: "delta"'),
    ],
)
def test_an_event_with_a_doubt_has_no_template(raw: bytes) -> None:
    """A repeated or escaped name, a value of another type, and data on several lines give no template."""
    assert template_of(raw) is None


def test_an_event_without_text_has_no_template() -> None:
    """An event with padding only has no template, because there is no text to join."""
    assert Template.of(EVENT, [], ["pad"]) is None


@pytest.mark.parametrize(
    "raw",
    [
        b'event: x\ndata: {"n" : 1 , "pad":\t"" ,"content": "a"}\n\n',
        b'data: {"content":"a","n":1,"pad":"\\u00e9"}\r\nid: 7\r\n\r\n',
        b'\n: comment\ndata:{"n":1,"pad":"","content":"a"}\n\n',
    ],
)
def test_events_of_any_form_have_a_template(raw: bytes) -> None:
    """Whitespace, line ends and other fields are fixed bytes of the template."""
    template = template_of(raw)
    assert template is not None
    assert template.fit(raw.replace(b'"a"', b'"bcd"'), 0) == len(raw) + 2
    assert template.merge() == raw.replace(b'"a"', b'"bcd"')


@given(
    st.lists(st.tuples(st.text(max_size=8), st.integers(0, 10**15)), min_size=1, max_size=5), st.booleans()
)
def test_what_is_cast_says_what_all_said(events: list[tuple[str, int]], ascii_only: bool) -> None:
    """The merged event has all texts joined in order, and the last value of every other field."""
    template = made()
    for content, number in events:
        text = json.dumps(content, ensure_ascii=ascii_only)[1:-1].encode("utf-8", "replace")
        event = said(text, b"%d" % number, b"p%d" % number)
        if template.fit(event, 0) < 0:
            return  # A lone surrogate does not fit.
    payload = json.loads(template.merge()[6:])
    assert payload["delta"]["content"] == "".join(content for content, _ in events)
    assert (payload["n"], payload["pad"]) == (events[-1][1], f"p{events[-1][1]}")
    assert template.found == []


@given(st.binary(max_size=12) | st.text(max_size=12).map(lambda text: json.dumps(text)[1:-1].encode()))
def test_a_text_is_told_alike_by_its_bytes_and_by_the_grammar(value: bytes) -> None:
    """The fast check of a string accepts exactly what the grammar of strings accepts."""
    assert template_module._is_text(value) == (template_module._TEXT.fullmatch(value) is not None)


@given(st.binary(max_size=20) | st.integers(0, 10**20).map(lambda number: b"%d" % number))
def test_a_number_is_told_alike_by_its_bytes_and_by_the_grammar(value: bytes) -> None:
    """The fast check of a number accepts exactly what the grammar of numbers accepts."""
    assert template_module._is_number(value) == (template_module._NUMBER.fullmatch(value) is not None)


@pytest.mark.parametrize("content", [rb'a\"},"pad":"b', b'a"},"pad":"b', rb'a\\"},"pad":"b'])
def test_a_text_is_never_cut_short(content: bytes) -> None:
    """A text that contains the bytes after it is not cut there; the event does not fit."""
    template = made()
    assert not template.take(said(content))
    assert not template.take(said(b"a") + said(content))
    assert template.found == []


def test_a_text_may_say_what_stands_behind_it() -> None:
    """The end of an event, quoted in a text, does not end the text."""
    template = Template.of(b'data: {"content":"word"}\n\n', ["content"], [])
    assert template is not None
    assert template.take(rb'data: {"content":"a\"}"}' + b"\n\n")
    assert template.found == [rb"a\"}"]


def test_what_is_found_is_bounded() -> None:
    """A full template takes no more events until it is merged."""
    template = made()
    assert template.take(said(b"a") * template_module.MOST_KEPT)
    assert template.full
    assert template.count == template_module.MOST_KEPT
    assert not template.take(said(b"b"))
    template.merge()
    assert template.take(said(b"b"))


@pytest.mark.parametrize(
    "event", [b"data: {}\r\n\r\n", EVENT[:40] + b"\r\n\r\n", EVENT.replace(b"\n", b"\r\n")]
)
def test_no_byte_is_looked_at_for_each_event_before_it(event: bytes) -> None:
    """Events that do not fit are searched only once each, so the search stays linear."""
    looked = 0

    class Watched(bytes):
        def find(self, *search: Any) -> int:
            nonlocal looked
            found = super().find(*search)
            looked += (found if found >= 0 else len(self)) - search[1]
            return found

    template, data = made(), Watched(event * 1000)
    for at in range(0, len(data), len(event)):
        assert template.fit(data, at) < 0
    assert looked <= len(data)
