"""Leads conversations with openai-agents, which a test imports only where it is installed."""

from collections.abc import Sequence
from typing import Any


async def converse(agent: Any, questions: Sequence[str], *, streamed: bool) -> tuple[list[str], list[Any]]:
    """Ask an agent questions, each with the items so far; return its answers and all items."""
    from agents import RunConfig, Runner

    config = RunConfig(tracing_disabled=True)
    answers: list[str] = []
    items: list[Any] = []
    for question in questions:
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
    return answers, items
