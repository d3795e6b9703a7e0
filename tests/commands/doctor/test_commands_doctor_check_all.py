"""``check`` reports every fault at once; no fault hides another."""

import socket
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import NoReturn

import pytest
from closed_port import closed_port
from command_line import HINT, Here

from proxy.base.errors import ConfigError
from proxy.server.limits.opening import open_counters as real
from proxy.upstreams.recorded.replay import packaged_fixtures

MODULE = """
import nothing_of_that_name
"""
TWO_FAULTY = """
from proxy.tools import Redaction, tool

@tool(description="one", effect="read_only")
def without_redaction(name: str) -> str:
    return name

@tool(description="two", effect="read_only", redaction=Redaction(output=("*",)))
def without_a_type(name) -> str:
    return name

@tool(description="three", effect="read_only", redaction=Redaction(output=("*",)))
def sound(name: str) -> str:
    return name
"""


def faults_of(done: CompletedProcess[str]) -> list[str]:
    """Return the faults that a failed command printed, without the hint to ``explain``."""
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert all(line.startswith("toolrelay: ") for line in lines), done.stderr
    return [line.removeprefix("toolrelay: ") for line in lines if not line.startswith(HINT)]


def test_every_phase_is_told(tmp_path: Path, here: Here) -> None:
    """Faults of keys, tools, policy, store and upstreams are all reported, each in one line."""
    (tmp_path / "broken.py").write_text(MODULE)
    (tmp_path / "faulty.py").write_text(TWO_FAULTY)
    with closed_port() as port:
        (tmp_path / "toolrelay.toml").write_text(
            f"""
            [upstreams.paid]
            base_url = "http://127.0.0.1:{port}/v1"
            api_key = "env:NO_SUCH_KEY"
            [upstreams.recorded]
            base_url = "replay:nowhere"
            [keys.webui]
            secret = "env:NO_SUCH_SECRET"
            [tools]
            modules = ["broken.py", "absent.py", "faulty.py"]
            [policy]
            allow = ["core__*", "calendar__list_events"]
            [policy.arguments]
            "core__get_weather" = {{day = {{max = 3}}}}
            "broken__lookup" = {{name = {{max_length = 3}}}}
            [store]
            url = "sqlite:///no/such/folder.db"
            """
        )
        done = here("check")
    faults = faults_of(done)
    for words in (
        ("upstreams.paid.api_key", "NO_SUCH_KEY"),
        ("keys.webui.secret", "NO_SUCH_SECRET"),
        ("upstreams.recorded.base_url", "is not a folder"),
        ("tools.modules", "broken.py", "nothing_of_that_name"),
        ("tools.modules", "absent.py", "does not exist"),
        ("faulty", "without_redaction"),
        ("faulty", "without_a_type"),
        ("credentials.", "calendar__list_events"),
        ("core__get_weather", ".day", "has no such argument"),
        ("store.url", "does not exist"),
        ("upstreams.paid:", f"port {port} cannot be reached"),
    ):
        assert len([fault for fault in faults if all(word in fault for word in words)]) == 1, (words, faults)
    assert len(faults) == 11, faults
    # A tool whose module did not load is not called unknown; a tool that did load is listed.
    assert "broken__lookup" not in done.stderr
    assert "faulty__sound" in done.stdout
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".py", ".py", ".toml"]


def test_a_setting_that_is_wrong_hides_no_tool(tmp_path: Path, here: Here) -> None:
    """With a faulty setting, check still examines the rest; the setting's default causes no further fault."""
    (tmp_path / "broken.py").write_text(MODULE)
    (tmp_path / "toolrelay.toml").write_text(
        "[server]\nport = 'x'\nprot = 1\n"
        "[upstreams.a]\nbase_url = 3\n[upstreams.b]\nwires = ['chat']\nbase_url = 'replay:'\n"
        "[keys.webui]\nmodels = ['m']\n"
        "[tools]\nmodules = ['broken.py']\ntrace = 3\n"
    )
    faults = faults_of(here("check"))
    settings = [fault.partition(":")[0] for fault in faults]
    assert sorted(settings) == [
        "keys.webui.secret", "server.port", "server.prot", "tools.modules", "tools.trace",
        "upstreams.a.base_url",
    ]  # fmt: skip


def test_a_default_upstream_is_not_accused(tmp_path: Path, here: Here) -> None:
    """If no upstream can be read, check does not examine the default upstream instead."""
    for text in ("upstreams = 3\n", "[upstreams.a]\nbase_url = 3\n"):
        (tmp_path / "toolrelay.toml").write_text(text)
        (fault,) = faults_of(here("check", "--probe"))
        assert fault.startswith("upstreams")
        assert "expected" in fault


def test_each_variable_is_told(tmp_path: Path, here: Here) -> None:
    """A faulty environment variable hides neither another one nor a fault of the file."""
    (tmp_path / "broken.py").write_text(MODULE)
    (tmp_path / "toolrelay.toml").write_text(
        f"[upstreams.a]\nbase_url = 'replay:{packaged_fixtures()}'\n"
        "[tools]\nmodules = ['broken.py']\n[log]\nlevel = 3\n"
    )
    env = {
        "ENABLE_TOOLS": "perhaps",
        "TOOLRELAY_SERVER_PORT": "9000",
        "TOOLRELAY_SERVER__PROT": "9000",
        "TOOLRELAY_POLICY__MAX_RESULT_BYTES": "many",
    }
    faults = faults_of(here("check", env=env))
    for words in (
        ("tools.enabled", "ENABLE_TOOLS"),
        ("server.port", "TOOLRELAY_SERVER__PORT"),
        ("server.prot", "from TOOLRELAY_SERVER__PROT"),
        ("policy.max_result_bytes", "from TOOLRELAY_POLICY__MAX_RESULT_BYTES"),
        ("log.level", "in toolrelay.toml"),
        ("tools.modules", "broken.py"),
    ):
        assert len([fault for fault in faults if all(word in fault for word in words)]) == 1, (words, faults)
    assert len(faults) == 6, faults
    # ``serve`` reports all but the last: it loads no tool before the settings are right.
    assert faults_of(here("serve", env=env)) == [fault for fault in faults if "tools.modules" not in fault]


def test_probing_leaves_out_what_lacks_its_key(tmp_path: Path, here: Here) -> None:
    """An upstream without its key is reported once and not probed; the others are probed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        (tmp_path / "toolrelay.toml").write_text(
            f"[upstreams.a]\nbase_url = 'http://127.0.0.1:{listener.getsockname()[1]}/v1'\n"
            f"api_key = 'env:NO_SUCH_KEY'\n[upstreams.b]\nbase_url = 'replay:{packaged_fixtures()}'\n"
        )
        done = here("check", "--probe")
    faults = faults_of(done)
    assert [fault.partition(":")[0] for fault in faults] == ["upstreams.a.api_key", "upstreams.b"]


def test_a_section_that_nothing_needs_is_done_without(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the storage of limits cannot be opened, check still reports a broken tool, and only once."""

    def missing(url: str) -> NoReturn:
        raise ConfigError("limits.storage", "redis:// needs the redis library, which is not installed")

    monkeypatch.setattr(
        "proxy.app.compose.services.open_counters",
        lambda url, clock: missing(url) if url != "memory://" else real(url, clock),
    )
    (tmp_path / "broken.py").write_text(MODULE)
    (tmp_path / "toolrelay.toml").write_text(
        "[upstreams.b]\nbase_url = 'replay:'\n[tools]\nmodules = ['broken.py']\n"
        "[limits]\nstorage = 'redis://127.0.0.1:1'\n"
    )
    settings = [fault.partition(":")[0] for fault in faults_of(here("check"))]
    assert settings.count("tools.modules") == 1
    assert "limits.storage" in settings


def test_every_command_tells_all_faults_of_a_configuration(tmp_path: Path, here: Here) -> None:
    """``serve`` and ``runs`` report all faults of a configuration at once."""
    (tmp_path / "toolrelay.toml").write_text(
        """
        [server]
        port = "many"
        [upstreams.default]
        base_url = "ftp://nowhere"
        [limits]
        rate = "often"
        """
    )
    for command in (("serve",), ("runs", "list")):
        faults = faults_of(here(*command))
        assert len(faults) == len({fault.partition(":")[0] for fault in faults}) == 3, faults


def test_faults_come_before_what_follows_from_them(tmp_path: Path) -> None:
    """A module that does not load is reported before the patterns that match none of its tools."""
    (tmp_path / "broken.py").write_text(MODULE)
    (tmp_path / "toolrelay.toml").write_text(
        '[upstreams.recorded]\nbase_url = "replay:"\n[tools]\nmodules = ["broken.py"]\n'
        '[policy]\nallow = ["broken__*"]\n'
    )
    command = [sys.executable, "-m", "proxy", "check"]
    done = subprocess.run(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 1
    fault, pattern = done.stdout.index("nothing_of_that_name"), done.stdout.index('"broken__*" matches no')
    assert fault < pattern


def test_hooks_and_plugins_that_do_not_load_are_reported(tmp_path: Path, here: Here) -> None:
    """A hook that is missing, fails or is none, and a plugin that no package has, are one line each."""
    (tmp_path / "broken.py").write_text(MODULE)
    (tmp_path / "empty.py").write_text("hooks = []\nclass Hook: ...\n")
    (tmp_path / "none.py").write_text("x = 1\n")
    (tmp_path / "toolrelay.toml").write_text(
        '[upstreams.default]\nbase_url = "replay:demo"\n[plugins]\ntools = ["nope"]\ndialects = ["nada"]\n'
        '[hooks]\nmodules = ["absent.py", "broken.py", "none.py", "empty.py"]\n'
    )
    faults = [fault for fault in faults_of(here("check")) if fault.startswith(("hooks.", "plugins."))]
    for words in (
        ("hooks.modules", "absent.py", "does not exist"),
        ("hooks.modules", "broken.py", "nothing_of_that_name"),
        ("hooks.modules", "none", "has no hook"),
        ("plugins.tools", "nope", "no installed package has one"),
        ("plugins.dialects", "nada", "no installed package has one"),
    ):
        assert len([fault for fault in faults if all(word in fault for word in words)]) == 1, (words, faults)
    assert len(faults) == 5, faults
