"""Libraries of clients use tools whose types only their dialect knows, on models that know functions alone.

Each leads a conversation of two questions with one model of every dialect. In each question the model calls
all tools of the client's and a server tool at once. In the second question the library sends back the items
of the first.
"""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e_packages import run_node
from looping import ECHO
from provider_models import ANSWER, ProviderModel, serving_models
from require import require
from running_proxy import Proxy

pytestmark = pytest.mark.slow

MODELS = ("gpt-4o-mini", "claude-opus-4-7", "qwen3", "gpt-5-2025-08-07")
"""One of each dialect. The last one speaks Responses, as OpenAI does."""
QUESTIONS = ("Tidy up.", "Once more.")
PATCH = {"type": "create_file", "path": "notes.md", "diff": "+hello\n"}
OF_OPENAI: Mapping[str, Mapping[str, Any]] = {
    ECHO: {"text": "echoed"},
    "shell": {"commands": ["ls", "pwd"], "timeout_ms": 1000},
    "apply_patch": {"operation": PATCH},
    "local_shell": {"command": ["ls"]},
}
OF_ANTHROPIC: Mapping[str, Mapping[str, Any]] = {
    ECHO: {"text": "echoed"},
    "bash": {"command": "ls"},
    "str_replace_based_edit_tool": {"command": "view", "path": "/notes.md"},
    "memory": {"command": "create", "path": "/memories/a.md", "file_text": "hello"},
}


def results(model: ProviderModel) -> Sequence[str]:
    """Return the results that the model got in the second question, which follow those of the first."""
    got = list(model.results)
    assert len(got) % len(QUESTIONS) == 0
    first, second = got[: len(got) // 2], got[len(got) // 2 :]
    assert first == second
    return second


async def converse_with_agents(proxy: Proxy, name: str, *, streamed: bool) -> tuple[list[str], list[Any]]:
    """Ask the questions with openai-agents; return its answers and what its tools were called with."""
    from agents import (
        Agent,
        ApplyPatchTool,
        OpenAIResponsesModel,
        RunConfig,
        Runner,
        ShellCommandOutput,
        ShellCommandRequest,
        ShellResult,
        ShellTool,
        Tool,
    )
    from agents.editor import ApplyPatchOperation, ApplyPatchResult
    from openai import AsyncOpenAI

    called: list[Any] = []

    async def run_commands(request: ShellCommandRequest) -> ShellResult:
        action = request.data.action
        called.append((action.commands, action.timeout_ms, action.max_output_length))
        return ShellResult([ShellCommandOutput(stdout=f"ran {command}") for command in action.commands])

    class Editor:
        def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
            called.append((operation.type, operation.path, operation.diff))
            return ApplyPatchResult(status="completed", output="created notes.md")

        update_file = delete_file = create_file

    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="k", max_retries=0)
    tools: list[Tool] = [ShellTool(executor=run_commands), ApplyPatchTool(editor=Editor())]
    agent = Agent(name="Helper", model=OpenAIResponsesModel(name, client), tools=tools)
    answers: list[str] = []
    items: list[Any] = []
    config = RunConfig(tracing_disabled=True)
    async with client:
        for question in QUESTIONS:
            items.append({"role": "user", "content": question})
            if streamed:
                run = Runner.run_streamed(agent, items, run_config=config)
                async for _ in run.stream_events():
                    pass
                answers.append(run.final_output)
                items = run.to_input_list()
            else:
                result = await Runner.run(agent, items, run_config=config)
                answers.append(result.final_output)
                items = result.to_input_list()
    return answers, called


@pytest.mark.accepts("responses-no-reasoning", why="openai-agents asks any model so")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_openai_agents(name: str, streamed: bool) -> None:
    """A shell and a patch of openai-agents beside a server tool; all results reach the model twice."""
    require("openai-agents", importlib.util.find_spec("agents") is not None, "openai-agents is not installed")
    calls = {tool: OF_OPENAI[tool] for tool in (ECHO, "shell", "apply_patch")}
    async with serving_models(calls, native=()) as (proxy, models):
        answers, called = await converse_with_agents(proxy, name, streamed=streamed)
    assert answers == [ANSWER] * len(QUESTIONS)
    assert sorted(map(str, called)) == sorted(
        map(str, [(["ls", "pwd"], 1000, None), tuple(PATCH.values())] * len(QUESTIONS))
    )
    ours, shell, patch = results(models[name])
    assert "echoed" in ours
    assert "ran ls" in shell
    assert "ran pwd" in shell
    assert "created notes.md" in patch


EXEC = {"type": "exec", "command": ["ls"], "env": {}}
OF_CLAUDE = [arguments for tool, arguments in OF_ANTHROPIC.items() if tool != ECHO]


async def converse_with_node(script: Path, of_openai: Sequence[Any], ways: Sequence[str]) -> None:
    """Let a script ask every model; check its answers, its calls and the results that the models got."""
    async with serving_models({**OF_OPENAI, **OF_ANTHROPIC}, native=()) as (proxy, models):
        asked = {"root": f"http://127.0.0.1:{proxy.port}", "models": MODELS, "questions": QUESTIONS}
        found = await run_node(script, asked)
    assert found == {
        f"{library} {name} {way}": {"answers": [ANSWER] * 2, "called": list(inputs) * 2}
        for library, inputs in (("openai", of_openai), ("anthropic", OF_CLAUDE))
        for name in MODELS
        for way in ways
    }
    for name in MODELS:
        ours, *theirs = results(models[name])
        assert "echoed" in ours
        assert theirs == [f"ran {json.dumps(one, separators=(',', ':'))}" for one in OF_CLAUDE]


async def test_the_ai_sdk(scripts: Path) -> None:
    """The tools of OpenAI's and of Anthropic's provider of Vercel's AI SDK, on every model."""
    called = [{"commands": ["ls", "pwd"]}, PATCH, EXEC]
    await converse_with_node(scripts / "typed_ai_sdk.mjs", called, ("generateText", "streamText"))


async def test_the_node_sdks(scripts: Path) -> None:
    """The SDKs of OpenAI and Anthropic for Node, with their helpers for streams, on every model."""
    action = {"commands": ["ls", "pwd"], "timeout_ms": 1000, "max_output_length": None}
    await converse_with_node(scripts / "typed_sdks.mjs", [action, PATCH, EXEC], ("whole", "streamed"))
