"""The settings of forward proxies and authorities."""

from pathlib import Path

import pytest

from proxy.app.compose.upstreams import proxy_of
from proxy.base.errors import ConfigError
from proxy.config.load import Config, load_config
from proxy.config.shown import shown_settings

KEY = {"OPENAI_API_KEY": "sk-test-openai"}


def load(folder: Path, text: str = "", **env: str) -> Config:
    """Load a configuration."""
    path = folder / "toolrelay.toml"
    path.write_text(text)
    return load_config(path, {**KEY, **env})


def proxy(config: Config, name: str = "default") -> str | None:
    """The address of the proxy of an upstream."""
    made = proxy_of(name, config.upstreams[name], config.network)
    return made.url if made is not None else None


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy"])
def test_the_environment_names_proxies(name: str, tmp_path: Path) -> None:
    """Both spellings are read; the value is a secret, which no page or log shows."""
    config = load(tmp_path, **{name: "http://anna:hunter2@corp.test:3128", "NO_PROXY": "a.test, 10.0.0.0/8"})
    assert proxy(config) == "http://corp.test:3128"
    assert config.network.no_proxy == ("a.test", "10.0.0.0/8")
    assert "hunter2" not in str(shown_settings(config)) + repr(config)
    assert "YW5uYTpodW50ZXIy" in config.secrets()
    assert "http://anna:hunter2@corp.test:3128" in config.secrets()


def test_which_proxy_wins(tmp_path: Path) -> None:
    """An upstream's own goes first, then the file's, then the environment's; direct means none."""
    text = """
[network]
https_proxy = "http://file.test:1"
no_proxy = ["inner.test"]
[upstreams.a]
base_url = "https://a.test/v1"
[upstreams.b]
base_url = "https://b.test/v1"
proxy = "http://own.test:2"
[upstreams.c]
base_url = "https://c.test/v1"
proxy = "direct"
[upstreams.d]
base_url = "https://x.inner.test/v1"
[upstreams.e]
base_url = "http://localhost:8000/v1"
[upstreams.f]
base_url = "http://f.test/v1"
"""
    config = load(tmp_path, text, HTTPS_PROXY="http://env.test:3", HTTP_PROXY="http://plain.test:4")
    assert [proxy(config, name) for name in "abcdef"] == [
        "http://file.test:1",
        "http://own.test:2",
        *(None, None, None),
        "http://plain.test:4",
    ]


@pytest.mark.parametrize(
    ("text", "env", "setting", "words"),
    [
        ("", {"HTTPS_PROXY": "socks5://u:hunter2@p:1"}, "network.https_proxy", "HTTPS_PROXY"),
        ("", {"HTTP_PROXY": "https://p:1"}, "network.http_proxy", "not supported"),
        ('[network]\nhttp_proxy = "http://u:hunter2@p:1"', {}, "network.http_proxy", "env:NAME"),
        ('[network]\nhttps_proxy = "env:NONE"', {}, "network.https_proxy", "NONE is not set"),
        ('[tools]\nproxy = "env:P"', {"P": "ftp://hunter2"}, "tools.proxy", "http://HOST:PORT"),
        ('[mcp]\nproxy = "env:P"', {"P": "ftp://hunter2"}, "mcp.proxy", "http://HOST:PORT"),
        (
            '[upstreams.a]\nbase_url = "https://a.test/v1"\nproxy = "env:P"',
            {"P": "ftp://hunter2"},
            "upstreams.a.proxy",
            "http://HOST:PORT",
        ),
        (
            '[upstreams.a]\nbase_url = "https://a.test/v1"\nclient_key = "k.pem"',
            {},
            "upstreams.a",
            "no client_cert",
        ),
        (
            '[upstreams.a]\nbase_url = "http://a.test/v1"\nclient_cert = "c.pem"',
            {},
            "upstreams.a",
            "https:// only",
        ),
    ],
)
def test_faults(text: str, env: dict[str, str], setting: str, words: str, tmp_path: Path) -> None:
    """Each fault names the setting and what to write, and no fault shows a password."""
    with pytest.raises(ConfigError, match=words) as caught:
        load(tmp_path, text, **env)
    assert caught.value.setting == setting
    assert "hunter2" not in str(caught.value)


def test_paths_begin_at_the_file(tmp_path: Path) -> None:
    """Relative paths begin at the folder of the configuration."""
    text = '[network]\nca_file = "a.pem"\n[upstreams.a]\nbase_url = "https://a.test"\nclient_cert = "c.pem"'
    config = load(tmp_path, text)
    assert config.network.ca_file == str(tmp_path / "a.pem")
    assert config.upstreams["a"].client_cert == str(tmp_path / "c.pem")
