"""Dialects are data: what is looked up in them, and that nobody else knows any of it."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.events import Usage
from proxy.wires.dialects.table import DIALECTS, ENDPOINTS, find_endpoint


@pytest.mark.parametrize("known", ENDPOINTS, ids=lambda known: f"{known.method} {known.path}")
def test_an_endpoint_is_found_by_its_own_path(known: object) -> None:
    """None stands in the way of another."""
    endpoint = next(each for each in ENDPOINTS if each is known)
    path = endpoint.path.replace("{id}", "x_1").replace("{rest}", "a/b")
    assert find_endpoint(endpoint.method, path) is endpoint


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
    """An id and what is asked of it; nothing for any other path."""
    endpoint = find_endpoint(method, path)
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
    """A path is one of a dialect's only whole, as it is written, and with its method."""
    assert find_endpoint(method, path).kind == "other"


def test_a_dialect_answers_where_it_says() -> None:
    """The path of each dialect with server tools is the one endpoint of it that generates."""
    generating = {known.dialect.name: known.path for known in ENDPOINTS if known.kind == "generate"}
    assert generating == {name: dialect.path for name, dialect in DIALECTS.items() if dialect.path}


def test_what_is_routed_or_counted_names_its_model() -> None:
    """Whose body decides where it goes, or what it costs, says so itself."""
    for known in ENDPOINTS:
        if known.body in ("routed", "json"):
            assert known.model, known.path


# ---------------------------------------------------------------- nobody else knows

PACKAGE = Path(__file__).resolve().parent.parent / "proxy"

SAID_ELSEWHERE = {
    "commands/doctor/check.py": {"[DONE]"},
    "commands/doctor/probe.py": {"/chat/completions", "/models", "text/event-stream"},
    "commands/runs/frozen.py": {"completion_tokens", "prompt_tokens"},
    "commands/runs/replay.py": {"/chat/completions"},
    "relay/memory/deletion.py": {"/responses/"},
    "relay/passthrough.py": {"text/event-stream"},
    "server/api/handlers.py": {"/embeddings", "/models", "/models/", "/responses", "/responses/input_tokens"},
    "server/api/models.py": {"/models"},
    "server/api/owned_stream.py": {"/conversations", "/responses", "text/event-stream"},
    "server/api/stored_responses.py": {"text/event-stream"},
    "server/telemetry/hooks.py": {"/models"},
    "upstreams/filtered_response.py": {"text/event-stream"},
    "upstreams/recorded/fixtures.py": {"/chat/completions", "/messages", "/responses"},
    "upstreams/recorded/recorder.py": {"text/event-stream"},
    "upstreams/recorded/replay.py": {
        "/chat/completions",
        "/messages",
        "/models",
        "/models/",
        "/responses",
        "text/event-stream",
    },
}
"""Modules that still say something of a dialect themselves.  This list may only become shorter."""


def forbidden() -> frozenset[str]:
    """What only a dialect says: paths, content type, end mark and the names of usage that are not ours."""
    own = {field.name for field in dataclasses.fields(Usage)}
    said = {known.path.partition("{")[0] for known in ENDPOINTS} - {"/"}
    for dialect in DIALECTS.values():
        names = {dialect.usage.received, dialect.usage.sent, dialect.usage.total} - own
        framing = dialect.framing
        said |= {framing.content_type, framing.end_text.decode(), framing.end_mark.decode().strip(), *names}
    return frozenset(said)


def constants(path: Path) -> Iterator[tuple[int, str]]:
    """Every text or bytes that stands in a module, with its line; docstrings are none."""
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


def test_nobody_outside_of_the_wires_says_what_a_dialect_says() -> None:
    """What stands in a dialect stands nowhere else, so that the next dialect changes no other file."""
    wanted = forbidden()
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if module.startswith("wires/"):
            continue
        for _, text in constants(path):
            if text.strip() in wanted:
                found.setdefault(module, set()).add(text.strip())
    assert found == SAID_ELSEWHERE
