"""Dialects are data: what is looked up in them, and that nobody else knows any of it."""

import pytest

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
