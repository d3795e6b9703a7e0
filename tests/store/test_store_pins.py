"""Pins of MCP tools, in every kind of store."""

from typing import Any


async def test_pins_are_kept_by_their_ids(store: Any) -> None:
    """The store keeps one pin per tool id, the latest, and lists them sorted; a deleted pin is gone."""
    assert await store.read_pins() == {}
    await store.put_pins({"mcp__b__x": '{"a": 1}', "mcp__a__x": "{}"})
    await store.put_pins({"mcp__b__x": '{"a": 2}'})
    assert list((await store.read_pins()).items()) == [("mcp__a__x", "{}"), ("mcp__b__x", '{"a": 2}')]
    assert await store.delete_pin("mcp__a__x")
    assert not await store.delete_pin("mcp__a__x")
    assert await store.read_pins() == {"mcp__b__x": '{"a": 2}'}


async def test_no_pins_are_no_write(store: Any) -> None:
    """Putting no pins succeeds and leaves the store empty."""
    await store.put_pins({})
    assert await store.read_pins() == {}
