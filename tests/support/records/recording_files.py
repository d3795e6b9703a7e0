"""The recorded answers in ``tests/recordings``, and in one more folder that a variable names."""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

OWN = Path(__file__).resolve().parents[2] / "recordings"
VARIABLE = "TOOLRELAY_TEST_RECORDINGS"
KINDS = ("sse", "ndjson", "json")
PATHS = {"/api/chat": "ollama", "/messages": "anthropic", "/responses": "responses", "/completions": "chat"}
OTHER_PATHS = ("/models", "/tags", "/embeddings", "/embed", "/generate", "/count_tokens", "/complete")
WORDS = {"ollama": "ollama", "messages": "anthropic", "responses": "responses", "chat": "chat"}


class RecordingFile(NamedTuple):
    """One answer: its dialect, its status, its provider, and the file with its body."""

    name: str
    wire: str
    status: int
    provider: str
    fidelity: str
    path: Path

    @property
    def streams(self) -> bool:
        """Whether the answer is a stream."""
        return self.path.suffix != ".json"

    @property
    def ours(self) -> bool:
        """Whether the recording belongs to the project."""
        return OWN in self.path.parents


@cache
def recording_files() -> tuple[RecordingFile, ...]:
    """Return all recordings, those of the project first; each folder is sorted by name."""
    folders = [OWN]
    if more := os.environ.get(VARIABLE):
        assert Path(more).is_dir(), f"{VARIABLE} names no folder: {more}"
        folders.append(Path(more))
    return tuple(file for folder in folders for file in _files(folder))


def _files(folder: Path) -> Iterator[RecordingFile]:
    for meta_file in sorted(folder.glob("*/*/meta.json")):
        meta = json.loads(meta_file.read_bytes())
        wire = _wire(str(meta.get("wire") or ""), str(meta.get("url") or meta.get("path") or ""))
        for kind in KINDS:
            body = meta_file.with_name(f"response.{kind}")
            if wire and body.exists():
                yield RecordingFile(
                    f"{meta_file.parent.name}.{kind}",
                    wire,
                    int(meta.get("status") or 200),
                    str(meta.get("provider") or ""),
                    str(meta.get("fidelity") or ""),
                    body,
                )


def _wire(said: str, address: str) -> str:
    """Return the dialect's name; empty if the recording is no answer of a model, such as a list of models.

    The path decides, if it is known, because an upstream has other endpoints beside that of the dialect.
    """
    if said in ("chat", "responses", "anthropic", "ollama"):
        return said
    path = address.partition("?")[0]
    if path.endswith(OTHER_PATHS):
        return ""
    by_path = next((wire for end, wire in PATHS.items() if path.endswith(end)), "")
    return by_path or next((wire for word, wire in WORDS.items() if word in said), "")
