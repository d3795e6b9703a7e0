"""Settings from a ``.env`` file, ``PORT``, comma lists and ``--allow``."""

from pathlib import Path

import pytest

from proxy.base.errors import ConfigError
from proxy.config.load import Config, Options, load_config
from proxy.config.sources.dotenv import with_dotenv

KEY = {"OPENAI_API_KEY": "sk-test-openai"}


def load(folder: Path, text: str = "", *, options: Options | None = None, **env: str) -> Config:
    """Load a configuration."""
    path = folder / "toolrelay.toml"
    path.write_text(text)
    return load_config(path, {**KEY, **env}, options)


def test_a_file_holds_what_the_environment_does_not(tmp_path: Path) -> None:
    """Secrets and settings may stand in .env beside the configuration; the environment goes first."""
    (tmp_path / ".env").write_text(
        "# keys\nOPENAI_API_KEY=from-the-file\nexport MY_KEY='a $b #c'\nTOOLRELAY_SERVER__PORT=9001 # ours\n"
    )
    config = load(tmp_path, '[upstreams.a]\napi_key = "env:MY_KEY"')
    key = config.upstreams["a"].api_key
    assert key is not None
    assert key.reveal() == "a $b #c"
    assert config.server.port == 9001
    assert load(tmp_path, TOOLRELAY_SERVER__PORT="9002").server.port == 9002
    upstream = load(tmp_path).upstreams["default"].api_key
    assert upstream is not None
    assert upstream.reveal() == "sk-test-openai"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("A = b c ", "b c"),
        ("A=", ""),
        ("A=#x", ""),
        ("A=b#c", "b#c"),
        ("A=b #c", "b"),
        ('A="b # c" # d', "b # c"),
        ('A="b\\n\\"c\\\\"', 'b\n"c\\'),
        ("A='b\\n'", "b\\n"),
        ("export A=${B}", "${B}"),
        ("\ufeffA=b", "b"),
    ],
)
def test_how_a_line_is_read(line: str, value: str, tmp_path: Path) -> None:
    """Values have quotes or none, and nothing in them is expanded."""
    (tmp_path / ".env").write_text(line, encoding="utf-8")
    assert dict(with_dotenv(tmp_path, {})) == {"A": value}


@pytest.mark.parametrize(
    "line", ["hunter2", "A 1=hunter2", "1A=hunter2", "A='hunter2", 'A="hunter2"x', "=hunter2"]
)
def test_a_line_that_is_no_variable(line: str, tmp_path: Path) -> None:
    """The fault names file and line, and does not repeat what may be a secret."""
    (tmp_path / ".env").write_text(f"OK=1\n{line}\n")
    with pytest.raises(ConfigError, match=r"\.env, line 2: is not a variable") as caught:
        load(tmp_path)
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    """A file that is too large or no UTF-8 is a fault."""
    for raw in (b"A=\xff", b"A=" + b"x" * (1 << 18)):
        (tmp_path / ".env").write_bytes(raw)
        with pytest.raises(ConfigError):
            load(tmp_path)


def test_the_port_that_a_platform_gives(tmp_path: Path) -> None:
    """PORT is the port unless the file or a setting's own variable says another one."""
    assert load(tmp_path, PORT="9001").server.port == 9001
    assert load(tmp_path, "[server]\nport = 9002", PORT="9001").server.port == 9002
    assert load(tmp_path, PORT="9001", TOOLRELAY_SERVER__PORT="9003").server.port == 9003
    assert load(tmp_path, PORT="9001", options=Options(port=9004)).server.port == 9004
    assert load(tmp_path, PORT="").server.port == 8080
    with pytest.raises(ConfigError, match="from PORT"):
        load(tmp_path, PORT="tcp://10.0.0.1:80")
    with pytest.raises(ConfigError, match=r"server\.port"):
        load(tmp_path, PORT="99999")


def test_lists_have_commas_between(tmp_path: Path) -> None:
    """A list in the environment may be TOML, or words with commas between."""
    for text in ("core__*,web__*", " core__* , web__* ,", '["core__*", "web__*"]'):
        assert load(tmp_path, TOOLRELAY_POLICY__ALLOW=text).policy.allow == ("core__*", "web__*")
    assert load(tmp_path, TOOLRELAY_POLICY__ALLOW="core__*").policy.allow == ("core__*",)
    upstream = load(tmp_path, TOOLRELAY_UPSTREAMS__DEFAULT__WIRES="chat,anthropic").upstreams["default"]
    assert upstream.wires == ("chat", "anthropic")
    assert load(tmp_path, TOOLRELAY_LIMITS__REQUESTS="5/minute,50/day").limits.requests == (
        "5/minute",
        "50/day",
    )
    with pytest.raises(ConfigError, match=r"policy\.allow"):
        load(tmp_path, TOOLRELAY_POLICY__ALLOW='["core__*"')


def test_tools_that_the_command_line_allows(tmp_path: Path) -> None:
    """--allow adds to what the file and the environment allow; a pattern that is none is a fault."""
    options = Options(allow=("core__*", "web__search"))
    assert load(tmp_path, options=options).policy.allow == ("core__*", "web__search")
    text = '[policy]\nallow = ["web__search", "mcp__a__b"]'
    assert load(tmp_path, text, options=options).policy.allow == ("web__search", "mcp__a__b", "core__*")
    with pytest.raises(ConfigError, match="--allow"):
        load(tmp_path, options=Options(allow=("core__{}",)))
