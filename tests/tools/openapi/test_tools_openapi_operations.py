"""OpenAPI documents: which operations become tools, with which schemas, and what no document can do."""

import json
import time
from typing import Any

import pytest
from api_documents import KEY, body, document, operation, parameter, shop, users
from openapi_spec_validator import validate

from proxy.api.reference.admin_openapi import admin_openapi
from proxy.base.errors import ConfigError
from proxy.records.rows import ToolEffect
from proxy.tools.mcp.definitions import Definition, UnusableDefinition
from proxy.tools.openapi.api import Api
from proxy.tools.openapi.document import checked_base, read_document, server_url
from proxy.tools.openapi.operations import read_operations

TEXT = {"type": "string"}


def read(written: Any, **api: Any) -> tuple[dict[str, Definition], dict[str, str]]:
    """Read a document; return its usable operations, and the reasons for the others, by name."""
    found = read_operations(read_document(json.dumps(written).encode(), "openapi.a.file"), Api("a", **api))
    return {d.name: d for d in found.definitions}, {left.name: left.reason for left in found.left_out}


def one(described: dict[str, Any], method: str = "get", path: str = "/x", **more: Any) -> Definition:
    """Read a document with one operation."""
    made, left_out = read(document({path: {method: described}}, **more))
    assert not left_out
    return next(iter(made.values()))


def reason(described: dict[str, Any], method: str = "get", path: str = "/x", **more: Any) -> str:
    """Return why the only operation of a document is left out."""
    api = more.pop("api", {})
    made, left_out = read(document({path: {method: described}}, **more), **api)
    assert not made
    return next(iter(left_out.values()))


def test_the_documents_of_these_tests_are_valid() -> None:
    """A library of others takes the documents that stand for published ones."""
    for made in (shop("https://api.example.com/v1"), users("https://api.example.com")):
        validate(made)


def test_schemas_of_version_3_0_become_json_schema() -> None:
    """``nullable``, exclusive bounds, ``readOnly`` and references mean the same as in the document."""
    made, left_out = read(shop("https://api.example.com/v1"), connection="c")
    assert not left_out
    schema = made["putItem"].input_schema
    assert schema["required"] == ["id", "body"]
    assert schema["properties"]["body"] == {"$ref": "#/$defs/Item"}
    item = schema["$defs"]["Item"]
    assert item["required"] == ["name"]
    assert "id" not in item["properties"]
    assert item["properties"]["name"] == {"type": ["string", "null"]}
    assert item["properties"]["price"] == {"type": "number", "exclusiveMinimum": 0}
    assert item["properties"]["parts"] == {"type": "array", "items": {"$ref": "#/$defs/Item"}}
    order = made["postOrder"].input_schema["properties"]["body"]
    assert order["allOf"] == [
        {"type": "object", "properties": {"note": TEXT}},
        {"type": "object", "required": ["note"]},
    ]


def test_what_only_the_service_sets_is_not_required_in_another_part() -> None:
    """A ``readOnly`` property of one part of ``allOf`` is not required by another one."""
    parts = [{"$ref": "#/components/schemas/Base"}, {"required": ["id", "name"]}]
    base = {"type": "object", "properties": {"id": {"readOnly": True, **TEXT}, "name": TEXT}}
    made = one(
        operation("x", requestBody=body({"allOf": parts})), "post", components={"schemas": {"Base": base}}
    )
    assert made.input_schema["properties"]["body"]["allOf"][1] == {"required": ["name"]}
    assert made.input_schema["$defs"]["Base"]["properties"] == {"name": TEXT}


def test_schemas_of_version_3_1_stay() -> None:
    """JSON Schema stays, also what stands beside a reference; titles, which repeat names, are left out."""
    made, _ = read(users("https://api.example.com"))
    schema = made["update_user_users__user_id___patch"].input_schema
    user = schema["$defs"]["User"]["properties"]
    assert user["age"] == {"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "null"}]}
    assert user["kind"] == {"$ref": "#/$defs/Kind", "description": "What kind"}
    assert schema["properties"]["user_id"] == {"type": "integer"}


def test_an_id_that_models_cannot_write_gets_another() -> None:
    """The id of a tool has a hash where the operation's own name has two underscores or a path."""
    made, _ = read(users("https://api.example.com"))
    (definition,) = made.values()
    assert definition.id.startswith("openapi__a__update_user_users_user_id_patch_")
    unnamed = one({"responses": {}})
    assert unnamed.name == "GET /x"
    assert unnamed.id.startswith("openapi__a__GET_x_")


def test_names_that_differ_only_in_what_models_cannot_write_stay_apart() -> None:
    """``a``, ``a<`` and ``a>`` are three arguments; each says which parameter it is."""
    names = ("a", "a<", "a>", "filter[b]")
    made = one(operation("x", *(parameter(name, "query") for name in names)))
    properties = made.input_schema["properties"]
    assert properties == {
        "a": TEXT,
        "a_query": {**TEXT, "description": "a<"},
        "a_2": {**TEXT, "description": "a>"},
        "filter_b": {**TEXT, "description": "filter[b]"},
    }
    assert made.request is not None
    assert [sent["name"] for sent in made.request["parameters"]] == list(names)


def test_a_parameter_of_the_operation_replaces_that_of_its_path() -> None:
    """A parameter is known by its name and place."""
    item = {
        "parameters": [parameter("a", "query")],
        "get": operation("x", parameter("a", "query", {"type": "integer"})),
    }
    made, _ = read(document({"/x": item}))
    assert made["x"].input_schema["properties"] == {"a": {"type": "integer"}}


def test_headers_that_no_tool_may_set_are_no_arguments() -> None:
    """A document cannot make the model write ``Authorization``, ``Host`` or a cookie header."""
    names = ("Authorization", "Accept", "Content-Type", "Host", "Cookie", "X-Fine")
    made = one(operation("x", *(parameter(name, "header") for name in names)))
    assert list(made.input_schema["properties"]) == ["X-Fine"]
    assert "which no tool may set" in reason(operation("x", parameter("Host", "header", required=True)))


@pytest.mark.parametrize(
    "name", ["X-HTTP-Method-Override", "x-method-override", "X-HTTP-Method", "X_HTTP_Method_Override"]
)
def test_no_header_makes_another_method(name: str) -> None:
    """Frameworks read a POST with it as a DELETE, whose effect is not the one that was allowed."""
    assert one(operation("x", parameter(name, "header"))).input_schema["properties"] == {}
    assert "which no tool may set" in reason(operation("x", parameter(name, "header", required=True)))


def test_the_fields_of_a_form_are_pinned_where_objects_become_fields() -> None:
    """Those of the schema and its parts, wherever they stand; a form without encodings needs none."""
    parts = {
        "Base": {"type": "object", "properties": {"account": TEXT}},
        "Whole": {
            "allOf": [{"$ref": "#/components/schemas/Base"}],
            "properties": {"more": {"type": "object"}},
        },
    }
    for encoding, fields in (({"more": {"explode": True}}, ["account", "more"]), ({}, None)):
        form = body(
            {"$ref": "#/components/schemas/Whole"}, "application/x-www-form-urlencoded", encoding=encoding
        )
        made = one(operation("x", requestBody=form), "post", components={"schemas": parts})
        assert made.request is not None
        assert made.request["body"].get("fields") == fields


def test_only_operations_that_fit_are_read() -> None:
    """``operations`` fits ids and ``METHOD /path``; the others are as if they were not there."""
    for patterns in (("getItem",), ("GET /items/*",), ("get*",)):
        made, left_out = read(shop("https://api.example.com"), connection="c", operations=patterns)
        assert list(made) == ["getItem"]
        assert not left_out


def test_effects_come_from_the_method_unless_the_operator_says_otherwise() -> None:
    """GET and HEAD read; everything else has effects outside."""
    api = Api("a", effects={"POST /search": ToolEffect.READ_ONLY})
    assert api.effect_of("x", "GET /x") == "read_only"
    assert api.effect_of("x", "HEAD /x") == "read_only"
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert api.effect_of("x", f"{method} /x") == "external_side_effect"
    assert api.effect_of("find", "POST /search") == "read_only"


def with_schema(schema: Any) -> dict[str, Any]:
    """Return an operation with one parameter of this schema."""
    return operation("x", parameter("a", "query", schema))


LEFT_OUT: dict[str, tuple[dict[str, Any], str]] = {
    "a body in parts": (operation("x", requestBody=body(TEXT, "multipart/form-data")), "multipart/form-data"),
    "a body of bytes": (operation("x", requestBody=body(TEXT, "application/octet-stream")), "octet-stream"),
    "another document": (operation("x", {"$ref": "other.yaml#/a"}), "outside of the document"),
    "an address": (
        with_schema({"$ref": "https://e.example/s"}),
        "outside of the",
    ),
    "a missing part": (
        with_schema({"$ref": "#/components/schemas/A"}),
        "is not in",
    ),
    "a circle": (operation("x", {"$ref": "#/components/parameters/A"}), "in a circle"),
    "a style of another place": (operation("x", parameter("a", "query", style="matrix")), "has a style"),
    "an unknown place": (operation("x", parameter("a", "somewhere")), "unknown place"),
    "an own base": (with_schema({"$id": "https://e.example/"}), "$id"),
    "no schema": (with_schema({"type": "file"}), "cannot be used"),
    "no regular expression": (with_schema({"pattern": "("}), "cannot be used"),
    "deep schemas": (
        with_schema(json.loads('{"not":' * 40 + "{}" + "}" * 40)),
        "deeply",
    ),
    "hidden text": (with_schema({"enum": ["a\u200bb"]}), "invisible"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_cannot_be_used_leaves_out_its_operation(case: str) -> None:
    """An operation that cannot be used is left out with the reason."""
    described, words = LEFT_OUT[case]
    circle = {"parameters": {"A": {"$ref": "#/components/parameters/A"}}}
    assert words in reason(described, "post", components=circle)


def test_a_faulty_operation_takes_no_other_along() -> None:
    """Beside an operation that cannot be used, others can; and two of one name are both left out."""
    paths = {
        "/a": {
            "get": operation("a"),
            "post": operation("b", requestBody=7),
            "put": operation("c", {"$ref": 1}),
        },
        "/a2": {"get": operation("c", {"$ref": 1})},
        "/b": {"get": operation("twice"), "post": operation("twice")},
        "/c": {"$ref": "#/nowhere"},
        "/d?x": {"get": operation("d")},
        "/e/../f": {"get": operation("e")},
        "/g/{h}": {"get": operation("g")},
        "/i": {"get": operation("i", {"in": "query"})},
    }
    made, left_out = read(document(paths))
    assert list(made) == ["a"]
    assert set(left_out) == {"b", "c", "twice", "/c", "d", "e", "g", "i"}


def reference_to(number: int) -> dict[str, str]:
    """Return a reference to one of many schemas."""
    return {"$ref": f"#/components/schemas/S{number}"}


HOSTILE: dict[str, bytes] = {
    "references of references": json.dumps(
        document(
            {"/x": {"get": with_schema({"$ref": "#/components/schemas/S0"})}},
            components={
                "schemas": {
                    **{
                        f"S{n}": {"anyOf": [{"$ref": f"#/components/schemas/S{n + 1}"}] * 400}
                        for n in range(60)
                    },
                    "S60": TEXT,
                }
            },
        )
    ).encode(),
    "a pattern that takes for ever": json.dumps(
        document({"/x": {"get": with_schema({"pattern": "(a{1000}){1000}"})}})
    ).encode(),
}


def test_all_operations_together_have_a_bound_of_work() -> None:
    """A short document whose operations all read one large part again and again ends in bounded time."""
    large = {"type": "object", "properties": {f"p{n}": TEXT for n in range(2_000)}}
    paths = {f"/{n}": {"post": operation(f"o{n}", requestBody=body(reference_to(1)))} for n in range(500)}
    schemas = {"S0": large, "S1": {"allOf": [reference_to(0)] * 2_000}}
    written = json.dumps(document(paths, components={"schemas": schemas})).encode()
    whole = read_document(written, "openapi.a.file")
    assert whole.work.left <= 20_000_000
    whole.work.left = 100_000
    found = read_operations(whole, Api("a"))
    assert not found.definitions
    assert len(found.left_out) == 500
    assert all("the document takes too long to read" in left.reason for left in found.left_out)
    assert -1_000_000 < whole.work.left < 0


def test_the_variables_of_a_server_do_not_multiply() -> None:
    """An address of variables whose values are long is refused before it fills the memory."""
    variables = {"a": {"default": "b" * 1_000_000}, "b": {"default": "c" * 1_000_000}}
    servers = [{"url": "https://{a}{a}{a}", "variables": variables}]
    assert "the address of its server" in reason(operation("x", servers=servers))


def test_what_is_pinned_of_a_request_is_bounded() -> None:
    """The fields of a form are kept, so their encodings are bounded as schemas are."""
    fields = {f"f{n}": {"explode": False} for n in range(5_000)}
    form = body({"type": "object"}, "application/x-www-form-urlencoded", encoding=fields)
    assert "more than 65536 characters" in reason(operation("x", requestBody=form), "post")


@pytest.mark.parametrize("own", ["GET /x", "get /x", "GET\t/x", "x /x", "GET all"])
def test_an_id_passes_for_no_other_operation(own: str) -> None:
    """What looks like METHOD /path is no id: it would fit patterns that name other operations."""
    written = document({"/x": {"delete": operation(own)}})
    for pattern in ("GET *", "* /x", "GET /x"):
        made, _ = read(written, operations=(pattern,), effects={"GET *": ToolEffect.READ_ONLY})
        assert list(made) == (["DELETE /x"] if pattern == "* /x" else [])


def test_a_header_in_another_case_is_the_credentials_place() -> None:
    """Names of headers have no case, so a parameter ``x-api-key`` is no argument beside ``X-Api-Key``."""
    described = operation("x", parameter("x-api-key", "header"), security=[{"key": []}])
    made, _ = read(
        document({"/x": {"get": described}}, components={"securitySchemes": SCHEMES}), connection="c"
    )
    assert made["x"].input_schema["properties"] == {}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_bomb_is_defused(case: str) -> None:
    """What would become endless is left out after a bounded number of steps."""
    started = time.process_time()
    found = read_operations(read_document(HOSTILE[case], "openapi.a.file"), Api("a"))
    assert not found.definitions
    assert len(found.left_out) == 1
    assert time.process_time() - started < 30


def doubled(last: bytes) -> bytes:
    """Return a document in YAML with aliases of aliases, which stand for 2 ** 40 values."""
    lines = (b"l%d: &l%d [*l%d, *l%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 40))
    place = b"paths: {/x: {get: {operationId: x, parameters: [{name: a, in: query, schema: {%b}}]}}}"
    return b"openapi: 3.0.0\nl0: &l0 [x]\n" + b"".join(lines) + place % last


REFUSED: dict[str, tuple[bytes, str]] = {
    "aliases of schemas": (doubled(b"anyOf: *l39"), "its aliases stand for more than 2000000 values"),
    "aliases of defaults": (doubled(b"default: *l39"), "its aliases stand for more than 2000000 values"),
    "an alias of itself": (
        b"openapi: 3.0.0\npaths: {/x: {get: {operationId: x, x: &a {not: *a}}}}",
        "an alias leads to what contains it",
    ),
    "version 2": (b'{"swagger": "2.0"}', "2.0 (Swagger), and 3.0 or 3.1 is needed"),
    "a later version": (b'{"openapi": "3.2.0"}', "is not 3.0 or 3.1"),
    "no version": (b"{}", "is not 3.0 or 3.1"),
    "no object": (b"[]", "is not an object"),
    "broken JSON": (b'{"openapi"', "is not JSON"),
    "broken YAML": (b"openapi: 3.0.0\n- a", "is not YAML"),
    "a type of Python": (b"openapi: !!python/object:os.system {}", "is not YAML"),
    "merges": (b"openapi: 3.0.0\na: &a {}\nb: {<<: *a}", "a merge (<<)"),
    "no paths": (b"openapi: 3.0.0\npaths: []", "its paths are not an object"),
    "too large": (b" " * (16 << 20) + b"{}", "larger than"),
    "too many values": (b"[" + b"{}," * 2_100_000 + b"{}]", "more than 2000000 values"),
    "long YAML": (b"a: " + b"b" * (4 << 20), "in YAML"),
    "deep YAML": (b"[" * 100_000, "is not JSON"),
    "deep YAML in a block": (b"a: " + b"[" * 100_000, "is not YAML"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_document_that_cannot_be_used_is_refused(case: str) -> None:
    """The error names the setting, and says what is wrong."""
    raw, words = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        read_document(raw, "openapi.a.file")
    assert caught.value.setting == "openapi.a.file"
    assert words in caught.value.problem


def test_yaml_has_the_types_of_json() -> None:
    """``on``, dates and numbers with a leading zero are texts, as the specification wants."""
    root = read_document(
        b"openapi: 3.0.0\nx: {a: on, b: 2020-01-01, c: 012, d: 1.5, e: -3, f: ~, g: true}", "s"
    ).root
    assert root["x"] == {"a": "on", "b": "2020-01-01", "c": "012", "d": 1.5, "e": -3, "f": None, "g": True}


def test_the_address_is_that_of_the_innermost_server() -> None:
    """An operation's server comes before the document's; relative ones start at the document."""
    whole = document({}, server="https://{region}.example.com/v1/")
    whole["servers"][0]["variables"] = {"region": {"default": "eu"}}
    read_whole = read_document(json.dumps(whole).encode(), "s", "https://docs.example.com/a/openapi.json")
    assert server_url(read_whole, {}, {}) == "https://eu.example.com/v1"
    assert server_url(read_whole, {"servers": [{"url": "/v2"}]}) == "https://docs.example.com/v2"
    assert server_url(read_whole, {"servers": [{"url": "../v3"}]}) == "https://docs.example.com/v3"
    for url in (
        "",
        "/v1",
        "ftp://a",
        "https://a?b",
        "https://u:p@a",
        "https://a/{x",
        "https://a\\b",
        "https://ä",
    ):
        with pytest.raises(UnusableDefinition):
            checked_base(url)


SCHEMES = {
    "key": KEY,
    "query": {"type": "apiKey", "in": "query", "name": "k"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "k"},
    "bearer": {"type": "http", "scheme": "Bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "oauth": {"type": "oauth2", "flows": {}},
    "digest": {"type": "http", "scheme": "digest"},
    "mtls": {"type": "mutualTLS"},
    "host": {"type": "apiKey", "in": "header", "name": "Host"},
}
BEARER = {"where": "header", "name": "Authorization", "form": "bearer"}


@pytest.mark.parametrize(
    ("security", "place"),
    [
        ([{"key": []}], {"where": "header", "name": "X-Api-Key", "form": "token"}),
        ([{"query": []}], {"where": "query", "name": "k", "form": "token"}),
        ([{"cookie": []}], {"where": "cookie", "name": "k", "form": "token"}),
        ([{"bearer": []}], BEARER),
        ([{"oauth": ["a"]}], BEARER),
        ([{"basic": []}], {**BEARER, "form": "basic"}),
        ([{"digest": []}, {"key": []}], {"where": "header", "name": "X-Api-Key", "form": "token"}),
        ([], None),
        ([{}], None),
        (None, BEARER),
    ],
)
def test_credentials_go_where_the_document_says(security: Any, place: Any) -> None:
    """The first way that one connection can satisfy decides; if the document is silent, a bearer."""
    more = {} if security is None else {"security": security}
    made, _ = read(
        document({"/x": {"get": operation("x", **more)}}, components={"securitySchemes": SCHEMES}),
        connection="c",
    )
    assert made["x"].request is not None
    assert made["x"].request["credentials"] == place


@pytest.mark.parametrize("name", ["digest", "mtls", "host", "unknown"])
def test_credentials_that_cannot_be_sent_leave_out_the_operation(name: str) -> None:
    """Nothing is called without the credentials that it needs."""
    described = operation("x", security=[{name: []}])
    assert "it needs" in reason(described, components={"securitySchemes": SCHEMES}, api={"connection": "c"})


def test_several_credentials_need_headers() -> None:
    """All keys but one are set as headers; then the connection gives the other one."""
    both = {"one": KEY, "two": {**KEY, "name": "X-Second"}}
    paths = {"/x": {"get": operation("x", security=[{"one": [], "two": []}])}}
    written = document(paths, components={"securitySchemes": both})
    _, left_out = read(written, connection="c")
    assert left_out == {
        "x": "it needs several credentials at once (one, two): set all but one in openapi.a.headers"
    }
    made, _ = read(written, connection="c", headers={"x-second": "s"})
    assert made["x"].request is not None
    assert made["x"].request["credentials"]["name"] == "X-Api-Key"
    made, _ = read(written, headers={"x-second": "s", "X-API-KEY": "k"})
    assert made["x"].request is not None
    assert made["x"].request["credentials"] is None


def test_credentials_that_nobody_named_leave_out_the_operation() -> None:
    """Without a connection, an operation that needs one is left out, and the reason names the setting."""
    _, left_out = read(shop("https://api.example.com"))
    assert set(left_out.values()) == {"it needs credentials (key): name them in openapi.a.connection"}


def test_there_is_a_bound_of_operations() -> None:
    """What is beyond the bound is left out, and the reason names the setting."""
    paths = {f"/{n}": {"get": operation(f"o{n}")} for n in range(5)}
    found = read_operations(read_document(json.dumps(document(paths)).encode(), "s"), Api("a"), most=3)
    assert [d.name for d in found.definitions] == ["o0", "o1", "o2"]
    assert found.left_out[0].reason == "more than 3 operations fit openapi.a.operations: name fewer there"


def test_the_digest_changes_with_what_is_sent() -> None:
    """A definition with another server, path, body or place of its credentials is another one."""
    digests = {
        one(operation("x"), server="https://a.example").digest,
        one(operation("x"), server="https://b.example").digest,
        one(operation("x"), path="/y").digest,
        one(operation("x"), "delete").digest,
        one(operation("x", requestBody=body(TEXT)), "post").digest,
        one(operation("x", requestBody=body(TEXT, "text/plain")), "post").digest,
        one(operation("x", parameter("a", "query"))).digest,
        one(operation("x", parameter("a", "header"))).digest,
        one(operation("x", parameter("a", "query", style="form", explode=False))).digest,
    }
    assert len(digests) == 9


def test_what_is_pinned_is_read_again() -> None:
    """A definition of an operation is the same after it was written and read, with the same digest."""
    made, _ = read(shop("https://api.example.com"), connection="c")
    for definition in made.values():
        again = Definition.read(json.loads(json.dumps(definition.written())))
        assert again == definition
        assert again.digest == definition.digest


def test_toolrelays_own_document_is_read() -> None:
    """Every operation of the document at ``/admin`` that sends JSON is a tool."""
    made, left_out = read(admin_openapi(), connection="c", base_url="https://proxy.example.com")
    assert len(made) > 10
    assert not left_out
