"""Repeated groups in regular expressions, which Python versions before 3.11.5 match wrongly."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from proxy.json import patterns
from proxy.json import splice as rawjson
from proxy.wires.stream import template as template

_GROUP_TAKEN_FOR_GOOD = re.compile(r"\)(?:[*+?]|\{[0-9,]*\})\+(?![,;])")


def anew(module: ModuleType) -> ModuleType:
    """Execute the module once more, with the current values of what it imports."""
    spec = importlib.util.find_spec(module.__name__)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    # A dataclass looks up its own module by name.
    sys.modules[module.__name__] = made
    try:
        spec.loader.exec_module(made)
    finally:
        sys.modules[module.__name__] = module
    return made


def test_a_group_is_repeated_in_one_place_only() -> None:
    """Elsewhere such a pattern would hang or cut a body wrongly with the Python of Debian 12."""
    home = Path(patterns.__file__)
    sources = [path for path in home.parents[1].rglob("*.py") if path != home]
    assert sources
    assert [path.name for path in sources if _GROUP_TAKEN_FOR_GOOD.search(path.read_text("utf-8"))] == []


@pytest.mark.parametrize("sound", [True, False])
def test_both_forms_read_the_same(monkeypatch: pytest.MonkeyPatch, sound: bool) -> None:
    """The pattern for older Python versions cuts a body and recognizes text exactly as the usual one does."""
    if sound and sys.version_info < (3, 11, 5):
        pytest.skip("this Python reads that form wrong")
    monkeypatch.setattr(patterns, "_SOUND", sound)
    cut, known = anew(rawjson), anew(template)
    deep = b'[1,"\\\\",' * 12 + b"{}" + b"]" * 12
    # msgspec refuses NaN, so that regular expressions cut this body.
    texts = [
        b"NaN",
        b'"x"',
        b'""',
        rb'"\\"',
        rb'"a \"b\" c"',
        rb'"{\\\"a\\\":\\\\\"}]"',
        rb'"\\\\\\\\\"["',
        deep,
    ]
    raw = b'{"a" : 1, "messages": [' + b" , ".join(texts) + b' ],"b":[{"c":[' + texts[4] + b"]}]}"
    members = cut.members(raw)
    assert cut.elements(members["messages"]) == texts
    assert list(members) == ["a", "messages", "b"]
    assert members["b"] == b'[{"c":[' + texts[4] + b"]}]"
    assert known._is_text("a \\n \\u00e9 é 😀".encode())
    assert not known._is_text(b"a \xf0\x9f")
