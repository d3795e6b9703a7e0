"""Values in paths, queries, headers, cookies and forms; and what no value can do there."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from proxy.base.errors import ToolFailure
from proxy.tools.mcp.definitions import UnusableDefinition
from proxy.tools.openapi.requests import make_request
from proxy.tools.openapi.values import path_text, query_pairs

BLUE = ("blue", ["blue", "black", "brown"], {"R": 100, "G": 200, "B": 150})

IN_PATHS = {
    ("matrix", False): (";color=blue", ";color=blue,black,brown", ";color=R,100,G,200,B,150"),
    ("matrix", True): (";color=blue", ";color=blue;color=black;color=brown", ";R=100;G=200;B=150"),
    ("label", False): (".blue", ".blue,black,brown", ".R,100,G,200,B,150"),
    ("label", True): (".blue", ".blue.black.brown", ".R=100.G=200.B=150"),
    ("simple", False): ("blue", "blue,black,brown", "R,100,G,200,B,150"),
    ("simple", True): ("blue", "blue,black,brown", "R=100,G=200,B=150"),
}
"""The table "Style Examples" of version 3.1.1: a text, a list and an object, by style and ``explode``."""

IN_QUERIES: dict[tuple[str, bool], tuple[str | None, ...]] = {
    ("form", False): ("color=blue", "color=blue,black,brown", "color=R,100,G,200,B,150"),
    ("form", True): ("color=blue", "color=blue&color=black&color=brown", "R=100&G=200&B=150"),
    ("spaceDelimited", False): (None, "color=blue%20black%20brown", "color=R%20100%20G%20200%20B%20150"),
    ("pipeDelimited", False): (None, "color=blue%7Cblack%7Cbrown", "color=R%7C100%7CG%7C200%7CB%7C150"),
    ("deepObject", True): (None, None, "color%5BR%5D=100&color%5BG%5D=200&color%5BB%5D=150"),
}


@pytest.mark.parametrize(("style", "explode"), IN_PATHS)
@pytest.mark.parametrize("kind", [0, 1, 2], ids=["text", "list", "object"])
def test_a_path_has_the_specification_s_styles(style: str, explode: bool, kind: int) -> None:
    """Each cell of the specification's table for paths."""
    sent = {"name": "color", "style": style, "explode": explode}
    assert path_text(sent, BLUE[kind], "color") == IN_PATHS[style, explode][kind]


@pytest.mark.parametrize(("style", "explode"), IN_QUERIES)
@pytest.mark.parametrize("kind", [0, 1, 2], ids=["text", "list", "object"])
def test_a_query_has_the_specification_s_styles(style: str, explode: bool, kind: int) -> None:
    """Each cell of the specification's table for queries that is not marked as undefined."""
    expected = IN_QUERIES[style, explode][kind]
    if expected is not None:
        sent = {"name": "color", "style": style, "explode": explode}
        pairs = query_pairs(sent, BLUE[kind], "color")
        assert "&".join(f"{name}={value}" for name, value in pairs) == expected


def test_brackets_go_as_deep_as_values() -> None:
    """Lists and objects below a deepObject have brackets of their own, as such servers read them."""
    sent = {"name": "lines", "style": "deepObject", "explode": True}
    pairs = list(query_pairs(sent, [{"price": "p 1", "tags": ["x"]}], "lines"))
    assert pairs == [("lines%5B0%5D%5Bprice%5D", "p%201"), ("lines%5B0%5D%5Btags%5D%5B0%5D", "x")]


def test_reserved_characters_stay_where_the_document_says_so() -> None:
    """``allowReserved`` leaves what cannot end the value; the rest is encoded all the same."""
    sent = {"name": "q", "style": "form", "explode": True, "reserved": True}
    assert list(query_pairs(sent, "a/b?c=d&e#f+g", "q")) == [("q", "a/b?c%3Dd%26e%23f%2Bg")]


def pinned(path: str = "/a/{id}", *parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What is pinned of an operation whose path has the argument ``id``."""
    of_path = {"argument": "id", "in": "path", "name": "id", "style": "simple", "explode": False}
    return {
        "method": "GET",
        "base": "https://api.example.com/v1",
        "path": path,
        "parameters": [of_path, *parameters],
        "body": None,
        "credentials": None,
        **more,
    }


LEAVING = {
    "a step up": "../x",
    "two dots alone": "..",
    "a dot alone": ".",
    "encoded dots": "%2e%2e",
    "dots encoded twice": "%252e%252e",
    "dots before a parameter of the segment": "..;x",
    "a slash": "a/b",
    "an encoded slash": "a%2fb",
    "a slash encoded twice": "a%252Fb",
    "a slash encoded five times": "a%252525252fb",
    "a backslash": "a\\b",
    "an encoded backslash": "a%5cb",
    "a line break": "a\r\nb",
    "an encoded line break": "a%0d%0ab",
    "a null": "a\0b",
    "nothing": "",
    "half a character": "\ud800",
}


@pytest.mark.parametrize("attack", LEAVING)
def test_no_value_leaves_its_segment(attack: str) -> None:
    """A value that could lead to another path is refused, however it is encoded."""
    with pytest.raises(ToolFailure) as caught:
        make_request(pinned(), {"id": LEAVING[attack]})
    assert caught.value.code == "invalid_arguments"


def test_null_is_no_part_of_a_path() -> None:
    """A parameter whose schema takes null does not leave its name in the path."""
    with pytest.raises(ToolFailure, match="id is null, and stands in a path"):
        make_request(pinned(), {"id": None})


@pytest.mark.parametrize("path", ["/{id}{id}", "/.{id}", "/x/{id}./y"])
def test_no_two_values_make_dots_together(path: str) -> None:
    """Also with what stands beside it in its segment, a value makes no step up."""
    with pytest.raises(ToolFailure, match="may not make a part of the path"):
        make_request(pinned(path), {"id": "."})


@given(st.text(max_size=40))
def test_a_path_keeps_its_parts_and_has_no_query(text: str) -> None:
    """Whatever a value is, the path has the document's segments, and neither query nor fragment."""
    try:
        request = make_request(pinned("/a/{id}/b"), {"id": text})
    except ToolFailure:
        return
    url = URL(request.url, encoded=True)
    assert url.host == "api.example.com"
    assert not url.raw_query_string
    assert not url.raw_fragment
    assert request.url.isascii()
    parts = request.url.removeprefix("https://api.example.com").split("/")
    assert parts[:3] == ["", "v1", "a"]
    assert parts[4:] == ["b"]
    assert url.parts == ("/", "v1", "a", text, "b")


@given(st.text(max_size=40), st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3))
def test_a_query_holds_what_was_given(text: str, fields: dict[str, str]) -> None:
    """A query is read again as it was given, and no value adds a parameter of its own."""
    plain = {"argument": "q", "in": "query", "name": "q", "style": "form", "explode": True}
    deep = {"argument": "f", "in": "query", "name": "f", "style": "deepObject", "explode": True}
    try:
        request = make_request(pinned("/a/{id}", plain, deep), {"id": "1", "q": text, "f": fields})
    except ToolFailure:
        return
    read = list(URL(request.url, encoded=True).query.items())
    assert read == [("q", text), *((f"f[{key}]", value) for key, value in fields.items())]


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0", "ä", "a\x7f"])
def test_no_value_ends_its_header(value: str) -> None:
    """A header takes printable ASCII only, so that no value begins another header."""
    header = {"argument": "h", "in": "header", "name": "X-H", "style": "simple", "explode": False}
    with pytest.raises(ToolFailure, match="printable ASCII"):
        make_request(pinned("/a/{id}", header), {"id": "1", "h": value})


def test_no_value_begins_another_cookie() -> None:
    """What separates cookies is encoded."""
    cookie = {"argument": "c", "in": "cookie", "name": "c", "style": "form", "explode": True}
    request = make_request(pinned("/a/{id}", cookie), {"id": "1", "c": "a; admin=1"})
    assert request.headers["Cookie"] == "c=a%3B%20admin%3D1"


def test_no_argument_takes_the_place_of_the_credentials() -> None:
    """An object whose names become parameters cannot set the one that carries the key."""
    free = {"argument": "f", "in": "query", "name": "f", "style": "form", "explode": True}
    key = {"where": "query", "name": "api_key", "form": "token"}
    with pytest.raises(ToolFailure, match="may not set api_key"):
        make_request(pinned("/a/{id}", free, credentials=key), {"id": "1", "f": {"api_key": "mine"}})


@pytest.mark.parametrize(
    ("style", "name", "value"),
    [("form", "account", {"account": "2"}), ("deepObject", "filter[account]", {"account": "2"})],
)
def test_no_argument_takes_the_place_of_another(style: str, name: str, value: Any) -> None:
    """What a key may write into an argument is bounded, so an object's members do not stand for it."""
    free = {"argument": "more", "in": "query", "name": "filter", "style": style, "explode": True}
    bound = {"argument": "account", "in": "query", "name": name, "style": "form", "explode": True}
    for parameters in ((free, bound), (bound, free)):
        for also in ({}, {"account": "1"}):
            with pytest.raises(ToolFailure, match="more may not set"):
                make_request(pinned("/a/{id}", *parameters), {"id": "1", "more": value, **also})
    request = make_request(pinned("/a/{id}", free, bound), {"id": "1", "more": {"b": "2"}, "account": "1"})
    assert request.url.endswith("account=1") or request.url.endswith("account%5D=1")


@pytest.mark.parametrize("also", [{}, {"account": "1"}])
@pytest.mark.parametrize(
    ("style", "name"), [("form", "account"), ("deepObject", "more[account]"), ("form", "more")]
)
def test_no_field_of_a_form_takes_the_place_of_another(style: str, name: str, also: dict[str, str]) -> None:
    """The members of an object become fields of the form, but none that the schema or a key bounds."""
    encoding = {"more": {"style": style, "explode": True}, "free": {"style": "form", "explode": True}}
    sent = {"argument": "body", "type": "application/x-www-form-urlencoded", "encoding": encoding}
    sent["fields"] = ["account", "more", "more[account]", "free"]
    field = "free" if name == "more" else "more"
    value = {field: {name if field == "free" else "account": "2"}, **also}
    with pytest.raises(ToolFailure, match="may not set"):
        make_request(pinned(method="POST", body=sent), {"id": "1", "body": value})
    fine = make_request(pinned(method="POST", body=sent), {"id": "1", "body": {"free": {"b": "2"}, **also}})
    assert fine.body in (b"b=2", b"b=2&account=1")


def test_a_form_with_a_charset_is_a_form() -> None:
    """The type's parameter does not turn the body into JSON."""
    media_type = "application/x-www-form-urlencoded; charset=utf-8"
    sent = {"argument": "body", "type": media_type, "encoding": {}}
    request = make_request(pinned(method="POST", body=sent), {"id": "1", "body": {"a": "b c"}})
    assert (request.body, request.headers["Content-Type"]) == (b"a=b+c", media_type)


def test_a_form_is_encoded_as_browsers_do() -> None:
    """Spaces are plus signs; what has meaning is encoded; a list is repeated, an object is JSON."""
    sent = {"argument": "body", "type": "application/x-www-form-urlencoded", "encoding": {}}
    value = {"a b": "c&d=e+f", "l": [1, True], "o": {"x": None}, "n": None}
    request = make_request(pinned(method="POST", body=sent), {"id": "1", "body": value})
    assert request.body == b"a+b=c%26d%3De%2Bf&l=1&l=true&o=%7B%22x%22%3A+null%7D"
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    "base",
    ["http://user@api.example.com", "https://api.example.com/?x", "file:///etc", "https://a/../b", "//x"],
)
def test_a_server_that_is_none_is_not_called(base: str) -> None:
    """Also if somebody has edited a pin: what is no plain address of a server is refused."""
    with pytest.raises(UnusableDefinition):
        make_request(pinned(base=base), {"id": "1"})
