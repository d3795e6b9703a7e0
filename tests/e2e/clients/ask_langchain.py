"""LangChain's models: a streamed conversation with a tool of the client's with each model."""

from asking import QUESTIONS, ROOT, report
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

KEY = {"api_key": "k", "max_retries": 0}


async def converse(model, function):
    """Ask all questions in one conversation, and run the client's tool."""
    own = tool(function)
    # Users of OpenAI's and Anthropic's models set this; Ollama has no switch for it.
    more = {} if isinstance(model, ChatOllama) else {"parallel_tool_calls": True}
    bound = model.bind_tools([own], **more)
    answers, said = [], [SystemMessage("Be brief.")]
    for question in QUESTIONS:
        said.append(HumanMessage(question))
        while True:
            whole = None
            async for chunk in bound.astream(said):
                whole = chunk if whole is None else whole + chunk
            said.append(whole)
            if not whole.tool_calls:
                break
            said += [await own.ainvoke(call) for call in whole.tool_calls]
        answers.append(whole.text)
    return answers


report(
    {
        "openai": lambda name: ChatOpenAI(model=name, base_url=f"{ROOT}/v1", **KEY),
        "openai-responses": lambda name: ChatOpenAI(
            model=name, base_url=f"{ROOT}/v1", use_responses_api=True, **KEY
        ),
        "anthropic": lambda name: ChatAnthropic(model=name, base_url=ROOT, **KEY),
        "ollama": lambda name: ChatOllama(model=name, base_url=ROOT),
    },
    converse,
)
