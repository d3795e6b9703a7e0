"""``toolrelay demo``: tools on the real code path, without a key and without a network.

A recorded upstream replaces the model. The tools' sources, the clock and the weather service, stay at the
moment of the recording. Everything else is the server as ``serve`` runs it.
"""

import fcntl
import importlib.util
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from proxy.app.app import App, Overrides, create_app
from proxy.base.conversation import Conversation, Message, Text
from proxy.base.errors import how_to_install
from proxy.base.plain_text import counted, plain_text
from proxy.commands.common import CONFIG_NAME, MAX_LINE, say, start_logging
from proxy.commands.mcp.host import mcp_host
from proxy.commands.serve.run import run_server
from proxy.commands.serve.sockets import address_of, bind
from proxy.commands.ui import link
from proxy.config.load import Config
from proxy.config.mcp.servers import McpConfig, McpServerConfig, RedactConfig
from proxy.config.settings import (
    AuthConfig,
    LogConfig,
    PolicyConfig,
    ServerConfig,
    StoreConfig,
    ToolsConfig,
    UpstreamConfig,
)
from proxy.config.text import toml_value
from proxy.toolbox.clock import FixedClock
from proxy.toolbox.demo import units_server
from proxy.toolbox.demo.notes import MODULE, MODULE_FILE, NOTES_FILE
from proxy.toolbox.demo.recorded import RecordedHttpClient
from proxy.tools.mcp.definitions import read_listing
from proxy.tools.mcp.pins import Pin, write_pin_file
from proxy.tools.programs.monty import is_installed
from proxy.upstreams.base import Upstream
from proxy.upstreams.recorded.replay import ReplayUpstream, packaged_fixtures
from proxy.wires.anthropic.dialect import ANTHROPIC
from proxy.wires.mcp.dialect import MCP
from proxy.wires.registry.table import BY_WIRE
from proxy.wires.registry.wires import built_in_wires

MODEL = "qwen2.5-coder-0.5b-instruct-q4_k_m"
QUESTIONS = (
    ("What time is it in Berlin, and what is the weather there?", "calls two tools in one turn"),
    ("What time is it in Berlin right now?", "one tool"),
    ("What is the weather in Berlin?", "calls the other tool"),
    ("Write one sentence about rivers.", "calls no tool, answers with text"),
    ("Search the web: which rivers flow through Berlin?", "searches, and links to what it found"),
)
RECORDED_AT = datetime.fromisoformat("2026-11-21T14:05:00+01:00")
TOOLS = ("core__get_current_time", "core__get_weather", "web__search")
_ENGINE: Final = "https://search.example"
"""The address of the search engine; its answer is recorded, and nothing is sent there."""
LEAVE_NOTE = "demo__leave_note"
"""A tool whose calls need the approval of a person."""
NOTE = ("Leave a note for Ada: the build is green.", "Go on.")
"""The message that makes the model call it, and the message after the decision."""
CONVERT = "mcp__units__convert"
"""The tool of the bundled MCP server."""
_CONVERSION: Final = {"value": 26.2, "from": "mi", "to": "km"}
_MCP_VERSION: Final = "2025-11-25"

PROGRAM: Final = "How warm is it in Berlin, in Celsius and Fahrenheit?"
"""The question of a client that lets the model write programs."""
_PROGRAM_TOOLS: Final = [{"type": "code_execution_20260120", "name": "code_execution"}]
_EVENT_MS: Final = 45.0
"""The wait before each event of a hand-written answer, about as long as in those that were recorded."""
_MAX_SHOWN = 160
_SHOWN_ID = 8
"""Characters of a run's id after its ``run_``, with which the demo shows and finds it."""
_PREFIX = "toolrelay-demo-"
_LINK_S = 3600.0
"""Seconds for which the demo's link is valid: it may stay on a terminal for a while."""
_LOCK = "lock"
_PINS = "pins.json"


async def demo(port: int, *, speed: float) -> None:
    """Serve the demo on loopback until it is stopped; its record stays until the next demo starts.

    ``speed`` is how many times as fast as recorded the model answers; 0 leaves the pauses out.
    """
    sockets = bind("127.0.0.1", port)
    try:
        fixtures = packaged_fixtures()
        with _own_folder() as folder:
            config = demo_config(sockets[0].getsockname()[1], fixtures, folder)
            write_files(config, folder)
            start_logging(config, serves=True)
            address = address_of(sockets)
            async with mcp_host(config) as mcp_socket:
                app = await create_app(
                    config, overrides=_overrides(config, fixtures, folder, mcp_socket, speed)
                )
                await run_server(
                    app,
                    sockets,
                    drain_s=config.server.drain_s,
                    announce=lambda: say(*_ui_line(app, address), *_greeting(config, address, folder)),
                    draining=lambda: say(
                        f"stopping; the recorded runs stay in {folder} until the next demo starts"
                    ),
                )
    finally:
        for listener in sockets:
            listener.close()


@contextmanager
def _own_folder() -> Iterator[Path]:
    """Create a folder for the demo's record. It stays after the demo, so that its runs can still be shown.

    Folders of earlier demos are removed, unless they are still running: each demo holds a lock in its folder.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_unused(folder)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _remove_unused(folder: Path) -> None:
    """Remove the folder of this user's demo, if that demo has ended."""
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return
        with (folder / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # It is another user's, its demo is running, or it is just being created.
        return


def look_line(run_id: str, folder: Path) -> str:
    """Return the command that shows a run, which works in any terminal and folder."""
    return _command(folder, "runs", "show", run_id.removeprefix("run_")[:_SHOWN_ID])


def _command(folder: Path, *arguments: str) -> str:
    """Build a toolrelay command for the demo's record, with the program's full path."""
    called = Path(sys.argv[0])
    path = shutil.which(sys.argv[0])
    ours = [path] if called.name == "toolrelay" and path else [sys.executable, "-m", "proxy"]
    program = [str(Path(ours[0]).absolute()), *ours[1:]]
    return shlex.join([*program, *arguments, "--config", str(folder / CONFIG_NAME)])


def demo_config(port: int, fixtures: Path, folder: Path) -> Config:
    """Build the demo's configuration, without reading a file or the environment.

    It has an MCP server if the library for that is installed.
    """
    servers = {}
    if importlib.util.find_spec("mcp") is not None:
        servers["units"] = McpServerConfig(
            command=sys.executable,
            args=("-P", "-m", units_server.__name__),
            effects={"*": "read_only"},
            redact=RedactConfig(output=("*",)),
        )
    return Config(
        server=ServerConfig(port=port, drain_s=5),
        # Clients of every dialect use the same recorded model.
        upstreams={"demo": UpstreamConfig(base_url=f"replay:{fixtures}", api_key=None, wires=("chat",))},
        policy=PolicyConfig(
            allow=(*TOOLS, LEAVE_NOTE, *([CONVERT] if servers else [])), approve=(LEAVE_NOTE,)
        ),
        tools=ToolsConfig(
            modules=(str(folder / MODULE_FILE),),
            web_search="searxng",
            base_urls={"web_search": _ENGINE},
            programs="auto" if is_installed() else "off",
        ),
        mcp=McpConfig(serve=True, servers=servers, pins=str(folder / _PINS) if servers else ""),
        # Keep all content, so that its user can inspect it; the next demo deletes it together with its key.
        store=StoreConfig(url=f"sqlite:///{folder / 'demo.db'}", content="all"),
        # The demo reaches nothing outside, and its commands must work when pasted.
        auth=AuthConfig(mode="open"),
        log=LogConfig(level="warning"),
    )


def write_files(config: Config, folder: Path) -> None:
    """Write the files of the demo into its folder: the module of a tool, the pins and a configuration.

    Later commands use that configuration to show its runs. ``runs replay`` loads the same tools with it.
    """
    (folder / MODULE_FILE).write_text(MODULE, "utf-8")
    if config.mcp.servers:
        write_pin_file(folder / _PINS, _pins(config))
    sections = {
        "store": {"url": config.store.url, "content": config.store.content},
        **{f"upstreams.{name}": _changed(upstream) for name, upstream in config.upstreams.items()},
        "policy": _changed(config.policy),
        "tools": _changed(config.tools),
        "mcp": {"serve": config.mcp.serve, "pins": config.mcp.pins},
        **{f"mcp.servers.{name}": _changed(server) for name, server in config.mcp.servers.items()},
    }
    lines = ["# What the demo served, for the commands that look at its runs."]
    for section, settings in sections.items():
        lines += ["", f"[{section}]", *(f"{key} = {toml_value(value)}" for key, value in settings.items())]
    (folder / CONFIG_NAME).write_text("\n".join(lines) + "\n", "utf-8")


def _changed(section: BaseModel) -> dict[str, Any]:
    """Return the settings of a section that the demo sets."""
    return section.model_dump(exclude_unset=True, by_alias=True)


def _overrides(
    config: Config, fixtures: Path, folder: Path, mcp_socket: Path | None, speed: float
) -> Overrides:
    recorded = RecordedHttpClient(fixtures / "http")
    events = _printing(folder)

    def at_pace(upstream: Upstream) -> Upstream:
        pace = 1 / speed if speed else 0.0
        return ReplayUpstream([fixtures], upstream.name, pace=pace, untimed_ms=_EVENT_MS)

    return Overrides(
        clock=FixedClock(RECORDED_AT),
        http=recorded.client,
        on_run_event=events,
        mcp_socket=mcp_socket,
        wrap_upstream=at_pace,
        demo={
            "model": MODEL,
            "question": QUESTIONS[0][0],
            "questions": _suggested(programs=config.tools.programs != "off"),
        },
    )


def _suggested(*, programs: bool) -> list[dict[str, Any]]:
    """Return the questions for the playground: each with what to expect, and what else its request has."""
    asked: list[dict[str, Any]] = [{"text": question, "about": about} for question, about in QUESTIONS]
    asked.append({"text": NOTE[0], "about": "waits for your approval"})
    if programs:
        path = f"{ANTHROPIC.prefix}{ANTHROPIC.path}".lstrip("/")
        further = {"tools": _PROGRAM_TOOLS}
        about = "writes a program that calls two tools"
        asked.append({"text": PROGRAM, "about": about, "path": path, "further": further})
    return asked


def _ui_line(app: App, address: str) -> list[str]:
    """Return the line with the link to the web UI; it comes first, as a click there asks a question."""
    if app.sessions is None:
        return []
    return [f"web UI: {link(address, app.sessions.code(_LINK_S))}", ""]


def _pins(config: Config) -> list[Pin]:
    """Return the pin of the bundled MCP server's tool, as this version defines it."""
    pins = []
    for name, server in config.mcp.known().items():
        (definition,) = read_listing(name, [units_server.TOOL]).definitions
        pins.append(Pin(definition, server.identity, RECORDED_AT.timestamp(), "the demo"))
    return pins


def _greeting(config: Config, address: str, folder: Path) -> list[str]:
    return [
        f"toolrelay demo listens on {address}/v1",
        "The model is a recording. It answers only the questions below.",
        f"The clock stands at {RECORDED_AT.isoformat()}, and weather and search results are recorded.",
        f"Tools allowed: {', '.join(config.policy.allow)}.",
        "",
        "Ask the same question in any dialect; the proxy translates it to Chat:",
        "",
        *curl_lines(address),
        "",
        "Or with Python (pip install openai):",
        "",
        *python_lines(address),
        "",
        "Other questions to ask:",
        *(f"  {question}  ({about})" for question, about in QUESTIONS[1:]),
        "",
        *approval_lines(address, folder),
        "",
        *mcp_lines(address, serves=bool(config.mcp.servers)),
        "",
        *program_lines(address, runs=config.tools.programs != "off"),
        "",
        "Each run below ends with a command that shows its details. The command works in any terminal,",
        "also after this demo has stopped, until the next demo starts.",
        "",
        "Stop with Ctrl-C. Runs appear here:",
    ]


def curl_lines(address: str) -> list[str]:
    """Return a shell command for each dialect, which asks the first question of the same model."""
    asked = Conversation(MODEL, (Message("user", (Text(QUESTIONS[0][0]),)),), stream=True)
    lines = []
    for wire in built_in_wires().values():
        dialect = wire.dialect
        url = address + (dialect.path if dialect.rooted else dialect.prefix + dialect.path)
        body = wire.codec.write(asked).body.decode()
        lines.append(f"curl -N {url} -H 'content-type: application/json' -d {shlex.quote(body)}")
    return lines


def python_lines(address: str) -> list[str]:
    """Return a program to be pasted into a Python prompt or a file."""
    return [
        "from openai import OpenAI",
        f'client = OpenAI(base_url="{address}/v1", api_key="unused")',
        "stream = client.chat.completions.create(",
        f'    model="{MODEL}",',
        f'    messages=[{{"role": "user", "content": "{QUESTIONS[0][0]}"}}],',
        "    stream=True,",
        ")",
        'print("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))',
    ]


def approval_lines(address: str, folder: Path) -> list[str]:
    """Return shell commands that ask for the tool with approvals, decide, and continue."""
    question, going_on = NOTE
    continuing = next(dialect for dialect in BY_WIRE.values() if dialect.fields.continues)
    curl = f"curl -s {address}{continuing.prefix}{continuing.path} -H 'content-type: application/json' -d "
    asked = json.dumps({"model": MODEL, "input": question})
    further = json.dumps({"model": MODEL, "input": going_on, continuing.fields.continues: ""})[:-2]
    approve = _command(folder, "approvals", "approve")
    return [
        f"{LEAVE_NOTE} writes into {folder / NOTES_FILE}. A person must approve its calls first:",
        "",
        f'answer=$({curl}{shlex.quote(asked)}); echo "$answer"',
        f'{approve} $(echo "$answer" | grep -o "appr_[0-9a-f]*" | head -n 1)',
        f"""{curl}{shlex.quote(further)}$(echo "$answer" | grep -o "resp_[0-9a-f]*" | head -n 1)'"}}'""",
        "",
        "To refuse, put deny in place of approve. The page Approvals of the web UI decides, too.",
    ]


def mcp_lines(address: str, *, serves: bool) -> list[str]:
    """Return a command that calls the tool of the bundled MCP server.

    Without that server (``serves`` is false), return how to install it.
    """
    if not serves:
        return [f"To see a tool of an MCP server here, too: {how_to_install('mcp')}"]
    params = {"name": CONVERT, "arguments": _CONVERSION}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    headers = {
        "content-type": "application/json",
        "accept": f"application/json, {MCP.framing.content_type}",
        "mcp-protocol-version": _MCP_VERSION,
    }
    shown = " ".join(f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items())
    return [
        f"{CONVERT} belongs to an MCP server that the demo started. Call it as an MCP client does:",
        "",
        f"curl {address}{MCP.prefix} {shown} -d {shlex.quote(body)}",
    ]


def program_lines(address: str, *, runs: bool) -> list[str]:
    """Return a command whose answer shows a program over tools.

    Without the interpreter (``runs`` is false), return how to install it.
    """
    if not runs:
        return [f"To see a program that calls tools here, too: {how_to_install('programs')}"]
    messages = [{"role": "user", "content": PROGRAM}]
    body = json.dumps({"model": MODEL, "max_tokens": 500, "messages": messages, "tools": _PROGRAM_TOOLS})
    url = f"{address}{ANTHROPIC.prefix}{ANTHROPIC.path}"
    return [
        "With Anthropic's code execution the model writes a program that calls two tools at once:",
        "",
        f"curl -s {url} -H 'content-type: application/json' -d {shlex.quote(body)}",
    ]


def _printing(folder: Path) -> Callable[[str, Mapping[str, Any]], None]:
    """Return a callback that prints each event, and after each run the command that shows it."""

    def event(kind: str, data: Mapping[str, Any]) -> None:
        line = show_event(kind, data)
        if line:
            say(line)
        if kind == "run_finished":
            say(f"{_run(data)} more: {look_line(str(data.get('run_id', '')), folder)}")

    return event


def show_event(kind: str, data: Mapping[str, Any]) -> str:
    """Format an event of a run as one line for the terminal; empty for an event that is not shown."""
    match kind:
        case "run_started":
            line = f"{_run(data)} asked: {data.get('preview', '')}"
        case "tool_finished":
            outcome = _compact(data.get("result_redacted")) if data.get("ok") else str(data.get("error_code"))
            arguments = _compact(data.get("arguments_redacted"))
            line = f"{_run(data)}   {data.get('name')} {arguments} -> {outcome} ({_whole(data.get('ms'))} ms)"
        case "run_finished":
            line = (
                f"{_run(data)} {data.get('status')}: {counted(data.get('turns', 0), 'turn')}, "
                f"{counted(data.get('tool_calls', 0), 'tool call')}, {_whole(data.get('ms'))} ms"
            )
        case _:
            return ""
    return plain_text(line, MAX_LINE)


def _run(data: Mapping[str, Any]) -> str:
    return f"[{str(data.get('run_id', '')).removeprefix('run_')[:_SHOWN_ID]}]"


def _compact(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _whole(value: Any) -> str:
    return f"{value:.0f}" if isinstance(value, int | float) else "-"
