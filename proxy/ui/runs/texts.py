"""The question and the answer of runs, on one line each, for the list of runs."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.records.rows import MessageRecord
from proxy.records.words import MOST_BYTES
from proxy.store.base import Store
from proxy.ui.runs.conversation import FAILURE, request_messages
from proxy.wires.crossing.codec import ConversationCodec

_LONGEST_LINE: Final = 200
_LONGEST_READ: Final = 20_000
"""Only so many characters of a text are folded into a line."""
_ROLES: Final = ("request", "assistant", FAILURE, "program")

Codecs = Mapping[str, ConversationCodec]


async def read_texts(store: Store, codecs: Codecs, wires: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return ``id``, ``question`` and ``answer`` of runs; ``None`` for what was not kept. Raises StoreError.

    ``wires`` maps the id of each run to the dialect of its client.
    """
    made = {run_id: {"question": None, "answer": None} for run_id in wires}
    async for portion in store.read_messages(list(wires), _ROLES, MOST_BYTES):
        made |= {run_id: texts_of(rows, codecs.get(wires[run_id])) for run_id, rows in portion.items()}
    return [{"id": run_id, **texts} for run_id, texts in made.items()]


def texts_of(messages: Sequence[MessageRecord], codec: ConversationCodec | None) -> dict[str, Any]:
    """Return the last text of the client, and the last of the model or the message of the failure."""
    question = next((_line(row.content) for row in messages if row.role == "program" and row.content), None)
    request = next((row.content_json for row in messages if row.role == "request"), None)
    if request is not None:
        spoken = [_text(one["parts"]) for one in request_messages(request, codec) if one["role"] == "user"]
        question = next(filter(None, reversed(spoken)), None)
    answers = [row.content for row in messages if row.role in ("assistant", FAILURE) and row.content]
    return {"question": question, "answer": _line(answers[-1]) if answers else None}


def _text(parts: Sequence[Mapping[str, Any]]) -> str:
    texts = [str(part["text"]) for part in parts if part["kind"] in ("text", "code") and part["text"]]
    # A client may put instructions of its own before what the user wrote, in parts of the same message.
    return _line(texts[-1]) if texts else ""


def _line(text: str) -> str:
    line = " ".join(text[:_LONGEST_READ].split())
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"
