"""What is noted beside a kept turn, and whether a client sends back what it was shown of it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.events import ToolCall
from proxy.wires.client_port import ClientRequest
from proxy.wires.json.splice import join_object

__all__ = ["AMBIGUOUS", "digest_of", "digest_of_calls", "is_shown", "marks_of", "with_marks"]

AMBIGUOUS: Final = "several"
"""In place of the variant of a held turn: others of the same calls were held under its key."""


def with_marks(payload: bytes, **marks: str) -> bytes:
    """What is kept, with what the relay has to know of it: ``untrusted``, the tool whose untrusted
    result the model has read in it, ``upstream``, where it was made, of a held turn ``seen`` and
    ``asked``, digests of the text and the calls that the client was shown, and ``variant``, which tells
    it from others of the same calls."""
    said = {name: orjson.dumps(mark) for name, mark in marks.items() if mark}
    # An editor's object is never empty and has no members of these names.
    return payload[:-1] + b"," + join_object(said)[1:] if said else payload


def marks_of(kept: Mapping[str, Any]) -> tuple[str, str]:
    """The tool and the upstream that :func:`with_marks` named; each empty where it named none."""
    return str(kept.get("untrusted", "")), str(kept.get("upstream", ""))


def is_shown(request: ClientRequest, position: int, kept: Mapping[str, Any]) -> bool:
    """Whether a client sends back what it was shown of that turn, and of no other."""
    if kept.get("variant") == AMBIGUOUS:
        return False
    # Of an answer the text is in the key.
    seen = kept.get("seen")
    return request.fits(position, kept, lambda text: seen in (None, digest_of(text)))


def digest_of(text: str) -> str:
    """A digest of a text that a client was shown, in hexadecimal; of none, too.

    Blanks around it do not count: models begin and end with them, and libraries trim.
    """
    return hashlib.blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def digest_of_calls(calls: Sequence[ToolCall]) -> str:
    """A digest of what a client was asked to do, in hexadecimal."""
    asked = json.dumps([[call.name, call.arguments] for call in calls])
    return hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()
