"""A wrong setting of an upstream's profile is named, with its place and what may stand there."""

from pathlib import Path

import pytest

from proxy.base.errors import ConfigError
from proxy.config.load import load_config

UPSTREAM = '[upstreams.u]\nbase_url = "https://api.example/v1"\napi_key = "env:KEY"\n'


def fault(folder: Path, text: str) -> str:
    """Return what is wrong with this configuration of an upstream."""
    file = folder / "toolrelay.toml"
    file.write_text(UPSTREAM + text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file, {"KEY": "sk-0123456789abcdef0123"})
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        ('provider = "opnai"', "provider", "openai"),
        ('limit_field = "max_length"', "limit_field", "max_completion_tokens"),
        ("max_output_tokens = 0", "max_output_tokens", "1"),
        ('efforts = ["huge"]', "efforts", "minimal"),
        ('sampling = ["heat"]', "sampling", "temperature"),
        ('without = ["tool_magic"]', "without", "parallel_tool_calls"),
        ("user_chars = -1", "user_chars", "0"),
        ('result_images = "perhaps"', "result_images", "true"),
        ("max_tols = 3", "max_tols", "max_tools"),
    ],
)
@pytest.mark.parametrize("table", ["upstreams.u.profile", 'upstreams.u.per_model."gpt-*".profile'])
def test_a_wrong_setting_is_named(table: str, line: str, place: str, words: str, tmp_path: Path) -> None:
    """The message names the setting below its table and shows what to write instead."""
    said = fault(tmp_path, f"[{table}]\n{line}\n")
    assert f"{table.replace(chr(34), '')}.{place}" in said.replace('"', ""), said
    assert words in said, said


def test_a_provider_holds_for_the_whole_upstream(tmp_path: Path) -> None:
    """A provider in the profile of a model is refused, and the message says where it belongs."""
    said = fault(tmp_path, '[upstreams.u.per_model."gpt-*".profile]\nprovider = "openai"\n')
    assert "set it in the upstream's profile" in said
