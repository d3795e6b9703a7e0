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
from agents_sdk import converse
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
    async with client:
        answers, _ = await converse(agent, QUESTIONS, streamed=streamed)
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


LATER: Mapping[str, Any] = {"city": "Rome"}
SEARCH = {"query": "the weather of tomorrow"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORECAST = {"type": "function", "name": "later", "description": "The weather of tomorrow.", "strict": False}
OF_PYTHON: Mapping[str, Mapping[str, Any]] = {
    **OF_OPENAI,
    "say": {"input": "hello"},
    "weather__now": {"city": "Oslo"},
    "weather__ask": {"input": "wind in Oslo"},
    "tool_search": SEARCH,
    "later": LATER,
}
NAMESPACE = {
    "type": "namespace",
    "name": "weather",
    "description": "The weather.",
    "tools": [
        {"type": "function", "name": "now", "parameters": CITY, "strict": False},
        {"type": "custom", "name": "ask", "description": "Asks in words."},
    ],
}
TOOLS_OF_PYTHON: Sequence[Any] = [
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
    {"type": "local_shell"},
    {"type": "custom", "name": "say"},
    NAMESPACE,
    {
        "type": "tool_search", "execution": "client", "description": "Finds tools.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
    {**FORECAST, "parameters": CITY, "defer_loading": True},
]  # fmt: skip


def answered(item: Any) -> Any:
    """Return the item with which a client answers a call, as the types of openai know it."""
    match item.type:
        case "shell_call":
            ran = [{"stdout": f"ran {command}", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
                   for command in item.action.commands]  # fmt: skip
            return {"type": "shell_call_output", "call_id": item.call_id, "output": ran}
        case "apply_patch_call":
            said = {"status": "completed", "output": f"created {item.operation.path}"}
            return {"type": "apply_patch_call_output", "call_id": item.call_id, **said}
        case "local_shell_call":
            said = {"output": json.dumps({"output": f"ran {item.action.command} locally"})}
            return {"type": "local_shell_call_output", "id": item.call_id, **said}
        case "custom_tool_call":
            said = {"output": f"heard {item.input}"}
            return {"type": "custom_tool_call_output", "call_id": item.call_id, **said}
        case "function_call":
            said = {"output": f"{item.name} of {json.loads(item.arguments)['city']}"}
            return {"type": "function_call_output", "call_id": item.call_id, **said}
        case "tool_search_call":
            found = {"tools": [{**FORECAST, "parameters": CITY}], "execution": "client"}
            return {"type": "tool_search_output", "call_id": item.call_id, **found}
    return None


async def respond(client: Any, way: str, **asked: Any) -> Any:
    """Return a response of openai's client, from one of its three ways to ask."""
    if way == "whole":
        return await client.responses.create(**asked)
    if way == "helper":
        async with client.responses.stream(**asked) as events:
            return await events.get_final_response()
    events = [event async for event in await client.responses.create(**asked, stream=True)]
    assert events[-1].type == "response.completed"
    return events[-1].response


async def converse_with_openai(proxy: Proxy, name: str, way: str) -> tuple[list[str], list[Any]]:
    """Ask the questions with openai for Python; return its answers and the calls for the client."""
    from openai import AsyncOpenAI

    items: list[Any] = []
    called: list[Any] = []
    answers: list[str] = []
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="k", max_retries=0)
    async with client:
        for question in QUESTIONS:
            items.append({"role": "user", "content": question})
            for _ in range(3):
                asked = {"model": name, "input": items, "tools": TOOLS_OF_PYTHON, "store": False}
                response = await respond(client, way, **asked)
                items += response.output
                outputs = [(item, output) for item in response.output if (output := answered(item))]
                if not outputs:
                    break
                called += [item for item, _ in outputs]
                items += [output for _, output in outputs]
            answers.append(response.output_text)
    return answers, called


KINDS = {
    "shell": "FunctionShellToolCall",
    "apply_patch": "ApplyPatchToolCall",
    "local_shell": "LocalShellCall",
    "say": "CustomToolCall",
    "weather__now": "FunctionToolCall",
    "weather__ask": "CustomToolCall",
    "tool_search": "ToolSearchCall",
    "later": "FunctionToolCall",
}


@pytest.mark.parametrize("way", ["whole", "helper", "stream"])
@pytest.mark.parametrize("name", MODELS)
async def test_openai_for_python(name: str, way: str) -> None:
    """Each type that openai knows comes as its own class, beside a server tool, and goes back as it came."""
    require("openai", importlib.util.find_spec("openai") is not None, "the extra readers is not installed")
    async with serving_models(OF_PYTHON, native=()) as (proxy, models):
        answers, called = await converse_with_openai(proxy, name, way)
        results = list(models[name].results)
    assert answers == [ANSWER] * len(QUESTIONS)
    first = [tool for tool in OF_PYTHON if tool not in (ECHO, "later")]
    kinds = [type(item).__name__.removeprefix("Parsed").removeprefix("Response") for item in called]
    assert kinds == [KINDS[tool] for tool in (*first, *first, "later")]
    space = [(getattr(item, "namespace", None), item.name) for item in called if hasattr(item, "name")]
    assert space[:3] == [(None, "say"), ("weather", "now"), ("weather", "ask")]
    assert len(results) == 2 * (1 + len(first)) + 1
    ours, shell, patch, local, said, now, asked, search = results[: 1 + len(first)]
    assert "echoed" in ours
    assert "ran ls" in shell
    assert "created notes.md" in patch
    assert "locally" in local
    assert (said, now, asked) == ("heard hello", "now of Oslo", "heard wind in Oslo")
    assert json.loads(search) == {"tools": ["later"]}
    assert results[-1] == "later of Rome"


EXEC = {"type": "exec", "command": ["ls"], "env": {}}
OF_CLAUDE = [arguments for tool, arguments in OF_ANTHROPIC.items() if tool != ECHO]


async def converse_with_node(
    script: Path,
    of_openai: Mapping[str, Mapping[str, Any]],
    inputs_of_openai: Sequence[Any],
    ways: Sequence[str],
) -> None:
    """Let a script ask every model; check its answers, its calls and the results that the models got."""
    async with serving_models({**of_openai, **OF_ANTHROPIC}, native=()) as (proxy, models):
        asked = {"root": f"http://127.0.0.1:{proxy.port}", "models": MODELS, "questions": QUESTIONS}
        found = await run_node(script, asked)
    assert found == {
        f"{library} {name} {way}": {"answers": [ANSWER] * 2, "called": list(inputs) * 2}
        for library, inputs in (("openai", inputs_of_openai), ("anthropic", OF_CLAUDE))
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
    await converse_with_node(scripts / "typed_ai_sdk.mjs", OF_OPENAI, called, ("generateText", "streamText"))


async def test_the_node_sdks(scripts: Path) -> None:
    """The SDKs of OpenAI and Anthropic for Node, with their helpers for streams, on every model."""
    action = {"commands": ["ls", "pwd"], "timeout_ms": 1000, "max_output_length": None}
    declared = {tool: arguments for tool, arguments in OF_PYTHON.items() if tool != "later"}
    called = [action, PATCH, EXEC, "hello", OF_PYTHON["weather__now"], "wind in Oslo", SEARCH]
    await converse_with_node(scripts / "typed_sdks.mjs", declared, called, ("whole", "streamed"))


FINDS = "core__search_tools"
DECLARED_BY_CLAUDE: Sequence[Any] = [
    {"type": "bash_20250124", "name": "bash"},
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
    {"type": "memory_20250818", "name": "memory"},
    {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
    {"name": "later", "description": FORECAST["description"], "input_schema": CITY, "defer_loading": True},
]


async def converse_with_anthropic(proxy: Proxy, name: str, *, streamed: bool) -> tuple[list[str], list[Any]]:
    """Ask the questions with anthropic for Python; return its answers and the blocks of its messages."""
    from anthropic import AsyncAnthropic

    messages: list[Any] = []
    blocks: list[Any] = []
    answers: list[str] = []
    root = f"http://127.0.0.1:{proxy.port}"
    async with AsyncAnthropic(base_url=root, api_key="k", max_retries=0) as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            for _ in range(3):
                asked: Any = {"model": name, "max_tokens": 1000, "tools": DECLARED_BY_CLAUDE}
                if streamed:
                    async with client.messages.stream(**asked, messages=messages) as events:
                        message = await events.get_final_message()
                else:
                    message = await client.messages.create(**asked, messages=messages)
                messages.append({"role": "assistant", "content": message.content})
                blocks += message.content
                uses = [block for block in message.content if block.type == "tool_use"]
                if not uses:
                    break
                ran = [
                    {"type": "tool_result", "tool_use_id": use.id, "content": f"ran {json.dumps(use.input)}"}
                    for use in uses
                ]
                messages.append({"role": "user", "content": ran})
            answers.append("".join(block.text for block in message.content if block.type == "text"))
    return answers, blocks


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_anthropic_for_python(name: str, streamed: bool) -> None:
    """Anthropic's own tools and a search for a deferred one, beside a server tool, on every model."""
    require(
        "anthropic", importlib.util.find_spec("anthropic") is not None, "the extra readers is not installed"
    )
    calls = {**OF_ANTHROPIC, FINDS: SEARCH, "later": LATER}
    async with serving_models(calls, native=()) as (proxy, models):
        answers, blocks = await converse_with_anthropic(proxy, name, streamed=streamed)
        results = list(models[name].results)
    assert answers == [ANSWER] * len(QUESTIONS)
    uses = [(block.name, block.input) for block in blocks if block.type == "tool_use"]
    theirs = [(tool, arguments) for tool, arguments in OF_ANTHROPIC.items() if tool != ECHO]
    assert uses == [*theirs, *theirs, ("later", LATER)]
    searches = [block.content for block in blocks if block.type == "tool_search_tool_result"]
    assert len(searches) == len(QUESTIONS)
    assert [one.tool_name for one in searches[0].tool_references] == ["later"]
    assert f"ran {json.dumps(LATER)}" in results
    assert sum("echoed" in result for result in results) == len(QUESTIONS)
    assert {f"ran {json.dumps(one)}" for _, one in theirs} <= set(results)
