"""Pydantic AI's agents: a streamed conversation with a tool of the client's with each model."""

from anthropic import AsyncAnthropic
from asking import QUESTIONS, ROOT, report
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

OPENAI = OpenAIProvider(base_url=f"{ROOT}/v1", api_key="k")
CLAUDE = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=ROOT, api_key="k", max_retries=0))


async def converse(model, function):
    """Ask all questions in one conversation; the agent runs the client's tool."""
    agent = Agent(model, system_prompt="Be brief.", tools=[function])
    answers, history = [], []
    for question in QUESTIONS:
        async with agent.run_stream(question, message_history=history) as run:
            answers.append(await run.get_output())
            history = run.all_messages()
    return answers


report(
    {
        "openai": lambda name: OpenAIChatModel(name, provider=OPENAI),
        "openai-responses": lambda name: OpenAIResponsesModel(name, provider=OPENAI),
        "anthropic": lambda name: AnthropicModel(name, provider=CLAUDE),
    },
    converse,
)
