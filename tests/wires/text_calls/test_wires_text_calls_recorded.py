"""Recorded turns, searched for calls in every form: calls are found, and nothing else is lost."""

import json
from typing import Any

import pytest
from cases import each
from fixture_loader import Exchange, all_exchanges, exchange

from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.text_calls.call import Declared, TextCall
from proxy.wires.text_calls.port import text_call_port
from proxy.wires.text_calls.rules import FORMS, TextCallRules
from proxy.wires.text_calls.scanner import Scanner

WIRES: dict[str, Any] = {"chat": ChatWire(), "responses": ResponsesWire(b"key"), "anthropic": AnthropicWire()}
NAMES = ("get_weather", "get_current_time")
PARIS = ("get_weather", '{"city": "Paris"}')
TYPED = ("get_weather", '{"city":"Paris"}')
WORDS = "I will look it up."


def said(recorded: Exchange) -> tuple[list[str], str]:
    """Return the text of a Chat turn in its original pieces, and its finish reason."""
    turn = recorded.turns[0]
    if turn.sse is None:
        choice = json.loads(turn.json_body or b"")["choices"][0]
        return [choice["message"]["content"]], choice["finish_reason"]
    pieces, reason = [], ""
    for line in turn.sse.decode().split("\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                pieces.append(choice["delta"].get("content") or "")
                reason = choice["finish_reason"] or reason
    return pieces, reason


def scan(pieces: list[str], form: str, *, repair: bool, cut: bool = False) -> tuple[str, list[Any], Declared]:
    """Return the text before any call, the parts after it, and the declared tools with their repairs."""
    schemas = {"get_weather": {"properties": {"city": {"type": "string"}}}}
    declared = Declared(NAMES, lambda: schemas, repair=repair)
    scanner = Scanner(FORMS[form], declared, 65536)
    for piece in pieces:
        scanner.feed(piece)
    scanner.close(cut=cut)
    parts = [(part.name, part.arguments) if isinstance(part, TextCall) else part for part in scanner.parts]
    return "".join(pieces)[: scanner.settled], parts, declared


@pytest.mark.parametrize(
    ("name", "form", "repair", "words", "calls"),
    [
        ("seed-one", "seed", False, "", [PARIS]),
        ("seed-two", "seed", False, "", [PARIS]),
        ("shot-seed-two", "seed", False, "", [("get_weather", '{"city": ["Paris", "Rome"]}')]),
        ("shot-xml-one", "qwen-xml", False, "", [TYPED]),
        ("hermes-one", "llama3", False, "", [PARIS]),
        ("hermes-one", "hermes", True, "", [PARIS]),
        ("hermes-reply", "hermes", True, "", [PARIS]),
        ("hermes-noarg", "hermes", True, "", [("get_current_time", '{"type": "object", "properties": {}}')]),
        ("bare-two", "hermes", True, "", [("get_weather", '{"city": "Paris", "city": "Rome"}')]),
        ("bare-two", "llama3", False, "", [("get_weather", '{"city": "Paris", "city": "Rome"}')]),
        ("shot-hermes-one", "hermes", True, WORDS, [PARIS]),
        ("shot-hermes-stop", "hermes", True, WORDS, [PARIS]),
        ("shot-hermes-two", "hermes", True, WORDS, [("get_weather", '{"city": "Paris", "city2": "Rome"}')]),
    ],
)
def test_recorded_calls_are_found(
    name: str, form: str, repair: bool, words: str, calls: list[tuple[str, str]]
) -> None:
    """The scanner finds the recorded calls of a small model, and reports repairs where they were needed."""
    pieces, reason = said(exchange(f"llamacpp-text.chat/{name}"))
    before, parts, declared = scan(pieces, form, repair=repair, cut=reason == "length")
    assert (before, parts) == (words, calls)
    assert bool(declared.repaired) is repair


@pytest.mark.parametrize(
    "name",
    ["hermes-cut", "hermes-plain", "shot-glm-one", "shot-hermes-answer", "shot-hermes-quote", "xml-one"],
)
@pytest.mark.parametrize("form", sorted(FORMS))
def test_recorded_texts_without_a_call(name: str, form: str) -> None:
    """No form finds a call in these texts or loses a character, even with repairs on."""
    pieces, reason = said(exchange(f"llamacpp-text.chat/{name}"))
    for repair in (False, True):
        before, parts, _ = scan(pieces, form, repair=repair, cut=reason == "length")
        assert (before, parts) == ("".join(pieces), [])


STREAMS = [
    one for one in all_exchanges() if one.wire in WIRES and one.turns and one.turns[0].sse and one.streams
]


@each("recorded", STREAMS, lambda one: one.name)
def test_recorded_streams_keep_their_bytes(recorded: Exchange) -> None:
    """With every form, the frames of every recorded stream leave unchanged and in order."""
    wire = WIRES[recorded.wire]
    raw = json.dumps(recorded.client_request).encode()
    data = recorded.turns[0].sse or b""
    for form in FORMS.values():
        request = wire.parse(recorded.client_request)
        plain = wire.reader(request.declared, lambda name: False, 8192)
        port = text_call_port(wire, wire, request, TextCallRules(form, repair=True), lambda facts: None)
        port.editor(raw, request)
        # The recorded texts contain no call of a declared name.
        reader = port.reader(request.declared, lambda name: False, 8192)
        expected = [*plain.feed(data), *plain.close()]
        found = [*reader.feed(data), *reader.close()]
        assert [frame.raw for frame in found] == [frame.raw for frame in expected]
        assert reader.message() == plain.message()
