"""``mcp.import``: MCP servers from the configuration files of other programs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from proxy.base.errors import ConfigError
from proxy.commands.mcp.warnings import plain_secret_lines
from proxy.config.load import Config, find_faults, load_config

KEY = {"OPENAI_API_KEY": "sk-x"}
SECRET = "ghp_0123456789abcdefghijklmnop"


def loaded(folder: Path, *files: Any, env: Mapping[str, str] | None = None, more: str = "") -> Config:
    """Load a configuration that imports these files; a file is text, or a value that is written as JSON."""
    return load_config(written(folder, *files, more=more), {**KEY, **(env or {})})


def written(folder: Path, *files: Any, more: str = "") -> Path:
    """The path of a configuration that imports these files."""
    names = []
    for number, said in enumerate(files):
        is_toml = isinstance(said, str) and not said.startswith(("{", "["))
        names.append(f"file{number}.{'toml' if is_toml else 'json'}")
        (folder / names[-1]).write_text(said if isinstance(said, str) else json.dumps(said))
    path = folder / "toolrelay.toml"
    path.write_text(f"[mcp]\nimport = {json.dumps(names)}\n{more}")
    return path


def fault(folder: Path, *files: Any, env: Mapping[str, str] | None = None, more: str = "") -> str:
    """Return the only fault of such a configuration."""
    _, faults = find_faults(written(folder, *files, more=more), {**KEY, **(env or {})})
    (found,) = faults
    assert isinstance(found, ConfigError)
    assert "\n" not in str(found)
    assert SECRET not in str(found)
    return str(found)


def server(**said: Any) -> dict[str, Any]:
    """A file with one server, ``a``, which runs the command ``x`` unless ``said`` names another or a url."""
    return {"mcpServers": {"a": said if "url" in said else {"command": "x", **said}}}


def test_claude_desktop_and_claude_code(tmp_path: Path) -> None:
    """Commands and addresses are read with their environment and headers; variables are filled in."""
    servers = {
        "My Files!": {
            "command": "npx",
            "args": ["-y", "${PKG:-files}"],
            "env": {"TOKEN": "${FILES}", "LEVEL": "9"},
        },
        "web": {"type": "http", "url": "https://${HOST}/mcp", "headers": {"Authorization": "Bearer ${WEB}"}},
    }
    env = {"FILES": "secret-of-files", "WEB": "secret-of-web", "HOST": "x.example"}
    config = loaded(tmp_path, {"mcpServers": servers}, env=env)
    found = config.mcp.known()
    assert (found["my-files"].command, found["my-files"].args) == ("npx", ("-y", "files"))
    assert found["my-files"].env == {"TOKEN": "secret-of-files", "LEVEL": "9"}
    assert found["web"].url == "https://x.example/mcp"
    assert found["web"].headers == {"Authorization": "Bearer secret-of-web"}
    # The log masks what was filled in.
    assert {"secret-of-files", "Bearer secret-of-web"} <= set(config.secrets())
    assert "secret-of" not in repr(config)


def test_vs_code_cursor_gemini_and_codex(tmp_path: Path) -> None:
    """The files of several programs are read together, each in its own format."""
    vs_code = {"servers": {"db": {"command": "./db", "env": {"A": "${input:pass word}"}}}}
    cursor = {
        "mcpServers": {"c": {"command": "c", "cwd": "sub", "env": {"B": "${env:BEE}", "U": "${userHome}"}}}
    }
    gemini = {
        "mcpServers": {"g": {"httpUrl": "https://g.example", "timeout": 1500, "includeTools": ["read"]}}
    }
    codex = """
        [mcp_servers.x]
        url = "https://x.example"
        bearer_token_env_var = "TOKEN"
        tool_timeout_sec = 90
        env_http_headers = { x-team = "TEAM" }
        [mcp_servers.off]
        command = "off"
        enabled = false
    """
    env = {"DB_PASS_WORD": "p", "BEE": "b", "TOKEN": "t", "TEAM": "red", "HOME": "/home/me"}
    found = loaded(tmp_path, vs_code, cursor, gemini, codex, env=env).mcp.known()
    assert sorted(found) == ["c", "db", "g", "x"]
    # Relative paths start at the folder of the file.
    assert (found["db"].command, found["db"].env) == (str(tmp_path / "db"), {"A": "p"})
    assert (found["c"].cwd, found["c"].env) == (str(tmp_path / "sub"), {"B": "b", "U": "/home/me"})
    assert (found["g"].timeout_s, found["g"].tools) == (1.5, ("read",))
    assert (found["x"].timeout_s, found["x"].headers) == (90, {"x-team": "red", "authorization": "Bearer t"})


def test_a_secret_in_plain_text_is_taken_and_told(tmp_path: Path) -> None:
    """Claude Desktop has only plain values, so a secret among them is used, never shown, and warned about."""
    config = loaded(tmp_path, server(env={"GH_TOKEN": SECRET, "LEVEL": "9"}, args=["--token", SECRET]))
    (found,) = config.mcp.known().values()
    assert found.env == {"GH_TOKEN": SECRET, "LEVEL": "9"}
    assert SECRET in config.secrets()
    assert SECRET not in found.shown
    of_env, of_args = plain_secret_lines(config)
    assert "mcp.servers.a.env.GH_TOKEN is plain text in the imported file" in of_env
    assert "mcp.servers.a.args may contain a secret" in of_args
    assert SECRET not in of_env + of_args


def test_a_section_says_what_no_file_can(tmp_path: Path) -> None:
    """A section of toolrelay.toml adds effects and a timeout to an imported server."""
    more = '[mcp.servers.a]\neffects = {"*" = "read_only"}\ntimeout_s = 7\n'
    (found,) = loaded(tmp_path, server(), more=more).mcp.known().values()
    assert (found.command, found.effect_of("z"), found.timeout_s) == ("x", "read_only", 7)


def test_nothing_that_is_disabled_is_there(tmp_path: Path) -> None:
    """A disabled server is left out, also if a section of toolrelay.toml names it."""
    more = '[mcp.servers.a]\neffects = {"*" = "read_only"}\n'
    assert loaded(tmp_path, server(disabled=True), more=more).mcp.known() == {}


def test_what_looks_like_a_reference_is_a_value(tmp_path: Path) -> None:
    """In an imported file ``env:`` refers to a variable, but ``file:`` is ordinary text."""
    said = server(env={"DATABASE": "file:./dev.db", "OTHER": "env:FOO"})
    (found,) = loaded(tmp_path, said, env={"FOO": "foo"}).mcp.known().values()
    assert found.env == {"DATABASE": "file:./dev.db", "OTHER": "foo"}


def test_the_environment_may_name_the_files(tmp_path: Path) -> None:
    """``TOOLRELAY_MCP__IMPORT`` can name the files, too."""
    (tmp_path / "a.json").write_text(json.dumps(server()))
    path = tmp_path / "toolrelay.toml"
    path.write_text("")
    config = load_config(path, {**KEY, "TOOLRELAY_MCP__IMPORT": '["a.json"]'})
    assert list(config.mcp.servers) == ["a"]
    assert config.mcp.imports == (str(tmp_path / "a.json"),)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("{", 'mcp.import: "file0.json" is not valid JSON'),
        ("[]", 'mcp.import: "file0.json" has no servers'),
        ('{"mcpServers": 3}', 'mcp.import: "file0.json" has no servers'),
        ("x" * (2 << 20), 'mcp.import: "file0.toml" is larger than 1048576 bytes'),
        ("[" * 100_000, 'mcp.import: "file0.json" is not valid JSON'),
        ({"mcpServers": {str(n): {"command": "x"} for n in range(65)}}, "has more than 64 servers"),
        ({"mcpServers": {"a": 3}}, 'mcp.import: "file0.json": a: it is not a table'),
        (server(args="x"), 'mcp.import: "file0.json": a: its args is not a list'),
        (server(url="https://x.example", type="sse"), "a: it uses the older HTTP+SSE transport"),
        (server(envFile=".env"), "a: envFile is not supported"),
        (
            server(url="https://x.example", headers={"X": SECRET}),
            "a.headers.X: it may be a secret, and secrets may not be written here",
        ),
        (server(url="https://x.example", headers={"X": SECRET}), 'Write "${A_X}" there, and set A_X'),
        (server(url="wss://x.example"), "a: it uses a WebSocket, which is not supported"),
        (
            server(url=f"http://x.example/?token={SECRET}"),
            "http://x.example/?token=<hidden> is not encrypted",
        ),
        (server(env={"X": "${workspaceFolder}"}), "the variable ${workspaceFolder} is not known here"),
        (server(args=["${DIR}"]), "a.args[0]: the environment variable DIR is not set. Set DIR"),
        (server(args=["--key=${API_KEY:-x}"]), "API_KEY may be a secret. Pass it in env or headers"),
        (
            server(env={"TOKEN": "${GH}"}),
            "mcp.servers.a.env.TOKEN: the environment variable GH is not set (from file0.json)",
        ),
        (server(url="ftp://x.example"), "mcp.servers.a.url: is not a valid address"),
        (server(url="ftp://x.example"), "(from file0.json)"),
        (
            server(env={"A-B": "1"}),
            "mcp.servers.a.env: 'A-B' is not a valid name for an environment variable",
        ),
        (server(url="http://x.example"), "mcp.servers.a.url: http://x.example is not encrypted"),
    ],
)
def test_a_fault_names_the_setting_and_the_file(tmp_path: Path, said: Any, words: str) -> None:
    """A fault of an imported server is one line that says where it is and shows no possible secret."""
    assert words in fault(tmp_path, said)


@pytest.mark.parametrize(
    ("files", "more", "words"),
    [
        ([server()], '[mcp.servers.a]\ncommand = "y"', "defines the server a, and so does [mcp.servers.a]"),
        ([server(), server()], "", 'names a server a, which becomes a here, and so does a of "file0.json"'),
        (
            [{"mcpServers": {"My A": {"command": "x"}, "my-a": {"command": "x"}}}],
            "",
            'names a server my-a, which becomes my-a here, and so does My A of "file0.json"',
        ),
    ],
)
def test_a_conflict_names_both(tmp_path: Path, files: list[Any], more: str, words: str) -> None:
    """If two servers have the same name, the error names the places of both."""
    assert words in fault(tmp_path, *files, more=more)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('import = ["none.json"]', 'mcp.import: "none.json" does not exist, or is not a file'),
        ('import = ["/dev/zero"]', 'mcp.import: "/dev/zero" does not exist, or is not a file'),
        ('import = "mcp.json"', "mcp.import: got a string 'mcp.json'"),
        (f"import = {json.dumps(['x'] * 17)}", "mcp.import: names more than 16 files"),
        ('imports = ["x"]', "mcp.imports: there is no such setting"),
    ],
)
def test_the_setting_itself_is_checked(tmp_path: Path, line: str, words: str) -> None:
    """A wrong value of ``mcp.import`` is an error that names the setting."""
    path = tmp_path / "toolrelay.toml"
    path.write_text(f"[mcp]\n{line}\n")
    _, (found,) = find_faults(path, KEY)
    assert words in str(found)


def test_every_fault_of_a_file_is_told(tmp_path: Path) -> None:
    """All faulty servers of a file are reported, not only the first."""
    servers = {"a": 3, "b": {"command": "x"}, "c": {"command": "x", "args": 1}}
    _, faults = find_faults(written(tmp_path, {"mcpServers": servers}), KEY)
    assert [str(one).split(": ")[2] for one in faults] == ["a", "c"]


def test_a_missing_secret_leaves_its_server_out_where_none_is_needed(tmp_path: Path) -> None:
    """With need_secrets=False a server without its secret is left out."""
    path = written(tmp_path, server(env={"TOKEN": "${GH}"}))
    assert load_config(path, KEY, need_secrets=False).mcp.servers == {}
