"""No command prints characters that act on a terminal or hide others, whoever wrote the text."""

import asyncio
import io
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_script import reply
from command_line import Here
from hostile_text import EVIL, checked
from in_process import in_thread
from looping import ECHO
from mcp_script import scripted, tool_definition
from raw_upstream import RawRequest, RawUpstream, Step, whole
from recorded_runs import fill, run
from rich.table import Table
from rich.text import Text
from running_proxy import make_config, running
from store_records import approval, grant
from waiting import until

from proxy.commands.approvals.deciding import watch
from proxy.commands.common import console
from proxy.commands.demo import show_event
from proxy.commands.fitting import Column, print_fitting
from proxy.commands.printing import say
from proxy.commands.safe_console import SafeConsole
from proxy.records.approvals import ApprovalEvent, ApprovalStatus, Decided
from proxy.store.options import StoreOptions
from proxy.store.sqlite.store import SqliteStore
from proxy.tools.contract.bounds import ArgumentBound, bounds_to_json

ONE = "appr_" + "0" * 32
GRANT = "grant_" + "0" * 32


def put_evil(path: Path) -> None:
    """Fill a record with text that clients, models and people wrote."""
    names = ("model", "caller", "upstream", "finish_reason", "error_code", "request_id", "spent")
    said: dict[str, Any] = dict.fromkeys((*names, "prompt_hash"), EVIL)
    said |= {"offered": (EVIL,), "withheld": {EVIL: EVIL}, "left_out": (EVIL,), "status": "failed"}
    fill(path, [run("run_1", **said)], tools=[EVIL])

    async def more() -> None:
        store = SqliteStore(path, StoreOptions(keep_days=0))
        await store.start()
        words: dict[str, Any] = {"caller": EVIL, "tool": f"shop__{EVIL}", "rule": EVIL, "key": EVIL}
        sent: dict[str, Any] = {"arguments": json.dumps({EVIL: EVIL}), "arguments_shown": {EVIL: EVIL}}
        late = {"created_at": 4e9, "expires_at": 5e9}
        done: dict[str, Any] = {"status": ApprovalStatus.DENIED, "reason": EVIL, "decided_by": EVIL}
        await store.put_approvals([approval(ONE, **words, **sent, **late)])
        await store.put_approvals([approval("appr_" + "1" * 32, **words, **sent, **late, **done)])
        given = {"caller": EVIL, "tool": EVIL, "rule": EVIL, "made_by": EVIL}
        bounds = bounds_to_json({EVIL: ArgumentBound(enum=(EVIL,))})
        two = approval("appr_" + "2" * 32, **words, **sent, **late)
        await store.put_approvals([two])
        yes = Decided(ApprovalEvent.APPROVE, EVIL, "api")
        await store.decide_approval(
            two, yes, 4e9, grant(GRANT, approval_id=two.id, **given, **late, bounds=bounds)
        )
        await store.aclose()

    asyncio.run(more())


RECORD: Any = [
    ("runs",),
    ("runs", "--json"),
    ("runs", "show", "run_1"),
    ("runs", "show", "run_1", "--content"),
    ("runs", "show", "run_1", "--json", "--content"),
    ("runs", "export"),
    ("usage", "--by", "model,key"),
    ("usage", "--by", "tool"),
    ("usage", "--by", "model,key,caller", "--json"),
    ("approvals", "list"),
    ("approvals", "list", "--all"),
    ("approvals", "list", "--all", "--json"),
    ("approvals", "show", ONE),
    ("approvals", "approve", ONE),
    ("approvals", "deny", ONE, "--reason", EVIL),
    ("approvals", "grants", "--all"),
    ("approvals", "grants", "--json"),
    ("approvals", "revoke", GRANT),
]


@pytest.mark.parametrize("command", RECORD, ids=" ".join)
def test_what_is_on_record(command: tuple[str, ...], tmp_path: Path, here: Here) -> None:
    """Commands that print from the record, as text or as JSON."""
    put_evil(tmp_path / "toolrelay.db")
    done = here(*command)
    assert (done.returncode, "owned" in done.stdout) == (0, True), done.stderr
    checked(done.stdout)
    checked(done.stderr)
    if "--json" in command or ("show" in command[1:2] and command[0] == "approvals"):
        for line in done.stdout.splitlines():
            json.loads(line)


def test_the_server_that_a_file_names(tmp_path: Path, here: Here) -> None:
    """What ``mcp import`` prints is TOML without such characters, and has the same values."""
    values = {"command": "x", "args": [EVIL], "cwd": EVIL, EVIL: 1}
    servers = {f"a{EVIL}": values, "b": {"command": "x", "env": {EVIL: "1", "A": f"${{{EVIL}}}"}}, EVIL: 3}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    done = here("mcp", "import", "mcp.json")
    checked(done.stderr)
    (found,) = tomllib.loads(checked(done.stdout))["mcp"]["servers"].values()
    assert (found["args"], found["cwd"]) == ([EVIL], EVIL)


MCP: Any = [
    ("mcp", "list"),
    ("mcp", "list", "--json"),
    ("mcp", "test", "files"),
    ("tools", "allow", "mcp__files__*", "--yes"),
    ("tools", "list"),
    ("tools", "list", "--json"),
    ("tools", "call", "mcp__files__read", "{}"),
    ("check",),
    ("check", "--probe"),
]


@pytest.mark.parametrize("broken", [False, True], ids=["answers", "fails"])
def test_what_mcp_servers_say(broken: bool, tmp_path: Path, here: Here) -> None:
    """Names, texts, schemas, results, errors and log lines of an MCP server, new and allowed."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": EVIL, "title": EVIL}}}
    read = tool_definition("read", EVIL, inputSchema=schema, title=EVIL, annotations={"title": EVIL})
    odd = tool_definition(f"odd{EVIL}", EVIL)
    answer: Any = {"result": {"content": [{"type": "text", "text": EVIL}], "isError": broken}}
    server = scripted(tmp_path, [read, odd], {"read": answer}, name="files", stderr=EVIL, instructions=EVIL)
    (tmp_path / "toolrelay.toml").write_text(
        f"""
[upstreams.default]
base_url = "replay:"
[policy]
allow = ["mcp__files__*"]
approve = []
[mcp.servers.files]
command = {json.dumps(server.command)}
args = {json.dumps(list(server.args))}
effects = {{"*" = "read_only"}}
"""
    )
    seen = ""
    for command in (*MCP, *MCP[:3]):
        done = here(*command)
        seen += checked(done.stdout) + checked(done.stderr)
    assert "owned" in seen


@pytest.mark.parametrize(
    "command",
    [("runs", "show", EVIL), ("approvals", "show", EVIL), ("explain", EVIL), ("tools", "call", EVIL, "{}"),
     ("serve", "--config", EVIL), ("mcp", "import", EVIL), ("keys", "revoke", EVIL),
     ("record", "--out", f"toolrelay.db/{EVIL}"), ("credentials", "login", EVIL),
     ("doctor", "--upstream", EVIL), ("runs", "replay", EVIL), ("approvals", "revoke", EVIL),
     ("approvals", "approve", EVIL)],
    ids=lambda command: " ".join(command[:2])[:12],
)  # fmt: skip
def test_errors_that_quote(command: tuple[str, ...], tmp_path: Path, here: Here) -> None:
    """An error that quotes an argument escapes it."""
    put_evil(tmp_path / "toolrelay.db")
    done = here(*command)
    assert done.returncode != 0
    checked(done.stdout)
    checked(done.stderr)


def test_what_a_command_forgets_to_escape(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines, tables and texts of every kind pass a barrier: nothing in them acts or begins a line."""
    cell = EVIL.partition("\n")[0]
    say(EVIL, f"{EVIL}!")
    assert len(checked(capsys.readouterr().out).splitlines()) == 2
    made = Table("id", cell, box=None)
    made.add_row(cell, Text(cell, style="bold"))
    shown = console()
    shown.print(made)
    shown.print(Text(cell))
    print_fitting(shown, [Column("a"), Column("b")], [[Text(cell), Text("b")]])
    assert checked(capsys.readouterr().out).count("owned") == 5


def test_styles_of_a_terminal_stay(capsys: pytest.CaptureFixture[str]) -> None:
    """The barrier leaves the escapes of rich's own styles alone."""
    shown = SafeConsole(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    shown.print(Text("a\x1b[2Jb", style="bold red"))
    assert isinstance(shown.file, io.StringIO)
    assert shown.file.getvalue() == "\x1b[1;31ma\\x1b[2Jb\x1b[0m\n"


async def test_what_approvals_watch_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``approvals watch`` prints each call that waits on one line."""
    await asyncio.to_thread(put_evil, tmp_path / "toolrelay.db")
    config = make_config("replay:", store={"url": f"sqlite:///{tmp_path / 'toolrelay.db'}"})
    printed: list[str] = []

    def has_printed() -> bool:
        printed.append(capsys.readouterr().out)
        return "owned" in "".join(printed)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch(config))
        await until(has_printed)
        task.cancel()
    (line,) = checked("".join(printed)).splitlines()
    assert ONE in line


def test_what_a_model_said_is_replayed(tmp_path: Path, here: Here) -> None:
    """``runs replay`` compares texts, calls and results that a model wrote, as text and as JSON."""

    async def record() -> str:
        turns = reply(EVIL, ("call_1", ECHO, json.dumps({"text": EVIL}))), reply(EVIL)
        store = {"url": f"sqlite:///{tmp_path / 'toolrelay.db'}", "content": "all"}
        async with (
            RawUpstream(*turns) as upstream,
            running(make_config(upstream.url, modules=("probe_tools",), store=store)) as proxy,
        ):
            answer = await proxy.ask({"model": "m", "messages": [{"role": "user", "content": EVIL}]})
            return answer.header("x-toolrelay-run") or ""

    run_id = asyncio.run(record())
    allowed = '[tools]\nmodules = ["probe_tools"]\n[policy]\nallow = ["probe_tools__*"]\n'
    (tmp_path / "toolrelay.toml").write_text(allowed)
    other = reply(f"{EVIL}, or not")
    for options in ((), ("--json",)):
        with in_thread(RawUpstream(other)) as upstream:
            for more in ((), ("--upstream", upstream.url)):
                done = here("runs", "replay", run_id, *options, *more)
                assert "owned" in checked(done.stdout), done.stderr
                checked(done.stderr)


@pytest.mark.parametrize("status", [200, 400])
def test_what_an_upstream_says_to_doctor(status: int, tmp_path: Path, here: Here) -> None:
    """``doctor`` quotes models, texts and errors of an upstream that nobody has checked yet."""

    def answer(request: RawRequest) -> Sequence[Step]:
        if request.method == "GET":
            return whole(json.dumps({"object": "list", "data": [{"id": EVIL, "object": EVIL}]}).encode())
        if status == 400:
            error = {"message": EVIL, "type": EVIL, "param": EVIL, "code": EVIL}
            return whole(json.dumps({"error": error}).encode(), status="400 No")
        return reply(EVIL, (EVIL, EVIL, EVIL))

    seen = ""
    with in_thread(RawUpstream(answer)) as upstream:
        (tmp_path / "toolrelay.toml").write_text(
            f'[upstreams.u]\nbase_url = "{upstream.url}"\napi_key = "env:KEY"\n'
        )
        for options in (("--yes",), ("--yes", "--json"), ("--yes", "--model", f"x{EVIL}"), ()):
            done = here("doctor", "--upstream", "u", *options, env={"KEY": "sk-provider-0123456789"})
            seen += checked(done.stdout) + checked(done.stderr)
    assert "owned" in seen


def test_what_happens_in_the_demo() -> None:
    """The demo prints each question, call, result and end of a run on one line."""
    for kind in ("run_started", "tool_finished", "run_finished"):
        for ok in (True, False):
            names = ("run_id", "preview", "name", "error_code", "status", "result_redacted")
            said = {**dict.fromkeys(names, EVIL), "arguments_redacted": {EVIL: EVIL}, "ok": ok}
            assert "\n" not in checked(show_event(kind, said))
