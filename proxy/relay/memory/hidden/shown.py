"""Notes in stored turns, and the check that a client sends a turn back as it was shown."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.events import ToolCall
from proxy.json.splice import join_object
from proxy.records.rows import join_sources
from proxy.wires.client_port import ClientRequest

_MOST_ASKED_IN: Final = 32
"""The most runs of one conversation that are noted to have asked for approvals; the newest ones are
noted."""
AMBIGUOUS: Final = "several"
"""Replaces the variant of a held turn if several turns with the same calls were held under its key."""


def with_notes(payload: bytes, **notes: str) -> bytes:
    """Add the non-empty notes to the JSON object of a stored turn.

    ``untrusted`` has the sources whose untrusted results the model has read in it
    (:func:`.join_sources`), and ``upstream`` the upstream that made it. ``asked_in`` lists the
    runs of the conversation that have asked for approvals. ``loaded`` lists the tools that a search has
    shown the model, in their order. A held turn also has ``seen`` and ``asked``,
    digests of the text and the calls that the client was shown. Its ``variant`` distinguishes it from
    other turns with the same calls. ``with_tools`` are the items that have brought tools to a response.
    """
    said = {name: orjson.dumps(note) for name, note in notes.items() if note}
    # An editor's object is never empty, and has no members with these names.
    return payload[:-1] + b"," + join_object(said)[1:] if said else payload


def notes_of(kept: Mapping[str, Any]) -> tuple[str, str]:
    """Return the notes ``untrusted`` and ``upstream`` of :func:`with_notes`; empty strings if missing."""
    return str(kept.get("untrusted", "")), str(kept.get("upstream", ""))


def with_sources(payload: bytes, untrusted: str) -> bytes:
    """Add sources of untrusted results to the note of a stored turn, which has these results now."""
    kept = orjson.loads(payload)
    kept["untrusted"] = join_sources(notes_of(kept)[0], untrusted)
    return orjson.dumps(kept)


def asked_in_note(run_ids: Sequence[str]) -> str:
    """Return the value of the note ``asked_in``: the last of these runs, without duplicates."""
    return " ".join(list(dict.fromkeys(run_ids))[-_MOST_ASKED_IN:])


def asked_in_of(kept: Mapping[str, Any]) -> Sequence[str]:
    """Return the runs in the note ``asked_in``; none if it is missing."""
    return str(kept.get("asked_in", "")).split()


def loaded_of(kept: Mapping[str, Any]) -> Sequence[str]:
    """Return the tools in the note ``loaded``; none if it is missing."""
    return str(kept.get("loaded", "")).split()


def untrusted_in(payloads: Iterable[bytes]) -> str:
    """Return the sources of the untrusted results in these stored turns; empty if none."""
    return join_sources(*(notes_of(orjson.loads(payload))[0] for payload in payloads))


def is_shown(request: ClientRequest, position: int, kept: Mapping[str, Any]) -> bool:
    """Return whether a client sends this turn back as it was shown, and no other turn fits as well."""
    if kept.get("variant") == AMBIGUOUS:
        return False
    # The text of an answer is part of its key, so only held turns have this digest.
    seen = kept.get("seen")
    return request.fits(position, kept, lambda text: seen in (None, digest_of(text)))


def digest_of(text: str) -> str:
    """Return a digest of a text that a client was shown, in hexadecimal; the text may be empty.

    Whitespace around the text does not count: models begin and end with it, and libraries trim it.
    """
    return hashlib.blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def digest_of_calls(calls: Sequence[ToolCall]) -> str:
    """Return a digest of the calls that a client was shown, in hexadecimal."""
    asked = json.dumps([[call.name, call.arguments] for call in calls])
    return hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()
