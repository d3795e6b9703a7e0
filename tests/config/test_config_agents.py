"""The settings of agents: the files that they may name, and the error for each mistake."""

import json
from pathlib import Path

import pytest

from proxy.base.errors import ConfigError
from proxy.config.load import Config, load_config

KEY = {"OPENAI_API_KEY": "sk-test-openai"}
AGENT = '[agents.r]\ndescription = "Finds out."\n'
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}}


def load(folder: Path, text: str) -> Config:
    """The configuration of this text."""
    path = folder / "toolrelay.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, KEY)


def test_instructions_and_schemas_may_be_files(tmp_path: Path) -> None:
    """Instructions and schemas may be written in place or in files beside the configuration."""
    (tmp_path / "r.md").write_text("Be brief.\n", encoding="utf-8")
    (tmp_path / "r.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    lines = 'instructions = "file:r.md"\noutput_schema = "file:r.json"\ntools = ["core__*"]\n'
    agent = load(tmp_path, AGENT + lines).agents["r"]
    assert (agent.instructions, agent.output_schema) == ("Be brief.\n", SCHEMA)
    assert (agent.max_turns, agent.max_calls, agent.timeout_s, agent.max_result_bytes) == (6, 16, 120, 8192)
    table = 'instructions = "Be brief."\noutput_schema = {type = "object"}\n'
    assert load(tmp_path, AGENT + table).agents["r"].output_schema == {"type": "object"}


@pytest.mark.parametrize(
    ("lines", "setting", "words"),
    [
        ("", "agents.r.instructions", "is missing"),
        ('instructions = " "', "agents.r.instructions", "is empty"),
        ('instructions = "file:none.md"', "agents.r.instructions", "cannot be read: No such file"),
        ('instructions = "file:empty.md"', "agents.r.instructions", "the file is empty"),
        ('instructions = "a"\ntools = ["agent__x"]', "agents.r.tools", "agents cannot call agents"),
        ('instructions = "a"\ntools = ["core*;"]', "agents.r.tools", "is not a tool pattern"),
        ('instructions = "a"\nmax_turns = 0', "agents.r.max_turns", "greater than or equal to 1"),
        (
            'instructions = "a"\nmax_cost = 1\n[billing]\nprice_list = "off"',
            "agents.r.max_cost",
            "there are no prices",
        ),
        (
            'instructions = "a"\noutput_schema = "x"',
            "agents.r.output_schema",
            "must be a JSON Schema as a table",
        ),
        ('instructions = "a"\noutput_schema = {type = "array"}', "agents.r.output_schema", '"object"'),
        (
            'instructions = "a"\noutput_schema = "file:empty.md"',
            "agents.r.output_schema",
            "is not valid JSON",
        ),
        ('instructions = "a"\nmodle = "x"', "agents.r.modle", "there is no such setting"),
        (
            'instructions = "a"\nmodel = "x"\n[upstreams.default]\nmodels = ["y-*"]',
            "agents.r.model",
            "no upstream serves the model 'x'",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(
    tmp_path: Path, lines: str, setting: str, words: str
) -> None:
    """Each mistake is an error in one line that names the setting and says what is wrong."""
    (tmp_path / "empty.md").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"{AGENT}{lines}\n")
    line = str(caught.value)
    assert line.startswith(f"{setting}: ")
    assert words in line
    assert "\n" not in line
    assert caught.value.others == ()


@pytest.mark.parametrize("name", ["", "a__", "_a", "a" * 57, "ä", "a.b"])
def test_names_that_no_tool_can_have(tmp_path: Path, name: str) -> None:
    """An agent's name must be valid in the id of the agent's tool."""
    with pytest.raises(ConfigError, match="is not a valid agent name"):
        load(tmp_path, f'[agents."{name}"]\ndescription = "a"\ninstructions = "a"\n')
