"""Keys of conversations stand in records, so that they are the same in each version."""

from proxy.wires.chat.request import parse_chat_request
from proxy.wires.digest import conversation_digest


def test_a_digest_stays_the_same() -> None:
    """Words that no encoding takes, and empty ones, give the key that an earlier version wrote."""
    assert (
        conversation_digest(["chat", "key:a", "é\ud800", ""], b"\x00" * 32)
        == "2d0e7e1f66032032607b1f04fa8c63b0404f88e0fbebb536"
    )


def test_keys_of_a_conversation_stay_the_same() -> None:
    """Rule R4: what an earlier version kept of a conversation is found by this one."""
    function = {"name": "f", "arguments": '{"b": 1, "a": 2}'}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "content": "done"},
    ]
    request = parse_chat_request({"model": "m", "messages": messages})
    assert (
        request.answer_key("key:a", "shape", "done", upto=4)
        == "e454d13c23cb59463f47aadede5ca8c8515a701ff413d206"
    )
    assert (
        request.conversation_key("key:a", ["c1"], upto=2)
        == "4e07db6ad5e3aaa4695762ffc7e38aa30fc2f29ed4f728ff"
    )
    assert request.answer_key("key:a", "shape", "more") == "0f8e6260fe06cb929f013c633d0a3d8bb51a629f1ba2908b"
