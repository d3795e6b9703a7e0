"""The folder of recordings: how many there are of each kind, and that nothing in it is private."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from recording_files import KINDS, OWN

FOLDERS = sorted(meta.parent for meta in OWN.glob("*/*/meta.json"))
FIELDS = ["provider", "wire", "model", "status", "fidelity"]
PRIVATE = re.compile(
    rb"sk-|gsk_|ghp_|AIza|xai-|Bearer |[\w.+-]+@[\w-]+\.\w|(?:\d{1,3}\.){3}\d{1,3}|/home/|/Users/|/tmp/"
)


def test_there_are_so_many() -> None:
    """The folder has exactly so many recordings of each kind, so that a lost one is noticed."""
    found = Counter(
        (folder.parent.name, body.suffix[1:]) for folder in FOLDERS for body in folder.glob("response.*")
    )
    assert found == {
        ("chat", "sse"): 10,
        ("chat", "json"): 5,
        ("responses", "json"): 4,
        ("anthropic", "sse"): 10,
        ("anthropic", "json"): 9,
        ("ollama", "ndjson"): 19,
        ("ollama", "json"): 8,
    }
    errors = Counter(
        folder.parent.name
        for folder in FOLDERS
        if json.loads((folder / "meta.json").read_bytes())["status"] >= 400
    )
    assert errors == {"chat": 4, "responses": 2, "anthropic": 6, "ollama": 5}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_each_says_what_it_is(folder: Path) -> None:
    """Each folder has one body of its dialect, which belongs to the project and has no key or address."""
    meta = json.loads((folder / "meta.json").read_bytes())
    assert list(meta) == FIELDS
    assert meta["wire"] == folder.parent.name
    assert meta["fidelity"] in ("own", "hand-written")
    files = sorted(file.name for file in folder.iterdir() if file.name != "meta.json")
    assert len(files) == 1
    assert files[0].removeprefix("response.") in KINDS
    assert PRIVATE.search((folder / files[0]).read_bytes()) is None
