"""The snippets of docs/how-to/clients.md run as they are printed, on models of every dialect."""

import importlib.util
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from client_programs import SNIPPETS, run
from e2e_process import clean_environment
from looping import ECHO
from pair_kits import SPEAKERS, Call, Turn
from provider_models import ANSWER, SERVED, serving_models
from recorded_answers import Asked, Given, Scripted
from require import require
from running_proxy import Proxy, make_config, running

from proxy.app.app import Overrides

QUESTIONS = {
    "Claude Code": ("claude", "claude -p 'What time is it?' --allowedTools Read"),
    # Without a sandbox, which not every machine has; then Codex would offer OpenAI's search.
    "Codex": (
        "codex",
        "codex exec --skip-git-repo-check --sandbox danger-full-access -c web_search=disabled "
        "'What time is it?'",
    ),
}
"""For a snippet, the program at its end, and the command that asks it one question."""


class Model(Scripted):
    """A model with one dialect, which calls the echo tool if it is offered, and then answers."""

    def __init__(self, wire: str) -> None:
        super().__init__(self._say)
        self.speaker = SPEAKERS[wire]

    def _say(self, asked: Asked) -> Given:
        got = self.speaker.got(asked.payload)
        calls = ECHO in got.tools and not got.results
        turn = Turn("", (Call("call_1", ECHO, {"text": "noon"}),)) if calls else Turn("It is noon.")
        if asked.payload.get("stream"):
            return Given(content_type=self.speaker.content_type, pieces=self.speaker.events(turn))
        return Given(json.dumps(self.speaker.reply(turn)).encode())

    @property
    def called(self) -> set[str]:
        """The tools whose results the model got."""
        return {call.name for asked in self.asked for call in self.speaker.got(asked.payload).calls}

    async def aclose(self) -> None:
        return


@asynccontextmanager
async def serving(wire: str) -> AsyncIterator[tuple[Proxy, Model]]:
    """Run a proxy with the probe tools in front of a model with one dialect."""
    upstream = Model(wire)
    config = make_config({"base_url": "http://127.0.0.1:9/v1", "wires": (wire,)}, modules=("probe_tools",))
    async with running(config, Overrides(wrap_upstream=lambda _: upstream)) as proxy:
        yield proxy, upstream


each_wire = pytest.mark.parametrize("wire", SPEAKERS)


@each_wire
@pytest.mark.parametrize("client", ["The OpenAI SDK", "The Ollama Python client"])
async def test_a_python_program(client: str, wire: str, tmp_path: Path) -> None:
    """The printed program runs with only its port changed, and the model's server tool runs."""
    if "Ollama" in client:
        require("ollama", importlib.util.find_spec("ollama") is not None, "ollama is not installed")
    async with serving(wire) as (proxy, upstream):
        code = SNIPPETS[client].replace("127.0.0.1:8080", f"127.0.0.1:{proxy.port}")
        # Ollama's client leaves its connection open when a program ends.
        strict = ["-W", "error", "-W", "ignore::ResourceWarning"]
        said = await run([sys.executable, *strict, "-c", code], clean_environment(tmp_path), tmp_path)
    assert said.strip() == "It is noon."
    assert upstream.called == {ECHO}


OWN_CALLS: Mapping[str, Callable[[Path], Mapping[str, Any]]] = {
    "Read": lambda note: {"file_path": str(note)},
    "exec_command": lambda note: {"cmd": f"cat {note}"},
}
"""For a tool of a coding agent's own, the arguments with which it reads a file."""


@pytest.mark.accepts(
    "responses-no-reasoning", why="Codex asks any model so; nothing changes a passed request"
)
@pytest.mark.slow
@pytest.mark.parametrize("client", QUESTIONS)
@pytest.mark.parametrize("name", SERVED)
async def test_a_coding_agent(client: str, name: str, tmp_path: Path) -> None:
    """Rule W5: the real coding agent works with each model, its own tool beside a server tool."""
    program, question = QUESTIONS[client]
    require(program, shutil.which(program) is not None, f"{program} is not installed")
    script, replaced = re.subn(rf"(?m)^{program}\b", question, SNIPPETS[client])
    assert replaced == 1
    note = tmp_path / "note.txt"
    note.write_text("the note says noon\n")
    calls = {ECHO: {"text": "echoed"}, **{tool: make(note) for tool, make in OWN_CALLS.items()}}
    async with serving_models(calls) as (proxy, models):
        script = script.replace("127.0.0.1:8080", f"127.0.0.1:{proxy.port}").replace("gpt-4o-mini", name)
        said = await run(["sh", "-c", script], clean_environment(tmp_path), tmp_path)
    assert ANSWER in said
    ours, theirs = models[name].results
    assert "echoed" in ours
    assert "the note says noon" in theirs
