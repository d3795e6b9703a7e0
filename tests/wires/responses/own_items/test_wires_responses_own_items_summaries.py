"""Sealed summaries: only the caller who got one can use it, and only unchanged."""

import base64
import json
from typing import Any

import pytest

from proxy.base.errors import RequestError
from proxy.wires.responses.own_items.summaries import SealedSummaries, is_own_compaction
from proxy.wires.responses.wire import ResponsesWire

KEY = bytes(range(32))
SUMMARY = "Launch on Tuesday. Support is told first. 🚀"


def opened(item: dict[str, Any], key: bytes = KEY, caller: str = "alice") -> str:
    """Return the text that replaces an item."""
    return str(SealedSummaries([key], caller).message(item, "input[0]")["content"][0]["text"])


def test_a_summary_comes_back_to_its_caller() -> None:
    """A summary can be opened with the key and the caller alone, so also after a restart."""
    item = SealedSummaries([KEY], "alice").item(SUMMARY)
    assert is_own_compaction(item)
    assert SUMMARY not in json.dumps(item, ensure_ascii=False)
    assert opened(item).endswith(SUMMARY)


def test_two_items_of_one_summary_differ() -> None:
    """Two items of the same summary have different encrypted texts."""
    summaries = SealedSummaries([KEY], "alice")
    first, second = summaries.item(SUMMARY), summaries.item(SUMMARY)
    assert first["encrypted_content"] != second["encrypted_content"]


def spoiled() -> dict[str, dict[str, Any]]:
    """Return items that somebody changed."""
    summaries = SealedSummaries([KEY], "alice")
    item, other = summaries.item(SUMMARY), summaries.item("something else")
    sealed = base64.b64decode(item["encrypted_content"])
    flipped = base64.b64encode(sealed[:-1] + bytes([sealed[-1] ^ 1])).decode()
    version = base64.b64encode(b"\x02" + sealed[1:]).decode()
    return {
        "flipped": {**item, "encrypted_content": flipped},
        "version": {**item, "encrypted_content": version},
        "cut": {**item, "encrypted_content": item["encrypted_content"][:40]},
        "moved": {**other, "encrypted_content": item["encrypted_content"]},
        "empty": {**item, "encrypted_content": ""},
        "missing": {"id": item["id"], "type": "compaction"},
        "number": {**item, "encrypted_content": 7},
        "no base64": {**item, "encrypted_content": "!!"},
        "lone surrogate": {**item, "encrypted_content": "\ud800"},
        "huge": {**item, "encrypted_content": "A" * (3 << 20)},
    }


@pytest.mark.parametrize("what", spoiled())
def test_a_changed_item_is_refused(what: str) -> None:
    """The error for a changed item names the field and tells the client to compact again."""
    with pytest.raises(RequestError) as caught:
        opened(spoiled()[what])
    assert caught.value.status == 400
    assert caught.value.param == "input[0].encrypted_content"
    assert "compact them again" in str(caught.value)


@pytest.mark.parametrize(("key", "caller"), [(KEY, "bob"), (bytes(32), "alice"), (KEY, "")])
def test_an_item_of_another_caller_or_proxy_is_refused(key: bytes, caller: str) -> None:
    """An item that was sealed for another caller, or with another key, is refused."""
    item = SealedSummaries([KEY], "alice").item(SUMMARY)
    with pytest.raises(RequestError):
        opened(item, key, caller)


def test_an_upstream_of_this_dialect_gets_the_summary_in_the_place_of_the_item() -> None:
    """The summary's text replaces the item, and all other items keep their bytes."""
    wire = ResponsesWire(KEY)
    item = wire.summaries("alice").item(SUMMARY)
    raw = b'{"model":"m","input":[{"role":"user","content":"a" },%b,{"role":"user", "content":"b"}]}'
    raw = raw.replace(b"%b", json.dumps(item).encode())
    request = wire.parse(json.loads(raw))
    assert request.has_proxy_calls
    sent = wire.editor(raw, request, caller="alice").render()
    assert b'{"role":"user","content":"a" }' in sent
    assert b'{"role":"user", "content":"b"}' in sent
    middle = json.loads(sent)["input"][1]
    assert (middle["role"], middle["content"][0]["text"].endswith(SUMMARY)) == ("user", True)


def test_a_compaction_of_a_provider_is_left_alone() -> None:
    """A provider's own compaction item stays unchanged."""
    wire = ResponsesWire(KEY)
    raw = b'{"model":"m","input":[{"type":"compaction","id":"cmp_1","encrypted_content":"gAAA"}]}'
    request = wire.parse(json.loads(raw))
    assert not request.has_proxy_calls
    assert wire.editor(raw, request, caller="alice").render() == raw
