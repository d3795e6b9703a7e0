"""Diagnoses of upstreams, in every kind of store."""

from typing import Any


async def test_the_newest_diagnosis_of_an_upstream_is_kept(store: Any) -> None:
    """The store keeps one diagnosis per upstream: a newer one replaces the earlier one."""
    assert await store.read_diagnoses() == {}
    await store.put_diagnosis("local", '{"a": 1}')
    await store.put_diagnosis("hosted", "{}")
    await store.put_diagnosis("local", '{"a": 2}')
    assert await store.read_diagnoses() == {"local": '{"a": 2}', "hosted": "{}"}
