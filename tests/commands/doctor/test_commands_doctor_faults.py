"""The real command reports each fault in one line with setting and remedy, and exits with status 1."""

import ast
import importlib.util
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from command_line import HINT, Here
from waiting import LATE_S

import proxy
from proxy import __version__


def toolrelay(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, from ``folder``, with nothing of the test's environment."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "SYSTEMROOT") if key in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "proxy", *arguments],
        cwd=folder,
        env={**kept, **(env or {})},
        capture_output=True,
        text=True,
        timeout=LATE_S,
        check=False,
    )


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line of a failed command; at most the hint to ``explain`` follows it."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 1 or lines[1:] == [f"{HINT}{lines[0].split(': ')[1]}"], done.stderr
    assert lines[0].startswith("toolrelay: ")
    return lines[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nprot = 1", ["server.prot", "toolrelay.toml", "Did you mean server.port?"]),
        ("[server]\nport = 'x'", ["server.port", "a string 'x'", "a whole number"]),
        ("[server]\nport 1", ["toolrelay.toml, line 2, column 6", "not valid TOML"]),
        ("[upstreams.a]\napi_key = 'sk-literal0123'", ["upstreams.a.api_key", "env:NAME"]),
        (
            "[upstreams.me]\nbase_url = 'http://localhost:8080/v1'",
            ["upstreams.me.base_url", "own address", "--port"],
        ),
        ("[server]\nhost = '0.0.0.0'\nport = 0", ["auth.mode", 'auth.mode = "open"']),
        ("[server]\nworkers = 2", ["limits.storage", "server.workers = 2", "Name a Redis"]),
        ('[server]\n"a\\u001b[31m\\nb" = 1', ["server.a\\x1b[31m\\nb", "no such setting"]),
    ],
)
def test_a_faulty_file_stops_the_start(tmp_path: Path, text: str, words: list[str]) -> None:
    """serve answers a faulty configuration with one line that names setting and remedy."""
    (tmp_path / "toolrelay.toml").write_text(text)
    line = complaint(toolrelay(tmp_path, "serve", env={"OPENAI_API_KEY": "sk-test"}))
    for word in words:
        assert word in line
    assert "sk-literal0123" not in line


def test_check_names_every_fault(tmp_path: Path, here: Here) -> None:
    """check prints one line per fault, not only the first."""
    (tmp_path / "toolrelay.toml").write_text(
        "[server]\nport='x'\nprot=1\n[upstreams.a]\nbase_url='replay:'\n[tools]\ntrace=3\n"
    )
    done = here("check")
    assert done.returncode == 1
    *lines, hint = done.stderr.splitlines()
    assert len(lines) == 3
    assert hint == f"{HINT}server.port"


def test_a_missing_secret_names_the_ways_out(tmp_path: Path) -> None:
    """With no configuration and no key, serve says what could be done."""
    line = complaint(toolrelay(tmp_path, "serve", "--port", "0"))
    for word in ("upstreams.default.api_key", "OPENAI_API_KEY", "--upstream", "toolrelay demo"):
        assert word in line


def test_a_file_that_is_not_there(tmp_path: Path, here: Here) -> None:
    """If the file of --config is missing, the error names the file and how to make one."""
    line = complaint(here("serve", "--port", "0", "--config", "none.toml"))
    assert "none.toml" in line
    assert "toolrelay init" in line


def test_a_variable_that_is_no_setting(tmp_path: Path, here: Here) -> None:
    """An unknown TOOLRELAY_ variable is named with its nearest setting."""
    line = complaint(
        here("serve", "--port", "0", env={"TOOLRELAY_SERVER__PROT": "1", "OPENAI_API_KEY": "sk-test"})
    )
    assert "TOOLRELAY_SERVER__PROT" in line
    assert "server.port" in line


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_port_in_use(tmp_path: Path, command: str) -> None:
    """If the port is in use, the error names it and the option for another; no file is left behind."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = complaint(toolrelay(tmp_path, command, "--port", port, env={"OPENAI_API_KEY": "sk-test"}))
    assert f"port {port}" in line
    assert "--port" in line
    assert "in use" in line
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_is_not_ours(tmp_path: Path, here: Here) -> None:
    """If the host is no address of this machine, the error names ``server.host``."""
    env = {"OPENAI_API_KEY": "sk-test", "TOOLRELAY_AUTH__MODE": "open"}
    line = complaint(here("serve", "--port", "0", "--host", "192.0.2.77", env=env))
    assert "server.host" in line
    assert "is not an address of this machine" in line


def test_a_store_that_cannot_be(tmp_path: Path, here: Here) -> None:
    """If the folder of the store does not exist, the start fails and names ``store.url``."""
    env = {"OPENAI_API_KEY": "sk-test", "TOOLRELAY_STORE__URL": "sqlite:///no/such/r.db"}
    line = complaint(here("serve", "--port", "0", env=env))
    assert "store.url" in line
    assert "does not exist" in line


def test_fixtures_that_are_not_there(tmp_path: Path) -> None:
    """If the folder of a replay: address does not exist, the error names the upstream's setting."""
    for command in (["check"], ["serve", "--port", "0"]):
        env = {"TOOLRELAY_UPSTREAMS__REC__BASE_URL": "replay:nowhere"}
        line = complaint(toolrelay(tmp_path, *command, env=env))
        assert line.startswith("toolrelay: upstreams.rec.base_url: ")
        assert f"{tmp_path}/nowhere is not a folder" in line


def test_another_distribution_of_the_same_package_is_named(tmp_path: Path) -> None:
    """If proxy.py is installed, whose package is also named proxy, the error says how to remove it."""
    info = tmp_path / "site" / "proxy.py-2.4.8.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: proxy.py\nVersion: 2.4.8\n")
    line = complaint(toolrelay(tmp_path, "--version", env={"PYTHONPATH": str(tmp_path / "site")}))
    assert "proxy.py 2.4.8" in line
    assert "pip uninstall proxy.py" in line


def test_a_package_that_only_answers_to_the_name_is_named(tmp_path: Path) -> None:
    """If another package named proxy is imported in place of toolrelay, its path gives it away."""
    other = tmp_path / "proxy"
    other.mkdir()
    (other / "__init__.py").write_text("")
    code = (
        "import sys, importlib, proxy.commands as ours, types;other = types.ModuleType('proxy'); "
        f"other.__file__ = {str(other / '__init__.py')!r};from proxy.commands.doctor import "
        "dependencies; dependencies.proxy = other;print(dependencies.find_conflicting_package())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LATE_S, check=True
    )
    assert str(other) in done.stdout
    assert "pip uninstall" in done.stdout


def test_version_and_help(tmp_path: Path, here: Here) -> None:
    """--version prints the version alone, and --help lists the commands."""
    assert here("--version").stdout == f"toolrelay {__version__}\n"
    shown = here("--help")
    assert shown.returncode == 0
    for name in ("demo", "serve", "check", "init", "keys", "tools", "runs", "usage", "migrate", "record"):
        assert f" {name} " in shown.stdout


def test_init_writes_once(tmp_path: Path, here: Here) -> None:
    """init writes a configuration that serve can read, and never overwrites a file."""
    done = here("init")
    assert done.returncode == 0
    written = (tmp_path / "toolrelay.toml").read_text()
    assert "[server]" in written
    assert "exists already" in complaint(here("init"))
    assert (tmp_path / "toolrelay.toml").read_text() == written
    assert "cannot be written" in complaint(here("init", "no/such/folder.toml"))
    line = complaint(here("serve", "--port", "0"))
    assert "OPENAI_API_KEY" in line


def test_the_record_before_there_is_one(tmp_path: Path, here: Here) -> None:
    """Without a provider key, ``runs`` and ``migrate`` work and report a missing or empty record plainly."""
    assert "no record at" in complaint(here("runs"))
    assert not (tmp_path / "toolrelay.db").exists()
    env = {"TOOLRELAY_STORE__URL": "memory:"}
    assert "a store in memory" in complaint(here("runs", "list", env=env))
    assert "memory" in complaint(here("migrate", env=env))
    done = here("migrate")
    assert done.returncode == 0
    assert "applied 0001" in done.stdout
    assert (tmp_path / "toolrelay.db").stat().st_mode & 0o777 == 0o600
    assert "already up to date" in here("migrate").stdout
    assert here("runs").stdout == "No runs.\n"
    assert here("runs", "list", "--json").stdout == ""
    assert "no run has the id 'abc'" in complaint(here("runs", "show", "abc"))


def test_a_record_that_is_none(tmp_path: Path, here: Here) -> None:
    """If the file of the record is no database, ``runs`` reports it in one line."""
    (tmp_path / "toolrelay.db").write_bytes(b"this is no database, whatever its name" * 50)
    complaint(here("runs"))


def test_check_reports_mcp_servers_without_what_talks_to_them(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MCP that is configured but not installed is one fault, with the command that installs it."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name == "mcp" else find_spec(name, package),
    )
    (tmp_path / "toolrelay.toml").write_text(
        '[upstreams.default]\nbase_url = "http://127.0.0.1:9/v1"\napi_key = ""\n'
        '[mcp.servers.time]\ncommand = "uvx"\nargs = ["mcp-server-time"]\n'
    )
    lines = [line for line in here("check").stderr.splitlines() if line.startswith("toolrelay: mcp.servers:")]
    assert len(lines) == 1, lines
    assert "not installed" in lines[0]
    assert "[mcp]" in lines[0]


def test_an_older_python_gets_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the source says which Python it needs, before it imports anything that an older one could
    not read."""
    package = Path(proxy.__file__).parent
    for name in ("__init__.py", "__main__.py"):
        ast.parse((package / name).read_text(), feature_version=(3, 7))
    monkeypatch.setattr(sys, "version_info", (3, 10, 12, "final", 0))
    monkeypatch.setattr(sys, "version", "3.10.12 (main)")
    monkeypatch.setitem(sys.modules, "proxy.commands", None)
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(package / "__main__.py"), run_name="__main__")
    assert left.value.code == "toolrelay needs Python 3.11 or newer, and this is 3.10.12"
