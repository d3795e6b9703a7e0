"""Digests of a conversation's beginnings: what is read in a shorter way counts as in the longer one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.turn import digest

WIRES: dict[str, tuple[Any, str]] = {
    "chat": (ChatWire(), "messages"),
    "anthropic": (AnthropicWire(), "messages"),
    "ollama": (OllamaWire(), "messages"),
    "responses": (ResponsesWire(), "input"),
}
TEXTS = st.sampled_from(["", " ", "a", " a\n", "b c", "It is 2026-11-29 10:00.", "é\U0001f600"])
PARTS = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, TEXTS)
    | st.just({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}),
    max_size=2,
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "assistant", "user"])


def message(role: str, content: Any, further: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": content, **further}


MESSAGES = st.lists(
    st.builds(
        message,
        ROLES,
        TEXTS | PARTS | st.none(),
        st.sampled_from([{}, {}, {}, {"name": "n"}, {"refusal": "no"}, {"tool_calls": []}]),
    )
    | st.just({"role": "user"})
    | st.just({"content": "a"})
    | st.just({"content": "a", "name": None})
    | st.just({"role": "tool", "tool_call_id": "c", "content": "r"}),
    max_size=7,
)


def seen(request: Any, count: int) -> list[Any]:
    """Everything that decides which hidden turns belong to a request, at each of its positions."""
    ends = range(count + 1)
    return [
        request.answers(),
        request.returned_calls(),
        [request.answer_keys("me", "shape", [(end, " a ")]) for end in ends],
        [request.conversation_key("me", ["c"], end) for end in ends],
        [request.evidence(end) for end in ends],
        list(request.places(list(ends))),
    ]


@given(MESSAGES)
def test_a_member_that_is_null_changes_nothing(messages: list[dict[str, Any]]) -> None:
    """Rule R4: a message of two members is read in a shorter way, and counts as with a further null."""
    wire, _ = WIRES["chat"]
    longer = [{**one, "refusal": one.get("refusal"), "audio": None} for one in messages]
    requests = [wire.parse({"model": "m", "messages": said}) for said in (messages, longer)]
    assert seen(requests[0], len(messages)) == seen(requests[1], len(messages))


@pytest.mark.parametrize("dialect", WIRES)
@given(messages=MESSAGES, order=st.randoms(use_true_random=False), rule=st.sampled_from(["clock", "ignore"]))
def test_keys_do_not_depend_on_what_was_asked_before(
    dialect: str, messages: list[dict[str, Any]], order: Any, rule: Any
) -> None:
    """Rule R4: the key of an answer depends on the messages before it alone, in whatever order they are
    asked for, and evidence stands where its place says."""
    wire, member = WIRES[dialect]
    body = {"model": "m", "max_tokens": 9, member: messages}
    ends = list(range(len(messages) + 1))
    order.shuffle(ends)
    request = wire.parse(body)
    at_once = wire.parse(body).answer_keys("me", "shape", [(end, "a") for end in ends], rule)
    for end, key in zip(ends, at_once, strict=True):
        place, evidence = next(request.places([end], rule)), request.evidence(end, rule)
        assert [key] == request.answer_keys("me", "shape", [(end, "a")], rule)
        cut = wire.parse({**body, member: messages[:end]})
        assert [key] == cut.answer_keys("me", "shape", [(None, "a")], rule)
        assert evidence == cut.evidence(None, rule)
        assert (place is None) == (evidence is None)
        assert place is None or place.system == evidence.system


def test_a_place_says_whether_its_chain_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where all messages before the question are in the chain, a place is whole."""
    monkeypatch.setattr(digest, "_MOST_CHAINED", 4)
    wire, _ = WIRES["chat"]
    messages = [{"role": "system", "content": "s"}]
    for at in range(4):
        messages += [{"role": "user", "content": f"q{at}"}, {"role": "assistant", "content": f"a{at}"}]
    request = wire.parse({"model": "m", "messages": messages})
    places = list(request.places([one.position for one in request.answers()]))
    assert [(place.first, place.whole) for place in places] == [(1, True), (3, True), (5, True), (7, False)]
    assert [len(request.evidence(one.position).chain) for one in request.answers()] == [0, 2, 4, 4]
