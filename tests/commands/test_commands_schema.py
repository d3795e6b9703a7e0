"""The JSON Schema of the configuration file, as an editor uses it."""

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from proxy.commands.cli import run
from proxy.config.text import initial_config

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def schema(capsys: pytest.CaptureFixture[str]) -> Any:
    """What the command prints."""
    assert run(["schema"]) == 0
    return json.loads(capsys.readouterr().out)


def faults(schema: Any, text: str) -> list[str]:
    """What an editor says about a file."""
    checker = jsonschema_rs.Draft7Validator(schema)
    # A date is a text for an editor.
    document = json.loads(json.dumps(tomllib.loads(text), default=str))
    return [error.message for error in checker.iter_errors(document)]


def test_files_that_are_right_have_no_fault(schema: Any) -> None:
    """The configuration that init writes, and those of the examples, fit the schema."""
    assert faults(schema, initial_config()) == []
    examples = sorted(PROJECT.glob("examples/**/*.toml"))
    assert examples
    for path in examples:
        if path.name == "toolrelay.toml":
            assert faults(schema, path.read_text()) == [], path
    assert (
        faults(schema, '[keys.a]\nsecret = "env:A"\nexpires = 2027-01-31\nlimits = {requests = ["5/minute"]}')
        == []
    )
    assert faults(schema, '[upstreams.a]\nmodels = {fast = "gpt-4o"}\ntools = "prompt"') == []


@pytest.mark.parametrize(
    "text",
    [
        "[server]\nprot = 1",
        '[server]\nport = "8080"',
        "[server]\nport = 99999",
        "[sever]",
        '[upstreams.a]\nwires = ["chatt"]',
        "[upstreams.a]\napi_key = 5",
        '[auth]\nmode = "key"',
        "[upstreams.a]\nmodels = 5",
        '[limits]\nrequests = "600/minute"',
    ],
)
def test_a_file_that_is_wrong_has_one(text: str, schema: Any) -> None:
    """Unknown settings, types, bounds and choices are known to the editor."""
    assert faults(schema, text)


def test_every_setting_is_explained(schema: Any) -> None:
    """An editor shows the meaning of each setting."""
    for name, section in schema["definitions"].items():
        for key, setting in section.get("properties", {}).items():
            assert "description" in setting or "$ref" in str(setting), f"{name}.{key}"
    assert "Secret(" not in json.dumps(schema)
