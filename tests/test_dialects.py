"""Dialects are data: how the data is found, and that no other module contains any of it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from proxy.base.events import FinishReason, Usage
from proxy.records import rows
from proxy.rights.limit_rules import LimitKind
from proxy.wires.registry.table import BY_WIRE, SERVED

ENDPOINTS = SERVED.endpoints
DIALECTS = {known.dialect.name: known.dialect for known in ENDPOINTS}


@pytest.mark.parametrize("known", ENDPOINTS, ids=lambda known: f"{known.method} {known.path}")
def test_an_endpoint_is_found_by_its_own_path(known: object) -> None:
    """Each endpoint is found by its own path, and no other endpoint hides it."""
    endpoint = next(each for each in ENDPOINTS if each is known)
    path = endpoint.path.replace("{id}", "x_1").replace("{rest}", "a/b")
    assert SERVED.find(endpoint.method, path) is endpoint


@pytest.mark.parametrize(
    ("method", "path", "stored", "action"),
    [
        ("GET", "/responses/resp_1", "resp_1", "retrieve"),
        ("GET", "/responses/resp_1/", "resp_1", "retrieve"),
        ("GET", "/responses/compact", "compact", "retrieve"),
        ("DELETE", "/responses/resp_1", "resp_1", "delete"),
        ("POST", "/responses/resp_1/cancel", "resp_1", "cancel"),
        ("GET", "/responses/resp_1/input_items", "resp_1", "input_items"),
        ("GET", "/responses/resp_1/cancel", "", ""),
        ("PATCH", "/responses/resp_1", "", ""),
        ("GET", "/responses", "", ""),
        ("GET", "/responses/", "", ""),
        ("GET", "/responses/a/b/c", "", ""),
        ("GET", "/conversations/conv_1", "", ""),
        ("GET", "/files/responses/x", "", ""),
    ],
)
def test_what_is_stored_is_named_by_its_path(method: str, path: str, stored: str, action: str) -> None:
    """The path of a stored object gives its id and the action; any other path gives neither."""
    endpoint = SERVED.find(method, path)
    assert endpoint.action == action
    assert (endpoint.stored_id(path) if action else "") == stored


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/chat/completions"),
        ("POST", "/chat/completions/"),
        ("POST", "/Responses"),
        ("POST", "/models"),
        ("GET", "/modelsx"),
        ("POST", "/files"),
        ("", ""),
    ],
)
def test_what_is_not_known_is_of_no_kind(method: str, path: str) -> None:
    """An endpoint matches its whole path only, as it is written, and with its method."""
    assert SERVED.find(method, path).kind == "other"


def test_a_dialect_answers_where_it_says() -> None:
    """The path of each dialect with server tools is its only endpoint that generates."""
    generating = {known.dialect.name: known.path for known in ENDPOINTS if known.kind == "generate"}
    assert generating == {name: dialect.path for name, dialect in DIALECTS.items() if dialect.path}


def test_what_is_routed_or_counted_names_its_model() -> None:
    """An endpoint whose body decides where it goes or what it costs says where the model is named."""
    for known in ENDPOINTS:
        if known.body in ("routed", "json"):
            assert known.model, known.path


# ---------------------------------------------------------------- no other module has this data

PACKAGE = Path(__file__).resolve().parent.parent / "proxy"


@cache
def forbidden() -> frozenset[str]:
    """What only a dialect says: paths, content type, end mark and its own names of usage."""
    own = set(Usage.__struct_fields__)
    said = {known.path.partition("{")[0] for known in ENDPOINTS} - {"/"}
    for dialect in DIALECTS.values():
        names = {dialect.usage.received, dialect.usage.sent, dialect.usage.total} - own
        framing = dialect.framing
        said |= {framing.content_type, framing.end_text.decode(), framing.end_mark.decode().strip(), *names}
    return frozenset(said - {""})


def constants(path: Path) -> Iterator[tuple[int, str]]:
    """Every constant of text or bytes in a module, with its line, except docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    words = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in words:
            if isinstance(node.value, bytes):
                yield node.lineno, node.value.decode("latin-1")
            elif isinstance(node.value, str):
                yield node.lineno, node.value


def said_in(text: str) -> set[str]:
    """The entries of :func:`forbidden` in a text: as a word of their own, or as the end or a part of a path.

    A JSON pointer is no path.
    """
    if text.startswith("#/"):
        return set()
    return {
        said
        for said in forbidden()
        if re.search(("" if said[0] == "/" else r"(?<![\w.-])") + re.escape(said) + r"(?![\w-])", text)
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/responses", {"/responses"}),
        ("/v1/models?x=1", {"/models"}),
        ("/models?x=1", {"/models"}),
        ("it ends in [DONE], or not", {"[DONE]"}),
        ("response_models", set()),
    ],
)
def test_a_constant_is_searched_for_words(text: str, said: set[str]) -> None:
    """An entry counts inside of a longer text, but not inside of a longer word."""
    assert said_in(text) == said


def test_nobody_outside_of_the_wires_says_what_a_dialect_says() -> None:
    """Nothing outside of ``wires`` repeats what a dialect says, so a new dialect changes no other file."""
    found = [
        f"{path.relative_to(PACKAGE)}:{line} says {sorted(said)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.is_relative_to(PACKAGE / "wires")
        for line, text in constants(path)
        if (said := said_in(text))
    ]
    assert found == []


def _rows() -> set[str]:
    """The names of columns, finish reasons and limits, which are the proxy's own also where a dialect has
    the same name."""
    columns = {name for kind in vars(rows).values() for name in getattr(kind, "__struct_fields__", ())}
    columns |= {name for kind in vars(rows).values() for name in getattr(kind, "__dataclass_fields__", ())}
    return columns | {reason.value for reason in FinishReason} | set(get_args(LimitKind))


@cache
def members() -> frozenset[str]:
    """The members of requests and of turns by which the data of some dialect decides."""
    named: set[str] = set()
    for dialect in BY_WIRE.values():
        fields, turns = dialect.fields, dialect.turns
        named |= {fields.turns, *fields.tools[1:], *fields.deciding}
        named |= turns.ids | turns.volatile | turns.reasoning | turns.lists
    return frozenset(named - _rows())


SPEAKS_A_DIALECT = {
    "app/replaying/frozen.py": "answers a replay in Chat, from rows that have its form",
    "commands/doctor/checks.py": "a check has the name of the member that it tries",
    "relay/memory/hidden/old_marks.py": "reads what the last version stored, in the form of any dialect",
    "relay/starting/agents.py": "asks for agents in Chat",
}
"""Modules that write a dialect of their own choice, and why."""


def test_nobody_outside_of_the_wires_decides_by_a_member_of_a_dialect() -> None:
    """A name that only a dialect has stands nowhere else, and no body is asked there for any of its names."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        if path.is_relative_to(PACKAGE / "wires") or place in SPEAKS_A_DIALECT:
            continue
        said = [(line, text) for line, text in constants(path) if text in members() and "_" in text]
        found += [f"{place}:{line} says {text}" for line, text in said]
        found += [f"{place}:{line} reads {text}" for line, text in asked_of_bodies(path) if text in members()]
    assert found == []


def asked_of_bodies(path: Path) -> Iterator[tuple[int, str]]:
    """The members that a module takes by name from a variable ``payload``, with their lines."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript):
            holder, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            holder, key = node.func.value, node.args[0] if node.func.attr == "get" else None
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and _is_body(holder):
            yield key.lineno, key.value


def _is_body(holder: ast.expr) -> bool:
    return ast.unparse(holder).rpartition(".")[2] == "payload"
