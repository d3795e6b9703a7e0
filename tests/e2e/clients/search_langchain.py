"""LangChain's models with the web search of their provider: replies and streams, two questions each."""

from asking import QUESTIONS, ROOT, report
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

KEY = {"api_key": "k", "max_retries": 0}
OPENAI = {"type": "web_search"}
ANTHROPIC = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
SEARCHES = ("web_search_call", "server_tool_use")


def searching(make, tool, streams):
    """Return a function that makes a model of this name, its tool, and whether it streams."""
    return lambda name: (make(name), tool, streams)


async def converse(asked, function):
    """Ask all questions in one conversation, and note each search through the function of the test."""
    model, tool, streams = asked
    bound = model.bind_tools([tool])
    answers, said = [], []
    for question in QUESTIONS:
        said.append(HumanMessage(question))
        if streams:
            whole = None
            async for chunk in bound.astream(said):
                whole = chunk if whole is None else whole + chunk
        else:
            whole = await bound.ainvoke(said)
        said.append(whole)
        for part in whole.content:
            if isinstance(part, dict) and part.get("type") in SEARCHES:
                function("search")
        answers.append(whole.text)
    return answers


def of_openai(name):
    """Return OpenAI's model over the Responses API."""
    return ChatOpenAI(model=name, base_url=f"{ROOT}/v1", use_responses_api=True, **KEY)


def of_anthropic(name):
    """Return Anthropic's model."""
    return ChatAnthropic(model=name, base_url=ROOT, **KEY)


report(
    {
        "openai": searching(of_openai, OPENAI, False),
        "openai streamed": searching(of_openai, OPENAI, True),
        "anthropic": searching(of_anthropic, ANTHROPIC, False),
        "anthropic streamed": searching(of_anthropic, ANTHROPIC, True),
    },
    converse,
)
