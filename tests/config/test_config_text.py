"""The settings as people read them: the commented file and the table."""

import re
from pathlib import Path

import pytest

from docgen.tables import settings_table
from proxy.config.checks.faults import fields_of, tables_of
from proxy.config.load import Config, load_config
from proxy.config.text import initial_config

KEY = {"OPENAI_API_KEY": "sk-test-openai"}


def test_the_written_file_loads_as_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that ``toolrelay init`` writes loads as exactly the default configuration."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "toolrelay.toml"
    path.write_text(initial_config(), encoding="utf-8")
    assert load_config(path, KEY) == load_config(None, KEY)


def test_the_lines_that_are_commented_out_are_valid_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings have their defaults if all their comment marks are removed, and examples are left out."""
    monkeypatch.chdir(tmp_path)
    sections = initial_config().split("\n\n\n")[1].split("\n\n")
    lines = [line for text in sections if "For example:" not in text for line in text.splitlines()]
    used = [line[1:] for line in lines if re.match(r"#[^ ]", line)]
    # Not set: by the terminal, by the name of the model, and only for the provider's own address.
    used = [line for line in used if not re.match("(format|text_calls|api_key) = ", line)]
    assert len(used) > 150
    path = tmp_path / "toolrelay.toml"
    path.write_text("\n".join(used), encoding="utf-8")
    assert load_config(path, KEY) == load_config(None, KEY)


def test_what_is_written_is_short() -> None:
    """Beside comments the file has what nearly everybody sets, and nothing else."""
    active = [line for line in initial_config().splitlines() if line and not line.startswith("#")]
    assert [line.partition(" =")[0] for line in active] == [
        "[upstreams.default]", "base_url", "api_key", "[policy]", "allow"
    ]  # fmt: skip


def test_every_setting_is_explained_once_in_file_and_table() -> None:
    """Each setting has a description, a line in the file and one row in the table."""
    text, table = initial_config(), settings_table()
    for section, model, _ in tables_of(Config):
        for key, info in fields_of(model).items():
            assert info.description, f"{section}.{key} has no description"
            assert info.description.endswith((".", "…")) or "://" in info.description
            assert re.search(rf"(?m)^(#\s*)?\[?(\S+\.)?{key}\b", text), f"{section}.{key} is not in the file"
            assert table.count(f"| `{section}.{key}` |") == 1


def test_the_examples_are_valid(tmp_path: Path) -> None:
    """The commented example tables are a valid configuration once their secrets are set."""
    from proxy.config.load import find_faults

    lines = initial_config().splitlines()
    parts = "\n".join(lines).split("\n\n")
    examples = [
        line[1:]
        for part in parts
        # These belong to an OpenID provider, which auth.mode or ui.login names.
        if "  For example:\n" in part and "[ui.login]" not in part and "[auth.jwt" not in part
        for line in part.splitlines()
        if re.match("#[^ ]", line)
    ]
    assert len(examples) > 15
    path = tmp_path / "toolrelay.toml"
    path.write_text("\n".join(examples), encoding="utf-8")
    secrets = {"DUFFEL_TOKEN": "token", "WEBUI_KEY": "aB3dEf6hIj9lMn2pQr5tUv8xYz1cDe4g"}
    assert find_faults(path, {**KEY, **secrets})[1] == []


def test_the_table_is_markdown() -> None:
    """Every row has three cells."""
    rows = settings_table().splitlines()
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 4 for row in rows)
    assert "| `server.port` | `8080` |" in settings_table()
