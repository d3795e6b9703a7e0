"""What the official Python clients understand of an answer that is given as bytes, without a socket."""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx
import httpx2
import ollama as ollama_client
import openai

Call = tuple[str, str, Any]


@dataclass
class Heard:
    """What a client understood of an answer.

    ``calls`` are ids, names and arguments (parsed, or as text if they are no object). ``finish`` is
    ``stop``, ``calls``, ``length``, ``filter``, or the dialect's own value. ``used`` are input and output
    tokens, or ``None`` if the answer does not say.
    """

    text: str = ""
    refusal: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str = ""
    used: tuple[int, int] | None = None
    sources: list[tuple[str, str]] = field(default_factory=list)
    """The addresses that the answer cites, each with the text that cites it."""


def parsed(text: str) -> Any:
    """Return parsed arguments, or their text if it is no JSON object."""
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return text
    return given if isinstance(given, dict) else text


FINISHES = {
    "tool_calls": "calls", "tool_use": "calls", "function_call": "calls",
    "end_turn": "stop", "stop_sequence": "stop", "completed": "stop",
    "max_tokens": "length", "max_output_tokens": "length", "model_context_window_exceeded": "length",
    "content_filter": "filter", "refusal": "filter",
}  # fmt: skip
"""The finish reasons of the dialects, in the words of :class:`Heard`."""


def _transport(pieces: Iterable[bytes], content_type: str) -> httpx2.MockTransport:
    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": content_type}, stream=_Pieces(pieces))

    return httpx2.MockTransport(answer)


class _Pieces(httpx2.SyncByteStream):
    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Any:
        return iter(self._pieces)


def _any(event: Any) -> Any:
    return event


def _openai(pieces: Iterable[bytes], content_type: str) -> openai.OpenAI:
    client = openai.DefaultHttpxClient(transport=_transport(pieces, content_type))
    return openai.OpenAI(base_url="http://x/v1", api_key="x", max_retries=0, http_client=client)


def _anthropic(pieces: Iterable[bytes], content_type: str) -> anthropic.Anthropic:
    client = anthropic.DefaultHttpxClient(transport=_transport(pieces, content_type))
    return anthropic.Anthropic(base_url="http://x", api_key="x", max_retries=0, http_client=client)


EVENTS, JSON, LINES = "text/event-stream", "application/json", "application/x-ndjson"


def chat(pieces: Sequence[bytes], *, stream: bool) -> Heard:
    """Read a Chat answer with the ``openai`` client, and a stream with its helper."""
    ask: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    if stream:
        ask["stream_options"] = {"include_usage": True}
        with _openai(pieces, EVENTS) as client, client.chat.completions.stream(**ask) as helper:
            # The helper raises for an answer that was cut off or refused, but it has then read all of it.
            with suppress(openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError):
                helper.until_done()
            completion: Any = helper.current_completion_snapshot
    else:
        with _openai(pieces, JSON) as client:
            completion = client.chat.completions.create(**ask)
    (choice, *_) = completion.choices
    calls = [
        (call.id, call.function.name, parsed(call.function.arguments))
        for call in choice.message.tool_calls or ()
    ]
    used = completion.usage and (completion.usage.prompt_tokens, completion.usage.completion_tokens)
    reason = choice.finish_reason or ""
    return Heard(
        choice.message.content or "",
        choice.message.refusal or "",
        calls,
        FINISHES.get(reason, reason),
        used,
        _sources(choice.message.content, [one.url_citation for one in choice.message.annotations or ()]),
    )


def _sources(text: str, citations: Iterable[Any]) -> list[tuple[str, str]]:
    return [(one.url, text[one.start_index : one.end_index]) for one in map(_any, citations)]


def responses(pieces: Sequence[bytes], *, stream: bool) -> Heard:
    """Read a Responses answer with the ``openai`` client, and a stream with its helper."""
    if stream:
        with (
            _openai(pieces, EVENTS) as client,
            client.responses.stream(model="m", input="hi") as helper,
        ):
            # The helper returns completed responses only.
            ends = ("response.completed", "response.incomplete")
            (response,) = [event.response for event in map(_any, helper) if event.type in ends]
    else:
        with _openai(pieces, JSON) as client:
            response = client.responses.create(model="m", input="hi")
    parts = [part for item in response.output if item.type == "message" for part in item.content]
    calls = [
        (item.call_id, item.name, parsed(item.arguments))
        for item in response.output
        if item.type == "function_call"
    ]
    reason = response.incomplete_details.reason if response.incomplete_details else response.status
    finish = "calls" if calls and reason == "completed" else FINISHES.get(reason, reason)
    used = response.usage and (response.usage.input_tokens, response.usage.output_tokens)
    refusals = [part.refusal for part in parts if part.type == "refusal"]
    sources = [
        pair for part in parts if part.type == "output_text" for pair in _sources(part.text, part.annotations)
    ]
    return Heard(response.output_text, "".join(refusals), calls, finish, used, sources)


def messages(pieces: Sequence[bytes], *, stream: bool) -> Heard:
    """Read a Messages answer with the ``anthropic`` client, and a stream with its helper."""
    ask: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    if stream:
        with _anthropic(pieces, EVENTS) as client, client.messages.stream(**ask) as helper:
            message: Any = helper.get_final_message()
    else:
        with _anthropic(pieces, JSON) as client:
            message = client.messages.create(**ask)
    texts = [block.text for block in message.content if block.type == "text"]
    calls = [(block.id, block.name, block.input) for block in message.content if block.type == "tool_use"]
    usage = message.usage
    read = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    reason = message.stop_reason or ""
    used = (usage.input_tokens + read, usage.output_tokens)
    sources = [
        (citation.url, block.text)
        for block in message.content
        if block.type == "text"
        for citation in block.citations or ()
    ]
    return Heard("".join(texts), "", calls, FINISHES.get(reason, reason), used, sources)


class _Lines(httpx.SyncByteStream):
    """A body in pieces for a client that uses httpx."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Any:
        return iter(self._pieces)


def ollama(pieces: Sequence[bytes], *, stream: bool) -> Heard:
    """Read a chat answer with the ``ollama`` client, whose calls have no ids."""

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": LINES if stream else JSON}, stream=_Lines(pieces))

    with ollama_client.Client("http://x", transport=httpx.MockTransport(answer)) as client:
        said: Any = client.chat("m", [{"role": "user", "content": "hi"}], stream=stream)
        parts = list(said) if stream else [said]
    calls = [
        ("", call.function.name, dict(call.function.arguments))
        for part in parts
        for call in part.message.tool_calls or ()
    ]
    last = parts[-1]
    assert last.done, "the answer merely ends"
    reason = last.done_reason or "stop"
    counts = (last.prompt_eval_count, last.eval_count)
    used = None if counts == (None, None) else (counts[0] or 0, counts[1] or 0)
    text = "".join(part.message.content or "" for part in parts)
    return Heard(
        text, "", calls, "calls" if calls and reason == "stop" else FINISHES.get(reason, reason), used
    )


READERS: dict[str, Callable[..., Heard]] = {
    "chat": chat,
    "responses": responses,
    "anthropic": messages,
    "ollama": ollama,
}
"""The official client of each dialect: it takes the pieces of an answer, and whether it is a stream."""
