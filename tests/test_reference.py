"""The reference agrees with the code: nothing is missing in it, and nothing is invented."""

import ast
import re
from collections.abc import Iterable
from typing import get_args

import pytest
from documents import DOCS, ROOT

from docgen.cast import drawn, play, words
from docgen.pages import OPENAPI, PARTS, pages
from proxy.base.error_codes import ERRORS
from proxy.base.errors import ToolErrorCode
from proxy.http.own_headers import FROM_CLIENTS, TO_CLIENTS
from proxy.tools.contract.error_codes import TOOL_ERRORS
from proxy.wires.registry.table import SERVED


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """What each variable is assigned by these nodes."""
    given: dict[str, list[ast.expr]] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                given.setdefault(name, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                given.setdefault(name, []).append(value)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=items)):
                for target, value in zip(names, items, strict=False):
                    if isinstance(target, ast.Name):
                        given.setdefault(target.id, []).append(value)
    return given


def _texts(value: ast.expr, given: dict[str, list[ast.expr]]) -> set[str]:
    """The texts that an expression can be: a literal, one of a condition's, or those of a variable."""
    match value:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp(body=body, orelse=other):
            return _texts(body, given) | _texts(other, given)
        case ast.BoolOp(values=values):
            return {text for each in values for text in _texts(each, given)}
        case ast.Name(id=name):
            # Without the name: a variable can be assigned from itself.
            left = {other: values for other, values in given.items() if other != name}
            return {text for each in given.get(name, ()) for text in _texts(each, left)}
    return set()


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ('RequestError(400, "x", code="a")', {"a"}),
        ('RequestError(400, "x", code="a" if late else "b")', {"a", "b"}),
        ('problem, code = "x", "a"\nRequestError(400, problem, code=code)', {"a"}),
        ('code = error.code or "a"\nRequestError(400, "x", code=code)', {"a"}),
        ('code = code or "a"\nRequestError(400, "x", code=code)', {"a"}),
        ("RequestError(400, error.message, code=error.code)", set()),
    ],
)
def test_a_code_is_seen_through_variables(source: str, codes: set[str]) -> None:
    """A code that reaches an error through a variable or a condition counts as written in the source."""
    tree = ast.parse(source)
    keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "code"]
    assert _texts(keywords[0].value, _assigned(tree.body)) == codes


def codes_in_source() -> set[str]:
    """Every error code that is written anywhere in the package, as a literal or in a variable.

    That is: a keyword ``code=``, a class attribute ``code``, a dict's key "code", the default of
    ``getattr(…, "code", …)``.
    """
    found: set[str] = set()
    for path in (ROOT / "proxy").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = _assigned(tree.body)
        functions = [
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        scopes = [(tree, constants), *((each, constants | _assigned(ast.walk(each))) for each in functions)]
        for node, given in ((node, given) for scope, given in scopes for node in ast.walk(scope)):
            values: list[ast.expr] = []
            match node:
                case ast.keyword(arg="code", value=value):
                    values = [value]
                case ast.ClassDef(body=body):
                    for statement in body:
                        match statement:
                            case ast.Assign(targets=[ast.Name(id="code")], value=value):
                                values.append(value)
                case ast.Dict(keys=keys, values=items):
                    for key, value in zip(keys, items, strict=True):
                        if isinstance(key, ast.Constant) and key.value == "code":
                            values.append(value)
                case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value="code"), default]):
                    values = [default]
            for value in values:
                found |= _texts(value, given)
    return found


@pytest.mark.parametrize("name", [*PARTS, OPENAPI])
def test_a_page_holds_what_the_code_says(name: str) -> None:
    """A generated page, or part of a page, is what the code makes; `python -m docgen` writes it."""
    assert (DOCS / name).read_text("utf-8") == pages(ROOT)[name]


def test_the_list_for_programs_names_pages_that_exist() -> None:
    """llms.txt, which `python -m docgen` writes, names only pages that exist."""
    named = re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text("utf-8"))
    assert len(named) >= 50
    assert [name for name in named if not (DOCS / name).exists()] == []


def test_the_picture_shows_the_demo() -> None:
    """The picture of the demo shows what the demo prints; `python -m docgen` draws it."""
    assert words(drawn((DOCS / "demo.svg").read_text("utf-8"))) == words(play())


def explained() -> set[str]:
    """The codes in the tables of the page on errors."""
    return set(
        re.findall(
            r"^\| (?:<a id=\"[a-z_-]+\"></a>)?`([a-z_]+)` \|",
            (DOCS / "reference/errors.md").read_text("utf-8"),
            re.MULTILINE,
        )
    )


def test_every_error_code_is_explained() -> None:
    """Each error code that the source contains is in the tables of the page on errors."""
    codes = codes_in_source() | set(get_args(ToolErrorCode))
    assert {"model_not_found", "upstream_broken", "duplicate_key", "upstream_malformed"} <= codes
    # A Responses upstream that fails without an error: its status stands for the code.
    assert codes - explained() == {"failed"}


def test_no_error_code_is_invented() -> None:
    """Each code in the tables of the page on errors is one that the source contains."""
    assert explained() - codes_in_source() - set(get_args(ToolErrorCode)) == set()


OWN_HEADERS = {name for header in (*FROM_CLIENTS, *TO_CLIENTS) for name in header.names}


def test_every_header_of_the_proxy_is_in_the_tables() -> None:
    """Each header `x-toolrelay-…` of the source is in the page on headers, and defined in one place."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "proxy").rglob("*.py"):
        for name in re.findall(r"\bx-toolrelay-[a-z-]*[a-z]", path.read_text("utf-8")):
            found.setdefault(name, set())
        for name in re.findall(r"\"(x-toolrelay-[a-z-]*[a-z])\"", path.read_text("utf-8")):
            found[name].add(path.name)
    assert len(found) >= 10
    assert found.keys() <= OWN_HEADERS
    assert {name for name, places in found.items() if places != {"own_headers.py"}} == set()


def test_every_header_with_a_key_is_in_the_tables() -> None:
    """The page on headers names exactly the headers in which a dialect carries a client's key."""
    named = {
        credential.header.lower() for known in SERVED.endpoints for credential in known.dialect.credentials
    }
    assert named == set(FROM_CLIENTS[0].names)


def _said() -> str:
    """All texts of the package in a row, with ``{}`` for the values that are filled in."""
    texts = []
    for path in (ROOT / "proxy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


FILLED = (
    ("OPENAI_API_KEY", "{}"),
    ("(Connection refused)", "({})"),
    ("8080 on 127.0.0.1", "{} on {}"),
    ("'.[web]'", "'.[{}]'"),
    ("/chat/completions", "{}"),
    ("for requests", "for {}"),
)
"""Parts of the messages as they are shown, and what the source has in their place."""


def test_each_message_of_troubleshooting_is_one_that_is_said() -> None:
    """Each message in the tables of the page on troubleshooting is one that the product writes."""
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    said = _said()
    tables = page.partition("## When an answer looks wrong")[0]
    shown = [
        text
        for cell in re.findall(r"^ *\| (.*?) \|", tables, re.MULTILINE)
        for text in re.findall(r"`([^`]+)`", cell)
    ]
    assert len(shown) >= 28
    for text in shown:
        general = text.removesuffix(" …")
        for filled, place in FILLED:
            general = general.replace(filled, place)
        assert general in said or text in said, text


def _answered() -> set[tuple[str, int, str]]:
    """The code, the status and the type of each error that the source gives as literals.

    An error without a code is named by its status.
    """
    found: set[tuple[str, int, str]] = set()
    for path in (ROOT / "proxy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Name(id="RequestError" | "error_response"),
                    args=[ast.Constant(value=int(status)), *_],
                ):
                    words = {word.arg: getattr(word.value, "value", ...) for word in node.keywords}
                    code, kind = words.get("code"), words.get("type", "invalid_request_error")
                    if code is not ... and isinstance(kind, str):
                        found.add((str(status) if code is None else str(code), status, kind))
    return found


def test_the_table_has_the_statuses_and_types_that_are_answered() -> None:
    """Each error has the status and the type that the page on errors gives."""
    answered = _answered()
    assert len(answered) >= 60
    wrong = {
        (name, status, kind)
        for name, status, kind in answered
        if name != "client_gone" and (status not in ERRORS[name].statuses or kind != ERRORS[name].type)
    }
    assert wrong == set()


def test_each_text_about_an_error_is_a_sentence() -> None:
    """Each text about an error begins with a capital letter or a code, and ends with a full stop."""
    texts = [text for error in ERRORS.values() for text in (error.when, error.remedy) if text]
    for text in [*texts, *TOOL_ERRORS.values()]:
        assert re.match(r"[A-Z`\[0-9]", text), text
        assert text.endswith((".", ".)", "`.")), text


def test_each_code_of_a_tool_is_explained_once() -> None:
    """The table of the codes that models read has every code and no other."""
    assert set(TOOL_ERRORS) == set(get_args(ToolErrorCode))
