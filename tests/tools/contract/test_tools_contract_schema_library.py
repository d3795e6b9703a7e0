"""Validators of foreign schemas: they read nothing from elsewhere, and their costs have bounds."""

import contextlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from proxy.base.errors import ConfigError
from proxy.tools.contract.provider import ArgumentsInvalid
from proxy.tools.contract.schemas.schema import check_schema
from proxy.tools.contract.schemas.schema_library import compile_schema, linear_pattern
from proxy.tools.contract.validation import SchemaValidator
from proxy.tools.mcp.definitions import read_listing

OPEN = {"type": "object", "properties": {}}


class Asked:
    """A server that counts its requests, and redirects each to itself."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        asked = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.paths.append(self.path)
                self.send_response(302)
                self.send_header("location", f"{asked.url}again")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def asked() -> Iterator[Asked]:
    """A server at the loopback address, which no schema may make the proxy ask."""
    made = Asked()
    yield made
    made.server.shutdown()
    made.server.server_close()


def naming(address: str) -> list[dict[str, Any]]:
    """Schemas that name an address in each keyword from which a library could load it."""
    field: list[dict[str, Any]] = [
        {"$ref": address},
        {"$dynamicRef": address},
        {"$recursiveRef": address},
        {"$schema": address},
        {"$id": address, "$schema": address},
        {"$id": address, "$ref": "other"},
        {"items": [{"$ref": address}]},
        {"dependencies": {"a": {"$ref": address}}},
        {"contentSchema": {"$ref": address}},
        {"additionalItems": {"$schema": address}},
    ]
    tops: list[dict[str, Any]] = [
        {"$schema": address},
        {"$schema": address, "$id": address},
        {"$id": address},
        {"$ref": address},
        {"$vocabulary": {address: True}},
        {"$defs": {"a": {"$schema": address}}, "$comment": "x"},
    ]
    dialects = ("", "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema")
    return [
        *({**OPEN, **top} for top in tops),
        *(
            {"type": "object", "properties": {"x": one}, **({"$schema": dialect} if dialect else {})}
            for one in field
            for dialect in dialects
        ),
    ]


def try_all(schema: dict[str, Any]) -> None:
    """Use a schema in every way in which the proxy uses one."""
    tool = {"name": "a", "inputSchema": schema}
    for definition in read_listing("toy", [tool, {**tool, "name": "b", "outputSchema": schema}]).definitions:
        validate = SchemaValidator(definition.model_schema)
        for arguments in ({}, {"x": 1}, {"x": [1, {"a": 1}]}):
            with contextlib.suppress(ArgumentsInvalid):
                validate(arguments)
    with contextlib.suppress(ConfigError):
        check_schema(schema, "")
        compile_schema(schema)


def test_no_schema_makes_the_proxy_ask_an_address(asked: Asked) -> None:
    """An address in ``$schema``, ``$ref``, ``$id`` or elsewhere in a schema is never asked."""
    for schema in naming(f"{asked.url}schema"):
        try_all(schema)
    assert asked.paths == []


def test_no_schema_makes_the_proxy_read_a_file(tmp_path: Path) -> None:
    """A file that a schema names is never opened: the open of a pipe without a writer would wait forever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for schema in naming(f"file://{pipe}"):
        try_all(schema)


def test_an_unknown_dialect_leaves_out_one_tool() -> None:
    """A tool whose ``$schema`` is unknown is left out with the place; its neighbours stay."""
    odd = {**OPEN, "$schema": "https://example.com/own"}
    below = {"type": "object", "properties": {"x": {"$schema": "file:///etc/passwd"}}}
    tools = [{"name": n, "inputSchema": s} for n, s in (("a", OPEN), ("b", odd), ("c", below), ("d", OPEN))]
    listing = read_listing("toy", tools)
    assert [one.name for one in listing.definitions] == ["a", "d"]
    assert [(one.name, one.reason.partition("parameters")[2]) for one in listing.left_out] == [
        ("b", ".$schema: is not a known dialect"),
        ("c", ".properties.x.$schema: is not a known dialect"),
    ]


@pytest.mark.parametrize(
    "dialect",
    [
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2020-12/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/schema#",
    ],
)
def test_known_dialects_are_held_to(dialect: str) -> None:
    """Each dialect that servers use is known: its metaschema and its rules for values apply."""
    schema = {"$schema": dialect, "type": "object", "properties": {"x": {"type": "string", "minLength": 2}}}
    check_schema(schema, "")
    validate = SchemaValidator(schema)
    assert validate({"x": "ab"}) == {"x": "ab"}
    with pytest.raises(ArgumentsInvalid):
        validate({"x": "a"})
    with pytest.raises(ConfigError, match=r"properties\.x\.minLength"):
        check_schema({**schema, "properties": {"x": {"minLength": "2"}}}, "")


def test_a_dialect_decides_what_a_keyword_means() -> None:
    """``exclusiveMinimum`` is a flag in draft 4 and a number in later drafts."""
    old = "http://json-schema.org/draft-04/schema#"
    schema = {"type": "object", "properties": {"x": {"minimum": 1, "exclusiveMinimum": True}}}
    check_schema({**schema, "$schema": old}, "")
    with pytest.raises(ArgumentsInvalid):
        SchemaValidator({**schema, "$schema": old})({"x": 1})
    with pytest.raises(ConfigError):
        check_schema(schema, "")


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"pattern": "a\\Z"}, "parameters.properties.x.pattern: is not a regular expression"),
        ({"pattern": "("}, "parameters.properties.x.pattern: is not a regular expression"),
        ({"pattern": "[^]"}, "regular expression"),
        ({"patternProperties": {"[^]": {}}}, "regular expression"),
        ({"pattern": "(?=a)\\w{1000}"}, "too large"),
        ({"pattern": "((a{100}){100}){100}"}, "too large"),
        ({"anyOf": [{"pattern": f"a{number}"} for number in range(101)]}, "more than 100 patterns"),
        ({"$id": "::::%zz"}, "an $id in it leads to nothing"),
        ({"$dynamicRef": "#nowhere"}, "a reference"),
        ({"$dynamicRef": "https://example.com/x"}, "a reference"),
    ],
)
def test_what_cannot_be_compiled_is_left_out(field: dict[str, Any], words: str) -> None:
    """A pattern, an ``$id`` or a reference that cannot be used leaves out its tool with the reason."""
    tools = [
        {"name": "a", "inputSchema": {"type": "object", "properties": {"x": field}}},
        {"name": "b", "inputSchema": OPEN},
    ]
    listing = read_listing("toy", tools)
    assert [one.name for one in listing.definitions] == ["b"]
    (left_out,) = listing.left_out
    assert words in left_out.reason


def test_reasons_can_be_printed() -> None:
    """Names and reasons of tools that are left out have no control characters."""
    odd = {"type": "object", "properties": {"\x1b[31m\u202e": {"$ref": "https://example.com/"}}}
    (left_out,) = read_listing("toy", [{"name": "\x1b]0;x\x07", "inputSchema": odd}]).left_out
    assert left_out.name == "\\x1b]0;x\\x07"
    assert "properties.\\x1b[31m\\u202e.$ref" in left_out.reason


def test_faults_of_recursive_unions_are_not_searched_without_end() -> None:
    """Arguments that a recursive union refuses are refused at once, however many branches there are."""
    again = {"$ref": "#/$defs/a"}
    branches = [{"properties": {"x": again, "k": {"const": number}}} for number in range(3)]
    schema = {"type": "object", "properties": {"x": again}, "$defs": {"a": {"anyOf": branches}}}
    check_schema(schema, "")
    validate = SchemaValidator(schema)
    deep: dict[str, Any] = {"k": 9}
    for _ in range(40):
        deep = {"x": deep}
    with pytest.raises(ArgumentsInvalid) as raised:
        validate(deep)
    assert raised.value.problems == ("the arguments: do not fit the schema",)
    with pytest.raises(ArgumentsInvalid, match='does not meet "anyOf"'):
        validate({"x": {"k": 9}})


def test_look_around_ends() -> None:
    """A pattern with look-around on a long text ends after a bounded number of steps, with a refusal."""
    schema = {"type": "object", "properties": {"x": {"pattern": "^(?=a)(a|aa)+(?!a)$"}}}
    check_schema(schema, "")
    with pytest.raises(ArgumentsInvalid):
        SchemaValidator(schema)({"x": "a" * 100_000 + "b"})


@pytest.mark.parametrize("pattern", ["(?=a)", "(", "(a)\\1"])
def test_a_linear_pattern_has_no_look_around(pattern: str) -> None:
    """Only patterns that match in linear time are compiled for bounds of the operator."""
    with pytest.raises(ValueError, match="look-around"):
        linear_pattern(pattern)
