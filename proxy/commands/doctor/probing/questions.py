"""The small requests that ``doctor`` sends, independent of a dialect."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from proxy.base.conversation import (
    Conversation,
    FunctionTool,
    Image,
    Inline,
    Message,
    Output,
    OutputFormat,
    ReasoningSettings,
    Text,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
)

MOST_TOKENS: Final = 64
"""The most tokens of one answer. A call takes about twenty; reasoning may use the rest."""

_PNG: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAGUlEQVR4nGP4z8BAEiJN9aiGUQ1DSwMA"
    "rL7/AX3fW4sAAAAASUVORK5CYII="
)
_CITY: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
_WEATHER: Final = FunctionTool("get_weather", "The weather of a city.", _CITY)
_TIME: Final = FunctionTool("get_time", "The time in a city.", _CITY)
_ANSWER: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def _user(text: str) -> Message:
    return Message("user", (Text(text),))


def questions(model: str) -> dict[str, Conversation]:
    """Return the requests by name, in the order in which they are sent."""
    plain = Conversation(
        model, (_user("Count from one to five in words."),), output=Output(max_tokens=MOST_TOKENS)
    )
    streamed = replace(plain, stream=True)
    paris = _user("What is the weather in Paris? Call the tool.")
    call = replace(streamed, messages=(paris,), tools=(_WEATHER,), tool_choice=ToolChoice("required"))
    called = Message("assistant", (ToolCallPart("call_1", "get_weather", '{"city":"Paris"}'),))
    picture = Image(Inline("image/png", _PNG))
    result = ToolResultPart("call_1", (Text("Sunny, 21 degrees."),), name="get_weather")
    shown = ToolResultPart("call_1", (Text("A map."), picture), name="get_weather")
    answered = replace(plain, tools=(_WEATHER,))
    return {
        "stream": replace(streamed, stream_usage=True),
        "plain_stream": streamed,
        "call": call,
        "parallel": replace(
            call,
            messages=(_user("What is the weather in Paris, and what in Rome? Call the tool for both."),),
            parallel_tool_calls=True,
        ),
        "forced": replace(
            call,
            stream=False,
            tools=(_WEATHER, _TIME),
            tool_choice=ToolChoice("named", ("get_time",)),
        ),
        "strict": replace(call, stream=False, tools=(replace(_WEATHER, strict=True),)),
        "results": replace(answered, messages=(paris, called, Message("tool", (result,)))),
        "result_image": replace(answered, messages=(paris, called, Message("tool", (shown,)))),
        "image": replace(plain, messages=(Message("user", (Text("What colour is this?"), picture)),)),
        "schema": replace(
            plain,
            messages=(_user('Answer "yes".'),),
            output=Output(
                max_tokens=MOST_TOKENS,
                format=OutputFormat("json_schema", _ANSWER, "answer", strict=True),
            ),
        ),
        "too_long": replace(plain, messages=(_user("Say ok."),), output=Output(max_tokens=100_000_000)),
        "effort": replace(plain, messages=(_user("Say ok."),), reasoning=ReasoningSettings("low")),
        "choices": replace(plain, messages=(_user("Say ok."),), output=Output(max_tokens=16, choices=2)),
        "logprobs": replace(plain, messages=(_user("Say ok."),), output=Output(max_tokens=16, logprobs=True)),
    }
