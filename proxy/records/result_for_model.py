"""Results of calls on their way to a model, in the one form from which dialects write them.

A call may wait: for a person's decision, or for an agent that itself waits. Then its result has a
:class:`Hole` in place of the text. A turn that is held until the client returns is stored with its holes, and
they are filled when the outcome is known. A hole is a value beside the texts, so no text can be taken for
one, and a result that still has a hole has no text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from proxy.base.errors import ToolErrorCode
from proxy.base.events import ResultImage, ToolCall


def failure_text(code: ToolErrorCode, message: str) -> str:
    """Return what a model reads about a call that failed or did not run (rule T3)."""
    return orjson.dumps({"ok": False, "error_code": code, "message": message}).decode()


class UnfilledHole(RuntimeError):
    """A result was written for a model while its call still waited."""


class Hole(Struct, frozen=True):
    """The place of a text that does not exist yet; ``waits_for`` names an approval or an agent's turn."""

    waits_for: str


class ResultForModel(Struct, frozen=True):
    """The result of one call.

    ``parts`` has one text, with ``None`` for its name. For a wrapper call it has the names and texts of the
    calls inside.
    """

    call: ToolCall
    parts: tuple[tuple[str | None, str | Hole], ...]
    images: tuple[ResultImage, ...] = ()

    @property
    def waits_for(self) -> tuple[str, ...]:
        """What the holes wait for, in order."""
        return tuple(text.waits_for for _, text in self.parts if isinstance(text, Hole))

    @property
    def text(self) -> str:
        """The text for the model; raises :class:`UnfilledHole` if there is none yet."""
        name, text = self.parts[0]
        if name is None and isinstance(text, str):
            return text
        if self.waits_for:
            raise UnfilledHole(f"{self.call.call_id} waits for {' '.join(self.waits_for)}")
        inside = [{"recipient_name": f"functions.{name}", "output": text} for name, text in self.parts]
        return orjson.dumps(inside).decode()

    def filled(self, texts: Mapping[str, str | Hole]) -> "ResultForModel":
        """Return the result with those holes filled whose names are in ``texts``."""
        parts = [
            (name, texts.get(text.waits_for, text) if isinstance(text, Hole) else text)
            for name, text in self.parts
        ]
        return replace(self, parts=tuple(parts))


def stored_result(result: bytes | ResultForModel | None) -> Any:
    """Return a result as it stands in the JSON of a held turn: written already, with its holes, or none."""
    if not isinstance(result, ResultForModel):
        return None if result is None else result.decode()
    call = result.call
    parts = [
        [name, {"waits_for": part.waits_for} if isinstance(part, Hole) else part]
        for name, part in result.parts
    ]
    return {
        # Its arguments stand in the model's message, and may be private.
        "call": [call.call_id, call.name, call.index, call.legacy],
        "parts": parts,
        "images": [astuple(image) for image in result.images],
    }


def read_result(stored: Any) -> bytes | ResultForModel:
    """Return what :func:`stored_result` wrote; raises TypeError for ``None``."""
    if not isinstance(stored, dict):
        return str.encode(stored)
    call_id, name, index, legacy = stored["call"]
    parts = [(name, Hole(**part) if isinstance(part, dict) else part) for name, part in stored["parts"]]
    images = tuple(ResultImage(*image) for image in stored["images"])
    return ResultForModel(ToolCall(call_id, name, "", index, legacy=legacy), tuple(parts), images)


def holes_in(payload: bytes) -> Sequence[str]:
    """Return what a held turn waits for, each name once, in the order of its calls."""
    if b'"waits_for"' not in payload:
        return []
    results = map(read_result, _stored_results(orjson.loads(payload)))
    return list(
        dict.fromkeys(name for each in results if isinstance(each, ResultForModel) for name in each.waits_for)
    )


def fill_holes(payload: bytes, texts: Mapping[str, str | Hole]) -> bytes:
    """Return a held turn with those holes filled whose names are in ``texts``; the others stay."""
    held = orjson.loads(payload)
    for stored in _stored_results(held):
        result = read_result(stored)
        if isinstance(result, ResultForModel):
            stored.update(stored_result(result.filled(texts)))
    return orjson.dumps(held)


def _stored_results(held: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """Return the results in a held turn that no dialect has written yet."""
    stored = [*held.get("items", ()), *(call["result"] for call in held.get("calls", ()))]
    return [each for each in stored if isinstance(each, dict)]
