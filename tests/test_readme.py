"""The README says what the code does: its tables are complete and its snippets work."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from datetime import datetime, tzinfo
from pathlib import Path
from typing import get_args

from require import require
from waiting import LATE_S, PATIENCE_S

from proxy.commands.demo import MODEL, QUESTIONS
from proxy.errors import ToolErrorCode
from proxy.events import ToolCall
from proxy.records import NativeCall, ToolInvocationRecord
from proxy.server.config.load import load_config
from proxy.server.config.text import settings_table
from proxy.server.telemetry.metric_families import FAMILIES
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.providers.modules import load_module
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.runner import Runner


class _Clock:
    """The machine's clock."""

    def now(self, tz: tzinfo) -> datetime:
        return datetime.now(tz)


class _NoLog:
    """A record that takes everything and keeps nothing."""

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        return

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        return

    def put_native_call(self, record: NativeCall) -> None:
        return


ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(language: str) -> list[str]:
    """Every fenced block of one language, in order."""
    return [text for found, text in _FENCE.findall(README) if found == language]


def section(title: str) -> str:
    """The text below a heading of the second level."""
    return re.split(r"^## ", README.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def codes_in_source() -> set[str]:
    """Every error code that is written anywhere in the package as a literal.

    That is: a keyword ``code=``, a class attribute ``code``, a dict's key "code", the default of
    ``getattr(…, "code", …)``.
    """
    found: set[str] = set()
    for path in (ROOT / "proxy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            values: list[ast.expr] = []
            match node:
                case ast.keyword(arg="code", value=value):
                    values = [value]
                case ast.ClassDef(body=body):
                    for statement in body:
                        match statement:
                            case ast.Assign(targets=[ast.Name(id="code")], value=value):
                                values.append(value)
                case ast.Dict(keys=keys, values=items):
                    for key, value in zip(keys, items, strict=True):
                        if isinstance(key, ast.Constant) and key.value == "code":
                            values.append(value)
                case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value="code"), default]):
                    values = [default]
            for value in values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found.add(value.value)
    return found


def test_settings_table_is_the_generated_one() -> None:
    """The table between the markers is exactly what the settings' own descriptions give."""
    shown = README.partition("<!-- settings -->\n")[2].partition("<!-- /settings -->")[0]
    assert shown == settings_table()


def test_every_error_code_is_explained() -> None:
    """Each code that the source can put into an error stands in the Errors section."""
    codes = codes_in_source() | set(get_args(ToolErrorCode))
    assert {"model_not_found", "upstream_broken", "duplicate_key", "upstream_malformed"} <= codes
    explained = set(re.findall(r"^\| `([a-z_]+)` \|", section("Errors"), re.MULTILINE))
    assert codes - explained == set()


def test_no_error_code_is_invented() -> None:
    """Each code in the tables of the Errors section is one that the source can produce."""
    explained = set(re.findall(r"^\| `([a-z_]+)` \|", section("Errors"), re.MULTILINE))
    assert explained - codes_in_source() - set(get_args(ToolErrorCode)) == set()


def test_every_metric_is_listed() -> None:
    """The table of metrics names each family that there is, and none that there is not."""
    table = section("Seeing what it does").partition("| metric |")[2].partition("\n\n")[0]
    named = {
        name for row in table.splitlines() for name in re.findall(r"`([a-z_]+)`", row.partition(" | ")[0])
    }
    assert named == {family.name for family in FAMILIES}


def test_demo_question_is_one_that_is_recorded() -> None:
    """The README's curl line asks the demo's own question of the demo's own model."""
    line = next(text for text in snippets("bash") if "curl -N" in text)
    body = json.loads(line.partition("-d '")[2].rpartition("'")[0])
    assert body["model"] == MODEL
    assert body["messages"] == [{"role": "user", "content": QUESTIONS[0][0]}]


def test_two_commands_are_of_the_promised_form() -> None:
    """A machine with Python alone gets from a clone to the demo, and to the tests, in one command."""
    commands = snippets("bash")
    start = "python3 -m venv .venv && .venv/bin/pip install "
    assert f"{start}. && .venv/bin/toolrelay demo\n" in commands
    assert f"{start}-e '.[test]' && .venv/bin/python -m pytest -n auto\n" in commands


def test_shell_snippets_parse() -> None:
    """Every shell snippet is one that a shell can read."""
    shell = shutil.which("bash") or shutil.which("sh")
    assert shell is not None
    for text in snippets("bash"):
        subprocess.run([shell, "-n"], input=text, text=True, check=True, timeout=PATIENCE_S)


def test_python_snippets_parse() -> None:
    """Every Python snippet compiles."""
    assert len(snippets("python")) >= 2
    for text in snippets("python"):
        compile(text, "README.md", "exec")


def test_javascript_snippets_parse(tmp_path: Path) -> None:
    """Every JavaScript snippet is a module that Node can read."""
    node = shutil.which("node")
    require("node", node is not None, "node is not installed")
    assert node is not None
    for number, text in enumerate(snippets("javascript")):
        path = tmp_path / f"snippet{number}.mjs"
        path.write_text(text, encoding="utf-8")
        subprocess.run([node, "--check", path], check=True, timeout=PATIENCE_S)


def test_configurations_load(tmp_path: Path) -> None:
    """Every TOML snippet is a configuration that this version takes."""
    assert snippets("toml")
    for number, text in enumerate(snippets("toml")):
        path = tmp_path / f"snippet{number}.toml"
        path.write_text(text, encoding="utf-8")
        names = ("OPENAI_API_KEY", *re.findall(r"env:([A-Z_]+)", text))
        secrets = {name: f"{name}-0123456789-abcdefghijklmnop" for name in names}
        config = load_config(path, secrets)
        written = tomllib.loads(text)
        assert list(config.policy.allow) == written.get("policy", {}).get("allow", [])
        assert list(config.prices) == list(written.get("prices", {}))


async def test_tool_of_ones_own_works(tmp_path: Path) -> None:
    """The README's tool has under 15 lines, loads as pasted, answers, and fails in its own words."""
    code = next(text for text in snippets("python") if "@tool" in text)
    assert len(code.splitlines()) < 15
    (tmp_path / "my_tools.py").write_text(code, encoding="utf-8")
    allow = next(text for text in snippets("toml") if "my_tools" in text)
    registry = await Registry.load(
        [load_module("my_tools.py", base=tmp_path, capabilities=Capabilities(clock=_Clock()))]
    )
    policy = Policy(allow=tomllib.loads(allow)["policy"]["allow"])
    runner = Runner(registry, policy, _NoLog(), None, _Clock())
    context = RunContext("run_1", 1, "test", "req_1")
    good = await runner.run(ToolCall("call_1", "my_tools__order_total", '{"order": "A-17"}', 0), context)
    bad = await runner.run(ToolCall("call_2", "my_tools__order_total", '{"order": "B-1"}', 1), context)
    assert (good.ok, json.loads(good.content)) == (True, {"total": 42.5})
    assert (bad.ok, bad.safe_message) == (False, "there is no order of this number")


def test_test_of_ones_own_passes(tmp_path: Path) -> None:
    """The README's test of the README's tool runs as pasted, and goes well."""
    for name, mark in (("my_tools", "@tool"), ("test_my_tools", "ToolTester(")):
        code = next(text for text in snippets("python") if mark in text)
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_tools.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LATE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_files_named_are_there() -> None:
    """Every path of the package that the README names exists."""
    named = set(re.findall(r"`(proxy/[a-z_/]+(?:\.py)?)`", README))
    assert len(named) >= 8
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
