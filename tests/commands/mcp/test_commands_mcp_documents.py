"""``toolrelay tools allow`` and ``openapi list`` for operations of OpenAPI documents, from file to call."""

import json
from pathlib import Path
from typing import Any

import pytest
from api_documents import body, document, operation, parameter, shop
from command_line import Here


def configure(folder: Path, written: Any, more: str = "", allow: str = '["openapi__shop__*"]') -> None:
    """A configuration with one document in a file beside it."""
    (folder / "shop.json").write_text(json.dumps(written))
    (folder / "toolrelay.toml").write_text(
        f"""
[upstreams.default]
base_url = "replay:"
[store]
url = "sqlite:///record.db"
[policy]
allow = {allow}
[openapi.shop]
file = "shop.json"
{more}
"""
    )


ONE = document(
    {
        "/pets/{{id}}".replace("{{", "{").replace("}}", "}"): {
            "get": operation("getPet", parameter("id", "path"))
        }
    }
)


def test_what_is_allowed_is_shown_first(here: Here, tmp_path: Path) -> None:
    """``tools allow`` prints the request, the place of its credentials, the effect, and the schema."""
    configure(
        tmp_path,
        shop("https://api.example.com/v1"),
        'connection = "shop"\n[credentials.shop]\ntoken = "env:T"',
    )
    done = here("tools", "allow", "openapi__shop__putItem", "--yes")
    assert done.returncode == 0, done.stderr
    for line in (
        "openapi__shop__putItem  (new)",
        "request:           PUT https://api.example.com/v1/items/{id}",
        "body:              application/json",
        "credentials:       of the connection shop, in the header X-Api-Key",
        "effect:            external_side_effect (by its method; set it in openapi.shop.effects)",
        "results:           untrusted (openapi.shop.results)",
        '"$ref": "#/$defs/Item"',
        "allowed: openapi__shop__putItem (in the record)",
    ):
        assert line in done.stdout
    listed = here("tools", "list", "--json", env={"T": "token"})
    tools = {tool["id"]: tool for tool in map(json.loads, listed.stdout.splitlines())}
    assert tools["openapi__shop__putItem"]["decision"] == "allowed"
    assert "openapi__shop__getItem" not in tools


def test_a_document_that_changes_changes_nothing_before_it_is_allowed(here: Here, tmp_path: Path) -> None:
    """A pinned operation stays; ``openapi list`` names what has changed, ``tools allow`` shows it."""
    configure(tmp_path, ONE)
    assert here("tools", "allow", "openapi__shop__*", "--yes").returncode == 0
    changed = document({"/pets/{id}": {"get": operation("getPet", parameter("id", "path"), summary="New")}})
    changed["servers"] = [{"url": "https://elsewhere.example.com"}]
    (tmp_path / "shop.json").write_text(json.dumps(changed))
    assert "openapi__shop__getPet: changed since it was allowed" in here("openapi").stdout
    listed = [json.loads(line) for line in here("tools", "list", "--json").stdout.splitlines()]
    (tool,) = [tool for tool in listed if tool["id"] == "openapi__shop__getPet"]
    assert tool["description"] == "getPet"
    again = here("tools", "allow", "openapi__shop__*", "--yes").stdout
    assert "CHANGED since it was allowed" in again
    assert '+  "base": "https://elsewhere.example.com",' in again


def test_without_a_yes_nothing_is_allowed(here: Here, tmp_path: Path) -> None:
    """Where nobody can be asked, no operation is allowed; and policy.allow alone offers none."""
    configure(tmp_path, ONE)
    assert here("tools", "allow", "openapi__shop__*").returncode == 1
    assert "getPet" not in here("tools", "list").stdout
    assert "toolrelay tools allow 'openapi__shop__*'" in here("check").stdout


def test_what_cannot_be_used_is_named(here: Here, tmp_path: Path) -> None:
    """An operation that cannot be used is named with the reason; the others are listed."""
    paths = {**ONE["paths"], "/up": {"post": operation("up", requestBody=body({}, "multipart/form-data"))}}
    configure(tmp_path, document(paths))
    listed = here("openapi", "list", "shop")
    assert listed.returncode == 0
    assert "shop: cannot use up: its body is multipart/form-data, but only JSON" in listed.stdout
    assert "openapi__shop__getPet: new" in listed.stdout
    assert here("tools", "allow", "openapi__shop__up").returncode == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"swagger": "2.0"}', "is of version 2.0 (Swagger)"), ("{", "is not JSON"), (None, "cannot be read")],
)
def test_a_document_that_cannot_be_read_is_a_fault(
    here: Here, tmp_path: Path, text: str | None, words: str
) -> None:
    """``openapi list``, ``tools allow`` and ``check --probe`` say what is wrong with a document."""
    configure(tmp_path, ONE)
    (tmp_path / "shop.json").unlink() if text is None else (tmp_path / "shop.json").write_text(text)
    for command in (("openapi", "list"), ("tools", "allow", "openapi__shop__*"), ("check", "--probe")):
        done = here(*command)
        assert done.returncode != 0
        assert "openapi.shop: its document cannot be used: " in done.stderr
        assert words in done.stderr


def test_a_document_inside_is_not_fetched(here: Here, tmp_path: Path) -> None:
    """A document is fetched as tools fetch: not from this machine, unless ``tools.networks`` opens it."""
    configure(tmp_path, ONE)
    text = (tmp_path / "toolrelay.toml").read_text()
    (tmp_path / "toolrelay.toml").write_text(
        text.replace('file = "shop.json"', 'url = "https://127.0.0.1:1/x.json"')
    )
    done = here("openapi")
    assert done.returncode == 1
    assert "cannot be fetched: this tool may not call that address" in done.stderr


def test_a_denied_operation_is_gone(here: Here, tmp_path: Path) -> None:
    """``tools deny`` removes a pin."""
    configure(tmp_path, ONE)
    here("tools", "allow", "openapi__shop__*", "--yes")
    assert here("tools", "deny", "openapi__shop__getPet").returncode == 0
    assert "getPet" not in here("tools", "list").stdout


def test_pins_can_stand_in_a_file(here: Here, tmp_path: Path) -> None:
    """``--file`` and ``mcp.pins`` hold operations as they hold tools of MCP servers."""
    configure(tmp_path, ONE)
    here("tools", "allow", "openapi__shop__*", "--yes", "--file", "pins.json")
    assert "getPet" not in here("tools", "list").stdout
    with (tmp_path / "toolrelay.toml").open("a") as file:
        file.write('[mcp]\npins = "pins.json"\n')
    assert "openapi__shop__getPet" in here("tools", "list").stdout
