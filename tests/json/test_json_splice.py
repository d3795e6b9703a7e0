"""JSON that the proxy edits in pieces: everything that it does not change keeps its bytes."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.base.errors import RequestError
from proxy.json.splice import (
    elements,
    extend_array,
    extend_object,
    join_array,
    join_object,
    load_strict,
    members,
    replace_values,
)

blanks = st.text(" \t\r\n", max_size=3).map(str.encode)
texts = st.text(max_size=8) | st.sampled_from(
    ['"', "\\", '\\"', '\\\\"', '\\\\\\"', '{"a":"\\\\"}', "]}", "{[", ",", ":", "\u2028", "\x00", "a\nb"]
)
numbers = st.sampled_from(
    ["0", "-0", "1", "1.0", "1e400", "-1.5E-7", "123456789012345678901234567890", "1e+2"]
)

_ARRAY, _OBJECT = (b"[ ", b" ]"), (b'{"]":"[","a":', b',"b":{}}')
_WRAPPED = [[], [], [], [_ARRAY], [_OBJECT] * 4, [_ARRAY, _OBJECT] * 4, [_OBJECT, _ARRAY] * 9]


@st.composite
def strings(draw: st.DrawFn) -> bytes:
    """A JSON string, with and without escapes."""
    return json.dumps(draw(texts), ensure_ascii=draw(st.booleans())).encode()


@st.composite
def values(draw: st.DrawFn, depth: int = 3) -> bytes:
    """The raw text of a JSON value with arbitrary whitespace."""
    kinds = ["string", "number", "word", *(("array", "object") if depth else ())]
    kind = draw(st.sampled_from(kinds))
    if kind == "string":
        return draw(strings())
    if kind == "number":
        return draw(numbers).encode()
    if kind == "word":
        return draw(st.sampled_from([b"true", b"false", b"null"]))
    value = array(draw, depth)[0] if kind == "array" else obj(draw, depth)[0]
    for opening, closing in draw(st.sampled_from(_WRAPPED)):  # some deeper than one expression can read
        value = opening + value + closing
    return value


def array(draw: st.DrawFn, depth: int) -> tuple[bytes, list[bytes]]:
    """Return an array's text and the texts of its elements."""
    parts = draw(st.lists(values(depth=depth - 1), max_size=4))
    inner = b",".join(draw(blanks) + part + draw(blanks) for part in parts)
    return b"[" + (inner or draw(blanks)) + b"]", parts


def obj(draw: st.DrawFn, depth: int) -> tuple[bytes, dict[str, bytes]]:
    """Return an object's text and its members."""
    found = draw(st.dictionaries(texts, values(depth=depth - 1), max_size=4))
    inner = b",".join(
        draw(blanks) + json.dumps(key).encode() + draw(blanks) + b":" + draw(blanks) + value + draw(blanks)
        for key, value in found.items()
    )
    return b"{" + (inner or draw(blanks)) + b"}", found


@st.composite
def arrays(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """An array with whitespace around it."""
    text, parts = array(draw, 3)
    return draw(blanks) + text + draw(blanks), parts


@st.composite
def objects(draw: st.DrawFn) -> tuple[bytes, dict[str, bytes]]:
    """An object with whitespace around it."""
    text, parts = obj(draw, 3)
    return draw(blanks) + text + draw(blanks), parts


@given(objects())
@example((b'{"a":"\\\\","b":1e400}', {"a": b'"\\\\"', "b": b"1e400"}))
@example((b'{"a":1.0,"b":1}', {"a": b"1.0", "b": b"1"}))
def test_members_keep_their_bytes(case: tuple[bytes, dict[str, bytes]]) -> None:
    """``members`` returns the exact bytes of every value of an object, in order."""
    raw, parts = case
    found = members(raw)
    assert list(found.items()) == list(parts.items())


@given(arrays())
def test_elements_keep_their_bytes(case: tuple[bytes, list[bytes]]) -> None:
    """``elements`` returns the exact bytes of every element of an array."""
    raw, parts = case
    assert elements(raw) == parts


@given(
    objects(),
    arrays(),
    st.sampled_from([b"NaN", b"-Infinity", b'"\\ud83d"', b'"\\x"', b"[" * 2000 + b"]" * 2000]),
)
def test_text_that_only_lenient_parsers_read_is_cut_alike(
    an_object: tuple[bytes, dict[str, bytes]], an_array: tuple[bytes, list[bytes]], odd: bytes
) -> None:
    """A value that a strict parser refuses does not change where the other values begin and end."""
    raw, parts = an_object[0].strip(), an_object[1]
    behind = members(raw[:-1] + (b"," if parts else b"") + b'"\x01odd" : ' + odd + b" }")
    assert list(behind.items()) == [*parts.items(), ("\x01odd", odd)]
    raw, listed = an_array[0].strip(), an_array[1]
    assert elements(b"[ " + odd + (b"," if listed else b" ") + raw[1:]) == [odd, *listed]


@given(objects(), arrays())
def test_pieces_join_to_the_same(an_object: tuple[bytes, Any], an_array: tuple[bytes, Any]) -> None:
    """Joined pieces mean the same JSON as the original text, and cutting them again gives the same pieces."""
    for raw, cut, join in ((an_object[0], members, join_object), (an_array[0], elements, join_array)):
        pieces: Any = cut(raw)
        joined = join(pieces)
        assert json.loads(joined) == json.loads(raw)
        assert cut(joined) == pieces


@given(objects(), arrays(), values())
def test_what_is_added_stands_behind(
    an_object: tuple[bytes, dict[str, bytes]], an_array: tuple[bytes, list[bytes]], value: bytes
) -> None:
    """New members and elements come last, and the bytes before them do not change."""
    value = value.strip()
    raw, parts = an_object
    added = {name: value for name in ("new 1", "new 2") if name not in parts}
    extended = extend_object(raw, added)
    assert extended.startswith(raw.strip()[:-1])
    assert list(members(extended).items()) == list({**parts, **added}.items())
    assert extend_object(raw, {}) == raw.strip()
    raw, listed = an_array[0].strip(), an_array[1]
    extended = extend_array(raw, [value, value])
    assert extended.startswith(raw[:-1])
    assert elements(extended) == [*listed, value, value]
    assert extend_array(raw, []) == raw


@given(objects(), st.data())
def test_replaced_values_leave_every_other_byte(
    case: tuple[bytes, dict[str, bytes]], data: st.DataObject
) -> None:
    """New values take the places of the old ones, and every other byte stays the same."""
    raw, parts = case
    keys = data.draw(st.lists(st.sampled_from(sorted(parts)), unique=True)) if parts else []
    changed = replace_values(raw, {**dict.fromkeys(keys, b'"new"'), "\x01absent": b"0"})
    assert members(changed) == {k: b'"new"' if k in keys else v for k, v in parts.items()}
    back = replace_values(changed, {key: parts[key] for key in keys})
    assert back == raw


def test_values_are_replaced_inside() -> None:
    """A path selects an inner object to edit; a path that leads to no object changes nothing."""
    raw = b' {"a" : {"b": {"c": 1, "d" :2}}, "e":[{"c":1}], "c":3} '
    assert replace_values(raw, {"d": b"9", "c": b"[]"}, "a", "b") == raw.replace(b": 1", b": []").replace(
        b":2", b":9"
    )
    assert replace_values(raw, {"c": b"9"}) == raw.replace(b"3", b"9")
    for path in (("x",), ("e",), ("a", "x"), ("c",)):
        assert replace_values(raw, {"c": b"9"}, *path) == raw
    assert replace_values(raw, {}) == raw


def test_keys_are_decoded() -> None:
    """A key that is written with escapes is returned decoded."""
    assert members(b'{"\\u0061\\n\\"":1}') == {'a\n"': b"1"}


@pytest.mark.parametrize("raw", [b'{"a":}', b"[}", b'{"a', b"[[", b'["x', b"[" * 30, b"[" * 30 + b"}"])
def test_text_that_is_not_json(raw: bytes) -> None:
    """Text that is not JSON raises an error and does not cause an endless loop."""
    with pytest.raises((ValueError, IndexError)):
        (members if raw[:1] == b"{" else elements)(raw)


def test_a_body_is_loaded() -> None:
    """Rule E1: the proxy loads a valid object with its values unchanged."""
    assert load_strict(b' {"model":"m","x":[1,{"a":null}],"u":"\\ud83d\\ude00"}\n') == {
        "model": "m",
        "x": [1, {"a": None}],
        "u": "\U0001f600",
    }


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b'{"a":1,"a":1}', "a"),
        (b'{"a":1,"\\u0061":2}', "a"),
        (b'{"x":{"b":1,"c":2,"b":3}}', "b"),
        (b'{"x":[[{"d":1,"\\u0064":1}]]}', "d"),
        (b'{"":1,"":2}', ""),
        ('{"' + "k" * 200 + '":1,"' + "k" * 200 + '":2}', "k" * 80),
    ],
)
def test_one_key_twice(raw: bytes | str, key: str) -> None:
    """Rule E1: the proxy refuses a key that occurs twice in one object, at any depth and in any spelling."""
    with pytest.raises(RequestError) as error:
        load_strict(raw.encode() if isinstance(raw, str) else raw)
    assert (error.value.status, error.value.code, error.value.param) == (400, "duplicate_key", key)
    assert json.dumps(key) in error.value.message


def test_one_key_in_two_objects() -> None:
    """The proxy accepts the same key in different objects."""
    assert load_strict(b'{"a":{"a":1},"b":[{"a":1},{"a":2}]}')["a"] == {"a": 1}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nope",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1,}',
        b"{'a':1}",
        b'{"a":"\\ud83d"}',
        b'{"a":"\xff"}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":1}{"b":2}',
        b'{"a":"\x01"}',
        b'{"a":01}',
        '{"a":1}'.encode("utf-16"),
    ],
)
def test_what_is_not_json(raw: bytes) -> None:
    """Rule E1: the proxy answers 400 to a body that is not strictly valid JSON, and says so."""
    with pytest.raises(RequestError) as error:
        load_strict(raw)
    assert (error.value.status, error.value.code) == (400, "invalid_json")
    assert "not valid JSON" in error.value.message


@pytest.mark.parametrize("raw", [b"[]", b'"a"', b"1", b"null"])
def test_what_is_not_an_object(raw: bytes) -> None:
    """Rule E1: the proxy refuses a body that is not a JSON object."""
    with pytest.raises(RequestError, match="must be a JSON object") as error:
        load_strict(raw)
    assert (error.value.status, error.value.code) == (400, "invalid_json")


@pytest.mark.parametrize("depth", [300, 1010, 5000])
def test_a_body_that_is_too_deep(depth: int) -> None:
    """The proxy refuses a body that is nested too deeply to be encoded again, and does not crash."""
    with pytest.raises(RequestError) as error:
        load_strict(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
    assert (error.value.status, error.value.code) == (400, "invalid_json")


def test_a_deep_body_that_can_be_written() -> None:
    """The proxy accepts a body with two hundred levels, which it can encode again."""
    orjson.dumps(load_strict(b'{"a":' + b"[" * 200 + b"]" * 200 + b"}"))


# Few keys, so that some repeat; the texts could mislead a search that counts quotes before colons.
_KEYS = st.sampled_from(["a", "b", 'a"', ":", '":', "\\", "é"])
_TRICKS = st.text(st.sampled_from(list('":\\ ,ua0')), max_size=6)


def _all_escaped(text: str) -> str:
    return '"' + "".join(f"\\u{ord(character):04x}" for character in text) + '"'


@st.composite
def _repeating(draw: st.DrawFn, depth: int = 2) -> tuple[bytes, bool]:
    """A JSON object in any spelling, and whether one of its objects names a key twice."""
    seen: set[str] = set()
    twice = False
    pairs = []
    for _ in range(draw(st.integers(0, 4))):
        key = draw(_KEYS)
        twice = twice or key in seen
        seen.add(key)
        spelled = json.dumps(key, ensure_ascii=draw(st.booleans()))
        if draw(st.integers(0, 5)) == 0:
            spelled = _all_escaped(key)
        blank = draw(st.sampled_from(["", "", "", " ", "\n", "\t", "\r"]))
        if depth and draw(st.booleans()):
            inner, inside = draw(_repeating(depth - 1))
            value, twice = inner.decode(), twice or inside
        else:
            text = draw(_TRICKS)
            value = draw(
                st.sampled_from(
                    [json.dumps(text), _all_escaped(text), '"\\u0075\\u0001"', "1.50", "null", "[]"]
                )
            )
        pairs.append(f"{spelled}{blank}:{draw(st.sampled_from(['', ' ']))}{value}")
    return ("{" + ",".join(pairs) + "}").encode(), twice


@given(_repeating())
@example((b'{"a" :1,"b":2,"b":"x"}', True))
@example((b'{"a":"\\u0022\\u0022","b":2,"b":3}', True))
@example((b'{"a":"\\u0022\\u0022\\u0075\\u0075","b":2,"b":3}', True))
@example((b'{"a":":","b":"\\":","b":3}', True))
def test_a_key_twice_is_found_in_every_spelling(case: tuple[bytes, bool]) -> None:
    """Rule E1: no text, blank or escape hides a repeated key, or makes a single key look repeated."""
    raw, twice = case
    if not twice:
        assert load_strict(raw) == json.loads(raw)
        return
    with pytest.raises(RequestError) as error:
        load_strict(raw)
    assert error.value.code == "duplicate_key"


def test_an_ordinary_body_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow search for repeated keys runs only on a body that may have some."""
    looked: list[bytes] = []

    def look(raw: bytes, **_: Any) -> None:
        looked.append(raw)

    monkeypatch.setattr(json, "loads", look)
    load_strict(b'{"model":"m","messages":[{"role":"user","content":"say \\"a\\": b"}], "n": 1.0}')
    assert looked == []
    load_strict(b'{"model":"\\u0022"}')
    assert looked == [b'{"model":"\\u0022"}']
