"""Pins: the definitions that an operator has allowed, and their comparison with live definitions."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from mcp_script import tool_definition

from proxy.base.errors import ConfigError
from proxy.tools.mcp.definitions import Definition, UnusableDefinition, read_listing
from proxy.tools.mcp.pins import FiledPins, Pin, RecordedPins, compare, read_pin_file, write_pin_file


def definition(name: str = "a", description: str = "Reads.") -> Definition:
    """A tool of the server ``files``."""
    return read_listing("files", [tool_definition(name, description)]).definitions[0]


PIN = Pin(definition(), "here", 1.0, "somebody")


@pytest.mark.parametrize(
    ("pin", "live", "transport", "state"),
    [
        (PIN, definition(), "here", "pinned"),
        (PIN, definition(description="Reads, and more."), "here", "changed"),
        (PIN, definition(), "elsewhere", "moved"),
        (PIN, None, "here", "gone"),
        (None, definition(), "here", "new"),
    ],
)
def test_a_live_definition_is_compared_with_its_pin(
    pin: Pin | None, live: Definition | None, transport: str, state: str
) -> None:
    """Rule T9: a tool with another digest is "changed", and one of another transport is "moved"."""
    assert compare(pin, None if live is None else live.digest, transport) == state


def test_a_file_of_pins_is_sorted_and_read_back(tmp_path: Path) -> None:
    """A pin file is sorted, so that the order of its pins does not change it, and can be read back."""
    path = tmp_path / "pins.json"
    pins = [PIN, replace(PIN, definition=definition("0"))]
    write_pin_file(path, pins)
    assert read_pin_file(path) == sorted(pins, key=lambda pin: pin.id)
    first = path.read_text()
    write_pin_file(path, reversed(pins))
    assert path.read_text() == first


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a file of pins"),
        ("[]", "not a file of pins"),
        ('{"version": 2, "pins": []}', "version 2"),
        ('{"version": 1, "pins": [3]}', r"pins\[0\]"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, text: str, words: str) -> None:
    """The error about an invalid pin file names its fault or the invalid pin."""
    path = tmp_path / "pins.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        FiledPins(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """A missing pin file is a configuration error."""
    with pytest.raises(ConfigError, match="cannot be read"):
        FiledPins(tmp_path / "none.json")


def test_a_definition_that_was_edited_by_hand_is_no_pin() -> None:
    """A pin whose definition does not match its digest is refused."""
    written = PIN.written()
    written["definition"]["description"] = "Sends it away."
    with pytest.raises(UnusableDefinition, match="digest"):
        Pin.read(written)


class Record:
    """A fake record with these rows."""

    def __init__(self, rows: Mapping[str, str]) -> None:
        self.rows = dict(rows)

    async def read_pins(self) -> Mapping[str, str]:
        """Return all rows."""
        return self.rows

    async def put_pins(self, pins: Mapping[str, str]) -> None:
        """Add rows."""
        self.rows.update(pins)

    async def delete_pin(self, pin_id: str) -> bool:
        """Remove a row."""
        return self.rows.pop(pin_id, None) is not None


async def test_a_row_that_is_no_pin_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """An invalid row is skipped and named in the log once, and the other pins are read."""
    written = PIN.written()
    odd = {**written, "definition": {**written["definition"], "outputSchema": [1]}}
    noted = {**written, "definition": {**written["definition"], "annotations": [1]}}
    rows = {
        "mcp__files__a": json.dumps(written),
        "mcp__files__b": "{",
        "mcp__files__c": "{}",
        "mcp__files__d": "[" * 100_000,
        "mcp__files__e": json.dumps(odd),
        "mcp__files__f": json.dumps(noted),
    }
    recorded = RecordedPins(Record(rows))
    for _ in range(2):
        assert await recorded.pins() == [PIN]
    said = [record.getMessage().partition(" cannot be used")[0] for record in caplog.records]
    assert said == [f"the pin of mcp__files__{letter}" for letter in "bcdef"]


async def test_only_rows_that_have_changed_are_read_again() -> None:
    """A pin whose row has not changed is the same object at the next look; a changed row is read."""
    record = Record({"mcp__files__a": json.dumps(PIN.written())})
    recorded = RecordedPins(record)
    (first,) = await recorded.pins()
    (second,) = await recorded.pins()
    assert second is first
    changed = replace(PIN, definition=definition(description="Reads, and more."))
    record.rows["mcp__files__a"] = json.dumps(changed.written())
    (third,) = await recorded.pins()
    assert third.digest == changed.digest != first.digest
    record.rows.clear()
    assert await recorded.pins() == []
