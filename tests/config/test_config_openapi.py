"""The settings of APIs: what is refused, and what each fault says."""

from pathlib import Path

import pytest

from proxy.base.errors import ConfigError
from proxy.config.load import load_config
from proxy.config.openapi import known_apis

FILE = '[openapi.a]\nfile = "a"'

REFUSED = {
    "no operation": (f'{FILE}\noperations = ["get pets"]', "names no operation"),
    "no document": ("[openapi.a]", "needs file or url"),
    "two documents": ('[openapi.a]\nfile = "a"\nurl = "https://a.example"', "has both file and url"),
    "a bad name": ('[openapi.A_]\nfile = "a"', "is not a valid name"),
    "a password": ('[openapi.a]\nurl = "https://u:p@a.example/x"', "without a password"),
    "a base with a query": (
        '[openapi.a]\nfile = "a"\nbase_url = "https://a.example?x"',
        "not a valid address",
    ),
    "a base that steps up": (
        '[openapi.a]\nfile = "a"\nbase_url = "https://a.example/../"',
        "not a valid address",
    ),
    "no such connection": ('[openapi.a]\nfile = "a"\nconnection = "c"', "there is no connection 'c'"),
    "an unknown effect": ('[openapi.a]\nfile = "a"\neffects = {x = "none"}', "effects"),
    "a plain secret": ('[openapi.a]\nfile = "a"\nheaders = {authorization = "Bearer x"}', "headers"),
    "the name of an MCP server": (
        '[openapi.a]\nfile = "a"\n[mcp.servers.a]\nurl = "https://a.example"',
        "mcp.servers.a has the same name",
    ),
    "the connection of an MCP server": (
        '[openapi.a]\nfile = "a"\nconnection = "c"\n[credentials.c]\ntoken = "env:T"\n'
        '[mcp.servers.b]\nurl = "https://b.example"\nconnection = "c"',
        "already uses 'c'",
    ),
    "credentials in the clear": (
        f'{FILE}\nconnection = "c"\nbase_url = "http://a.example"\n[credentials.c]\ntoken = "env:T"',
        "is not encrypted",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused(case: str, tmp_path: Path) -> None:
    """Each fault names its setting and what is wrong."""
    text, words = REFUSED[case]
    path = tmp_path / "toolrelay.toml"
    path.write_text(f'[upstreams.a]\nbase_url = "replay:"\n{text}\n')
    with pytest.raises(ConfigError, match="openapi") as caught:
        load_config(path, {"T": "t"})
    assert words in str(caught.value)


def test_settings_become_an_api(tmp_path: Path) -> None:
    """Paths start at the configuration; secrets are filled in, and are among those that logs mask."""
    path = tmp_path / "toolrelay.toml"
    path.write_text(
        '[upstreams.a]\nbase_url = "replay:"\n[openapi.a]\nfile = "a.json"\noperations = ["GET /x"]\n'
        'headers = {x-key = "env:KEY", x-version = "2"}\nresults = "trusted"\n'
        'effects = {"POST /y" = "read_only"}\n'
    )
    config = load_config(path, {"KEY": "the-secret-key"})
    api = known_apis(config.openapi)["a"]
    assert api.file == str(tmp_path / "a.json")
    assert api.headers == {"x-key": "the-secret-key", "x-version": "2"}
    assert api.trusted_results
    assert api.effect_of("y", "POST /y") == "read_only"
    assert "the-secret-key" in config.secrets()
    assert "the-secret-key" not in repr(api)
    assert known_apis(load_config(path, {}, need_secrets=False).openapi) == {}
