"""``toolrelay demo``: the main job on the real code path, with no key and no network.

A recorded upstream takes the model's place, and what the two tools look at (the clock, the weather
service) stands still at the moment of the recording.  All else is the server as ``serve`` runs it.
"""

import json
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from proxy.commands.common import MAX_LINE, say, start_logging
from proxy.commands.server import run_server
from proxy.commands.sockets import address_of, bind
from proxy.server.app import Overrides, create_app
from proxy.server.config import Config
from proxy.server.settings import (
    AuthConfig,
    LogConfig,
    PolicyConfig,
    ServerConfig,
    StoreConfig,
    UpstreamConfig,
)
from proxy.server.terminal import counted, plain_text
from proxy.toolbox.clock import FixedClock
from proxy.toolbox.recorded import RecordedHttpClient
from proxy.upstreams.replay import packaged_fixtures

__all__ = [
    "MODEL",
    "QUESTIONS",
    "RESPONSES_QUESTION",
    "curl_lines",
    "demo",
    "demo_config",
    "python_lines",
    "responses_lines",
    "show_event",
]

MODEL = "qwen2.5-coder-0.5b-instruct-q4_k_m"
QUESTIONS = (
    ("What time is it in Berlin, and what is the weather there?", "both tools in one turn"),
    ("What time is it in Berlin right now?", "one tool"),
    ("What is the weather in Berlin?", "the other tool"),
    ("Write one sentence about rivers.", "no tool, plain text"),
)
RESPONSES_QUESTION = "What is the weather in Berlin?"
RECORDED_AT = datetime.fromisoformat("2026-11-21T14:05:00+01:00")
TOOLS = ("core__get_current_time", "core__get_weather")

_MAX_SHOWN = 160


async def demo(port: int) -> None:
    """Serve the demo on loopback until told to stop; its record is removed with it."""
    sockets = bind("127.0.0.1", port)
    try:
        fixtures = packaged_fixtures()
        with tempfile.TemporaryDirectory(prefix="toolrelay-demo-") as folder:
            config = demo_config(sockets[0].getsockname()[1], fixtures, Path(folder))
            start_logging(config, serves=True)
            app = await create_app(config, overrides=_overrides(fixtures))
            await run_server(
                app,
                sockets,
                drain_s=config.server.drain_s,
                announce=lambda: say("\n".join(_greeting(address_of(sockets)))),
                draining=lambda: say("stopping: the demo's record is removed"),
            )
    finally:
        for listener in sockets:
            listener.close()


def demo_config(port: int, fixtures: Path, folder: Path) -> Config:
    """The demo's configuration; neither file nor environment has a say in it."""
    return Config(
        server=ServerConfig(port=port, drain_s=5),
        upstreams={"demo": UpstreamConfig(base_url=f"replay:{fixtures}", api_key=None)},
        policy=PolicyConfig(allow=TOOLS),
        store=StoreConfig(url=f"sqlite:///{folder / 'demo.db'}"),
        # It reaches nothing, and its commands are to work as pasted.
        auth=AuthConfig(mode="open"),
        log=LogConfig(level="warning"),
    )


def _overrides(fixtures: Path) -> Overrides:
    recorded = RecordedHttpClient(fixtures / "http")
    return Overrides(clock=FixedClock(RECORDED_AT), http=recorded.client, on_run_event=_print_event)


def _greeting(address: str) -> list[str]:
    return [
        f"toolrelay demo listens on {address}/v1",
        "The model is a recording: it answers the questions below, and says so for any other.",
        f"The clock stands at {RECORDED_AT.isoformat()}, the weather is a stored answer.",
        f"Tools allowed: {', '.join(TOOLS)}.",
        "",
        "Ask with curl:",
        "",
        *curl_lines(address),
        "",
        "Or through the Responses API:",
        "",
        *responses_lines(address),
        "",
        "Or with Python (pip install openai):",
        "",
        *python_lines(address),
        "",
        "Other questions it knows:",
        *(f"  {question}  ({about})" for question, about in QUESTIONS[1:]),
        "",
        "Stop with Ctrl-C.  Each run shows here:",
    ]


def curl_lines(address: str) -> list[str]:
    """One command, ready to be pasted into a shell."""
    body = json.dumps(
        {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": QUESTIONS[0][0]}]}
    )
    return [f"curl -N {address}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"]


def responses_lines(address: str) -> list[str]:
    """The same for the Responses API, with a question that was recorded there."""
    body = json.dumps({"model": MODEL, "stream": True, "input": RESPONSES_QUESTION})
    return [f"curl -N {address}/v1/responses -H 'content-type: application/json' -d '{body}'"]


def python_lines(address: str) -> list[str]:
    """A program, ready to be pasted into a Python prompt or a file."""
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


def _print_event(kind: str, data: Mapping[str, Any]) -> None:
    line = show_event(kind, data)
    if line:
        say(line)


def show_event(kind: str, data: Mapping[str, Any]) -> str:
    """One thing that happened in a run as one line for the terminal; empty for what is not shown."""
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
    return f"[{str(data.get('run_id', ''))[-8:]}]"


def _compact(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _whole(value: Any) -> str:
    return f"{value:.0f}" if isinstance(value, int | float) else "-"
