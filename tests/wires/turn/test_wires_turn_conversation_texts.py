"""The texts of a conversation are found in every dialect, and replaced without touching anything else."""

import json
from typing import Any

import pytest

from proxy.hooks.contract import RequestText
from proxy.wires.registry.table import BY_WIRE
from proxy.wires.turn.conversation_texts import ConversationTexts

CALL = '{"to": "anna@example.com", "cc": ["x \\"y\\"", "\\u0061@b.c"], "n": 1}'
BODIES: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "chat": (
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "name": "anna", "content": [
                    {"type": "text", "text": "Hello."},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
                ]},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "send", "arguments": CALL}},
                ]},
                {"role": "tool", "tool_call_id": "c1", "content": "sent"},
            ],
            "user": "u-1",
        },
        [("system", "Be kind."), ("user", "Hello."), ("assistant", "to"), ("assistant", "anna@example.com"),
         ("assistant", "cc"), ("assistant", 'x "y"'), ("assistant", "a@b.c"), ("assistant", "n"),
         ("tool", "sent")],
    ),
    "responses": (
        {
            "model": "m",
            "instructions": "Be kind.",
            "input": [
                {"role": "user", "content": [
                    {"type": "input_text", "text": "Hello."},
                    {"type": "input_image", "image_url": "data:image/png;base64,AA"},
                ]},
                {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "send", "arguments": "{}",
                 "status": "completed"},
                {"type": "function_call_output", "call_id": "c1", "output": "sent"},
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}],
                 "encrypted_content": "AAAA"},
            ],
        },
        [("instructions", "Be kind."), ("user", "Hello."), ("input", "sent"), ("input", "Hm.")],
    ),
    "anthropic": (
        {
            "model": "m",
            "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [
                    {"type": "text", "text": "Hello."},
                    {"type": "document",
                     "source": {"type": "text", "media_type": "text/plain", "data": "A file"}},
                    {"type": "image",
                     "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                ]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "AAAA"},
                    {"type": "tool_use", "id": "t1", "name": "send", "input": {"name": "Anna", "id": ["7"]}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1",
                     "content": [{"type": "text", "text": "sent"}]},
                ]},
            ],
        },
        [("system", "Be kind."), ("user", "Hello."), ("user", "A file"), ("assistant", "Hm."),
         ("assistant", "Anna"), ("assistant", "7"), ("user", "sent")],
    ),
    "ollama": (
        {
            "model": "m",
            "messages": [
                {"role": "user", "content": "Hello.", "images": ["AAAA"]},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"function": {"name": "send", "arguments": {"url": "http://a", "type": "x"}}},
                ]},
                {"role": "tool", "tool_name": "send", "content": "sent"},
            ],
        },
        [("user", "Hello."), ("assistant", "http://a"), ("assistant", "x"), ("tool", "sent")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("wire", BODIES)
def test_the_texts_of_a_conversation_are_found(wire: str) -> None:
    """Instructions, messages, results, and every text in the arguments of calls; no ids, types or files."""
    body, expected = BODIES[wire]
    found = ConversationTexts(BY_WIRE[wire], json.dumps(body).encode())
    assert [(one.role, one.text) for one in found.texts] == expected


@pytest.mark.parametrize("wire", BODIES)
def test_texts_are_replaced_in_their_places(wire: str) -> None:
    """The body differs in the replaced texts alone, also where they are inside of JSON texts."""
    body, expected = BODIES[wire]
    raw = json.dumps(body).encode()
    found = ConversationTexts(BY_WIRE[wire], raw)
    assert found.written(found.texts) is raw
    marked = [RequestText(one.role, f'<{one.text}"') for one in found.texts]
    again = ConversationTexts(BY_WIRE[wire], found.written(marked))
    assert [one.text for one in again.texts] == [f'<{text}"' for _, text in expected]
    back = again.written([RequestText(role, text) for role, text in expected], "other")
    assert json.loads(back) == {**body, "model": "other"} or wire == "chat"


def test_members_that_do_not_change_keep_their_bytes() -> None:
    """Only the conversation is written anew; JSON texts keep their spaces."""
    arguments = r'"{ \"to\" :  \"anna\" }"'
    call = '{"id":"c","function":{"name":"f","arguments":' + arguments + "}}"
    body = '{ "model" : "m", "seed":  1.0, "messages":[{"role":"assistant","tool_calls":[' + call + "]}] }"
    raw = body.encode()
    found = ConversationTexts(BY_WIRE["chat"], raw)
    texts = [RequestText(one.role, one.text.replace("anna", "[N]")) for one in found.texts]
    written = found.written(texts)
    assert b'"seed":1.0' in written
    assert json.loads(written)["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{ "to" :  "[N]" }'


def test_a_variable_of_a_prompt_is_a_text_whatever_its_name() -> None:
    """Its name may be that of a member which elsewhere holds no text; an image in it stays an image."""
    image = {"type": "input_image", "image_url": "https://example.com/a.png"}
    part = {"type": "input_text", "text": "Hello."}
    variables = {"name": "Anna", "url": "a b", "image": image, "type": part}
    body = {"model": "m", "prompt": {"id": "pmpt_1", "version": "2", "variables": variables}}
    found = ConversationTexts(BY_WIRE["responses"], json.dumps(body).encode())
    assert [one.text for one in found.texts] == ["Anna", "a b", "Hello."]


def test_documents_beside_the_messages_are_texts() -> None:
    """Servers with chat templates put them before the model."""
    body = {"model": "m", "messages": [], "documents": [{"title": "A", "text": "about Anna"}]}
    found = ConversationTexts(BY_WIRE["chat"], json.dumps(body).encode())
    assert [one.text for one in found.texts] == ["A", "about Anna"]
