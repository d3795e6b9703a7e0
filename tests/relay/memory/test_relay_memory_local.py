"""Responses that only their connection remembers, because they are not stored."""

from proxy.records.rows import ResponseRecord
from proxy.relay.memory.local import LocalResponses


def response(number: int, size: int = 10, caller: str = "open") -> ResponseRecord:
    """A response of this size in bytes."""
    return ResponseRecord(f"resp_{number}", "run", caller, b"x" * size, b"", b"", 0.0)


def kept(local: LocalResponses, numbers: range) -> list[int]:
    """The numbers of the responses that are known."""
    return [number for number in numbers if local.find(f"resp_{number}", "open") is not None]


def test_the_newest_are_kept() -> None:
    """Only the newest responses are kept, within bounds for their number and their bytes."""
    local = LocalResponses(most=3, max_bytes=100)
    for number in range(5):
        local.put(response(number))
    assert kept(local, range(5)) == [2, 3, 4]
    local.put(response(5, size=85))
    assert kept(local, range(6)) == [4, 5]
    local.put(response(6, size=101))
    assert kept(local, range(7)) == [4, 5]


def test_what_is_forgotten_makes_room() -> None:
    """A response that is put again or forgotten no longer counts towards the bounds."""
    local = LocalResponses(most=3, max_bytes=100)
    for _ in range(3):
        local.put(response(1, size=90))
    local.forget("resp_1")
    local.forget("resp_none")
    local.put(response(2, size=90))
    assert kept(local, range(3)) == [2]


def test_an_item_is_found_in_its_response() -> None:
    """The response that has an item is found by the item's id, by its caller alone."""
    local = LocalResponses()
    for number in range(3):
        body = b'{"id":"resp_%d","output":[{"id":"ig_%d","text":"not ig_9"}]}' % (number, number)
        local.put(ResponseRecord(f"resp_{number}", "run", "open", body, b"", b"", 0.0))
    assert local.holding("ig_1", "open") == "resp_1"
    assert local.holding("ig_1", "eve") == ""
    assert local.holding("ig_9", "open") == ""


def test_a_response_is_its_callers() -> None:
    """Another caller on the same connection does not find the response."""
    local = LocalResponses()
    local.put(response(1, caller="alice"))
    assert local.find("resp_1", "bob") is None
    assert local.find("resp_1", "alice") is not None
