"""Every field that an official SDK can send is translated, left out or refused on purpose."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import Any

import anthropic.types.beta.message_create_params as beta_messages
import anthropic.types.message_create_params as messages
import openai.types.chat.completion_create_params as chat
import openai.types.responses.response_create_params as responses
import pytest
from conversations import natives
from ollama._types import ChatRequest, GenerateRequest
from sdk_requests import Sample, requests_of

from proxy.base.conversation import Conversation
from proxy.base.errors import RequestError
from proxy.wires.anthropic.crossing.fields import ANTHROPIC_FIELDS
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.crossing.fields import CHAT_FIELDS
from proxy.wires.chat.wire import ChatWire
from proxy.wires.crossing.ledger import Written
from proxy.wires.crossing.tables import UNKNOWN_VALUE, FieldTable
from proxy.wires.ollama.completions.wire import OllamaCompletionWire
from proxy.wires.ollama.crossing.fields import COMPLETION_FIELDS, OLLAMA_FIELDS
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.crossing.fields import RESPONSES_FIELDS
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.wire import Wire


def with_addresses(request: Any) -> Any:
    """Return a request with real addresses, for which the types allow any text."""
    if isinstance(request, list | tuple):
        return [with_addresses(one) for one in request]
    if not isinstance(request, Mapping):
        return request
    return {
        name: "https://a.example/x" if name in _ADDRESSES and isinstance(one, str) else with_addresses(one)
        for name, one in request.items()
    }


_ADDRESSES = ("url", "image_url", "file_url")


@dataclass(frozen=True, eq=False)
class Types:
    """A dialect, its table, and the types that its official SDK has for its requests.

    ``always`` is in every request. ``incomplete`` maps objects that the types define more loosely than the
    service to the error that the service gives. ``headers`` are parameters of the SDK that are not fields
    of the body. ``added`` are translated fields that only other servers or clients have. ``sent`` makes
    the body of a request; ``least`` is the minimum number of requests.
    """

    wire: Wire
    table: FieldTable
    roots: tuple[Any, ...]
    always: Mapping[str, Any]
    incomplete: Mapping[str, str] = field(default_factory=dict)
    headers: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()
    sent: Callable[[Mapping[str, Any]], Mapping[str, Any]] = with_addresses
    least: int = 300


def ollama_sent(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Ollama's client sends, with valid roles and images, for which its types allow any text."""
    messages = [dict(one) for one in request.get("messages", ())]
    for one in messages:
        is_result, is_call = "tool_name" in one, "tool_calls" in one
        one["role"] = "tool" if is_result else "assistant" if is_call else "user"
        if "images" in one:
            one["images"] = ["YQ=="]
    sent: dict[str, Any] = ChatRequest(**{**request, "messages": messages}).model_dump(exclude_none=True)
    return sent


def completion_sent(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Ollama's client sends for a completion."""
    images = {"images": [{"value": "YQ=="}]} if "images" in request else {}
    sent: dict[str, Any] = GenerateRequest(**{**request, **images}).model_dump(exclude_none=True)
    return sent


TYPES = (
    Types(
        ChatWire(),
        CHAT_FIELDS,
        (chat.CompletionCreateParams,),
        {"model": "m"},
        {"<file>": "must have file_data or file_id", "tool_choice<allowed_tools>": UNKNOWN_VALUE.reason},
        added=frozenset({"top_k", "min_p"}),
    ),
    Types(
        ResponsesWire(),
        RESPONSES_FIELDS,
        (responses.ResponseCreateParams,),
        {"model": "m"},
        {
            "<input_image>": "is missing; send it or file_id",
            "<input_file>": "is missing; send it, file_url or file_id",
            "tool_choice<allowed_tools>": UNKNOWN_VALUE.reason,
        },
        added=frozenset({"top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "stop"}),
    ),
    Types(
        AnthropicWire(),
        ANTHROPIC_FIELDS,
        (messages.MessageCreateParams, beta_messages.MessageCreateParams),
        {"model": "m", "max_tokens": 5},
        headers=frozenset({"betas"}),
        # The SDK dropped these fields, which newer models refuse; older models still accept them.
        added=frozenset({"temperature", "top_p", "top_k"}),
    ),
    Types(
        OllamaWire(),
        OLLAMA_FIELDS,
        (ChatRequest,),
        {"model": "m", "stream": False},
        {
            "messages[]{}": OLLAMA_FIELDS.unknown.reason,
            "options{}": OLLAMA_FIELDS.unknown.reason,
            "tools[]": "must name the tool",
        },
        added=frozenset({"truncate", "options.min_p"}),
        sent=ollama_sent,
        least=60,
    ),
    Types(
        OllamaCompletionWire(),
        COMPLETION_FIELDS,
        (GenerateRequest,),
        {"model": "m", "prompt": "hi", "stream": False},
        {"options{}": OLLAMA_FIELDS.unknown.reason},
        added=frozenset({"truncate", "options.min_p"}),
        sent=completion_sent,
        least=40,
    ),
)
EACH = pytest.mark.parametrize("types", TYPES, ids=lambda types: types.table.dialect)
PAIRS = pytest.mark.parametrize(
    ("types", "upstream"),
    [
        (types, other.wire)
        for types in TYPES
        for other in TYPES
        # The proxy never sends a request in a form that it only reads.
        if other is not types and other.table.written
    ],
    ids=lambda one: one.table.dialect if isinstance(one, Types) else one.dialect.name,
)


@cache
def samples(types: Types) -> tuple[Sample, ...]:
    """All requests that differ in one field or one member of a union."""
    found = requests_of(*types.roots, always=types.always)
    return tuple(
        Sample(sample.path, types.sent(sample.value))
        for sample in found
        if re.split(r"[.\[=<{]", sample.path)[0] not in types.headers
    )


def read(types: Types) -> Iterator[tuple[Sample, Conversation]]:
    """Return the readable requests, each with its conversation."""
    for sample in samples(types):
        try:
            yield sample, types.wire.codec.read(sample.value)
        except RequestError:
            continue


def problem(types: Types, request: Mapping[str, Any]) -> str:
    """Return why a request cannot be read completely; empty if it can."""
    try:
        found = natives(types.wire.codec.read(request))
    except RequestError as error:
        return str(error)
    unknown = [one for one in found if one.reason in (types.table.unknown.reason, UNKNOWN_VALUE.reason)]
    return "; ".join(f"{one.path}: {one.reason}" for one in unknown)


@EACH
def test_every_field_of_the_official_sdk_is_known(types: Types) -> None:
    """The proxy knows every field, and every member of a union, that the official SDK can send."""
    found = {sample.path: problem(types, sample.value) for sample in samples(types)}
    assert len(found) >= types.least
    accepted = set()
    for path, why in found.items():
        mark = next((mark for mark, words in types.incomplete.items() if mark in path and words in why), None)
        accepted.add(mark)
        assert not why or mark, f"{path}: {why}"
    assert accepted >= types.incomplete.keys()


def aspects(conversation: Conversation, names: tuple[str, ...]) -> list[Any]:
    return [attrgetter(name)(conversation) for name in names]


@EACH
def test_what_is_translated_is_in_the_conversation(types: Types) -> None:
    """A field that the table calls translated changes the conversation."""
    plain = types.wire.codec.read({**types.always, "messages": []})
    missing = {name: rule.to for name, rule in types.table.read.items() if rule.handling == "translated"}
    for sample, conversation in read(types):
        path = re.sub(r"<[^>]*>|\{\}|=.*$", "", sample.path)
        for name in [name for name in missing if path == name or path.startswith((f"{name}.", f"{name}["))]:
            if aspects(conversation, missing[name]) != aspects(plain, missing[name]):
                del missing[name]
    assert missing.keys() <= types.added | {"model", "max_tokens"}


@PAIRS
def test_nothing_is_dropped_silently(types: Types, upstream: Wire) -> None:
    """The proxy reports or refuses by name every field that an upstream of another dialect cannot take."""
    for sample, conversation in read(types):
        found = natives(conversation)
        said = written(upstream, conversation)
        if isinstance(said, RequestError):
            assert (said.status, said.code) == (400, "not_translatable"), sample.path
            assert named(sample, said.param), f"{sample.path}: {said.param}"
            continue
        assert "refused" not in {one.loss for one in found}, sample.path
        told = {left.field for left in said.left_out}
        lost = {re.sub(r"\[\d+\]", "[]", one.path) for one in found if one.loss == "omitted"}
        assert lost <= told, f"{sample.path}: {lost - told}"


def written(upstream: Wire, conversation: Conversation) -> Written | RequestError:
    """Return the body for an upstream, or the error if the conversation cannot be written."""
    try:
        return upstream.codec.write(conversation)
    except RequestError as error:
        return error


def named(sample: Sample, param: str | None) -> bool:
    """Return whether the request has the field."""
    if param == "messages":
        return "input" not in sample.value  # A conversation without messages is not valid in each dialect.
    value = sample.value
    for key in re.findall(r"[^.\[\]]+", param or "?"):
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError, TypeError):
            return False
    return True
