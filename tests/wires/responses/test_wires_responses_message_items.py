"""Lists that a stream builds up in pieces: which pieces belong to one element."""

import json

from proxy.wires.chat.message import MessageBuilder


def built(*details: dict[str, object]) -> list[dict[str, object]]:
    """Return the ``reasoning_details`` of a message with one delta for each of these."""
    message = MessageBuilder()
    for detail in details:
        message.add({"reasoning_details": [detail]})
    found = json.loads(message.build([], []))["reasoning_details"]
    assert isinstance(found, list)
    return found


def test_pieces_of_one_block_are_joined() -> None:
    """Text and signature with the same index are one block."""
    assert built(
        {"type": "reasoning.text", "text": "The user", "index": 0},
        {"type": "reasoning.text", "text": " wants", "index": 0},
        {"type": "reasoning.text", "signature": "c2ln", "index": 0},
    ) == [{"type": "reasoning.text", "text": "The user wants", "index": 0, "signature": "c2ln"}]


def test_blocks_of_other_types_stay_apart() -> None:
    """The same index with another type is another block."""
    blocks = [
        {"type": "reasoning.summary", "summary": "Short.", "index": 0},
        {"type": "reasoning.text", "text": "Long.", "index": 0},
    ]
    assert built(*blocks) == blocks


def test_encrypted_blocks_are_never_joined() -> None:
    """Each encrypted block stays separate, even if all have index 0 and no id."""
    blocks: list[dict[str, object]] = [
        {"type": "reasoning.encrypted", "data": data, "index": 0} for data in ("AAAA", "BBBB")
    ]
    assert built(*blocks) == blocks


def test_another_id_is_another_block() -> None:
    """Blocks with different ids stay separate, even with the same index."""
    blocks: list[dict[str, object]] = [
        {"type": "reasoning.text", "id": name, "text": name, "index": 0} for name in ("rs_1", "rs_2")
    ]
    assert built(*blocks) == blocks


def test_an_id_that_comes_once_holds_for_what_follows() -> None:
    """A piece without an id continues the block that has one."""
    assert built(
        {"type": "reasoning.text", "id": "rs_1", "text": "a", "index": 0},
        {"type": "reasoning.text", "id": None, "text": "b", "index": 0},
    ) == [{"type": "reasoning.text", "id": "rs_1", "text": "ab", "index": 0}]
    assert (
        built(
            {"type": "reasoning.text", "id": "rs_1", "text": "a", "index": 0},
            {"type": "reasoning.text", "id": "", "text": "b", "index": 0},
            {"type": "reasoning.text", "id": "rs_1", "text": "c", "index": 0},
        )[0]["text"]
        == "abc"
    )
