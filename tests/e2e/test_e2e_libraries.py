"""Clients' libraries on strict doubles of real providers: each through each of its APIs on each model.

A streamed conversation of two questions; in each, the model calls a server tool and a tool of the client's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e_packages import run_node
from library_scripts import ask_python
from looping import ECHO
from provider_models import ANSWER, SERVED, ProviderModel, serving_models
from running_proxy import Proxy

pytestmark = pytest.mark.slow

LIBRARIES = ("openai", "openai-responses", "anthropic", "ollama")
QUESTIONS = ["What time is it, and am I free?", "And the day after?"]
RESULT = '{"echo":"echoed","inside":"hidden-output"}'
CALLS: Mapping[str, Mapping[str, Any]] = {ECHO: {"text": "echoed"}, "get_calendar": {"day": "friday"}}


def check(found: Mapping[str, Any], models: Mapping[str, ProviderModel], *libraries: str) -> None:
    """Check that every library has led its whole conversation with every model."""
    whole = {"answers": [ANSWER] * len(QUESTIONS), "days": ["friday"] * len(QUESTIONS)}
    assert found == {f"{library} {model}": whole for library in libraries for model in models}
    seen = {name: (len(model.asked), model.results) for name, model in models.items()}
    requests, results = 2 * len(QUESTIONS) * len(libraries), [RESULT, "free at noon"] * len(QUESTIONS)
    assert seen == dict.fromkeys(models, (requests, results))


def asked_of(proxy: Proxy) -> dict[str, Any]:
    """Return what a script is asked to do."""
    return {"root": f"http://127.0.0.1:{proxy.port}", "models": list(SERVED), "questions": QUESTIONS}


async def test_langchain(tmp_path: Path) -> None:
    """LangChain's four models converse with every provider's."""
    async with serving_models(CALLS) as (proxy, models):
        found = await ask_python("ask_langchain.py", asked_of(proxy), tmp_path)
    check(found, models, *LIBRARIES)


async def test_pydantic_ai(tmp_path: Path) -> None:
    """Pydantic AI's agents converse with every provider's models."""
    async with serving_models(CALLS) as (proxy, models):
        found = await ask_python("ask_pydantic_ai.py", asked_of(proxy), tmp_path)
    check(found, models, "openai", "openai-responses", "anthropic")


@pytest.mark.accepts("ollama-ignored", why="its Ollama provider sends a tool_choice itself")
async def test_the_ai_sdk(scripts: Path) -> None:
    """The providers of Vercel's AI SDK converse with every provider's models."""
    async with serving_models(CALLS) as (proxy, models):
        found = await run_node(scripts / "ask_ai_sdk.mjs", asked_of(proxy))
    check(found, models, *LIBRARIES, "openai-compatible")
