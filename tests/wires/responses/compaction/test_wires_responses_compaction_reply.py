"""The user's newest messages, which follow a summary."""

import json
from typing import Any

from proxy.base.events import Frame
from proxy.wires.client_port import ClientView
from proxy.wires.responses.compaction.wire import ResponsesCompactionWire

WIRE = ResponsesCompactionWire(bytes(32))
ANSWER = {
    "object": "response",
    "id": "resp_1",
    "status": "completed",
    "output": [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "In short.", "annotations": []}],
        }
    ],
}


def told(items: list[dict[str, Any]]) -> str:
    """Return the text that replaces the conversation in the next request."""
    request = WIRE.parse({"model": "m", "input": items})
    writer = WIRE.writer(request, ClientView("m", lambda name: False, caller="a"))
    raw = json.dumps(ANSWER).encode()
    writer.write(Frame(raw, dict(ANSWER)))
    compaction = json.loads(writer.finish(None))
    assert compaction["usage"]["total_tokens"] == 0
    (item,) = compaction["output"]
    return str(WIRE.summaries("a").message(item, "input[0]")["content"][0]["text"])


def user(text: str) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": [{"type": "input_text", "text": text}]}


def test_the_users_words_stand_behind_the_summary_in_order() -> None:
    """The user's messages follow the summary in order, and the assistant's do not."""
    text = told([user("first"), {"role": "assistant", "content": "no"}, user("second"), user(" ")])
    assert text.endswith("In short.\n\nThe user's newest messages, word for word:\n\nfirst\n\nsecond")


def test_only_the_newest_words_are_kept_where_there_is_no_room_for_all() -> None:
    """If the user's messages are too long, only the newest are kept; the summary is never cut."""
    text = told([user("old"), user("x" * 65_531), user("new")])
    assert "old" not in text
    assert text.endswith("x\n\nnew")
    assert "In short." in text


def test_a_conversation_without_a_user_has_a_summary_alone() -> None:
    """Without messages of a user, only the summary is sent."""
    assert told([{"role": "assistant", "content": "no"}]).endswith(":\n\nIn short.")
