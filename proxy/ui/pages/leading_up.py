"""What led to a call that waits for an approval: the user's question and the model's last words.

Who may decide about the call may read this, also without being an administrator. It is no more than a person
needs to decide: no instructions, no results of tools, and nothing of other turns of the client.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from proxy.relay.approvals.decisions import Decisions
from proxy.relay.approvals.rules import Decider
from proxy.store.base import RunDetail, Store
from proxy.ui.runs.conversation import conversation_of
from proxy.ui.static_files import API_PREFIX
from proxy.ui.surface import UiRequest
from proxy.wires.crossing.codec import ConversationCodec

_MOST_TURNS: Final = 3
_MOST_CALLS: Final = 32
_LONGEST: Final = 4000
"""The most characters of each text."""


class LeadingUp:
    """Reads what led to calls. ``codecs`` read the requests of each dialect."""

    def __init__(self, decisions: Decisions, store: Store, codecs: Mapping[str, ConversationCodec]) -> None:
        self._decisions = decisions
        self._store = store
        self._codecs = codecs
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.ui")

    async def to(self, approval_id: str, decider: Decider, request: UiRequest) -> dict[str, Any]:
        """Return ``question``, ``None`` if it was not kept, and ``turns``: texts of the model with the names
        of the tools that it called then.

        Raises :class:`~proxy.base.errors.RequestError` (404) if ``decider`` may not see the approval, and
        :class:`~proxy.base.errors.StoreError`.
        """
        approval = await self._decisions.find(approval_id, decider)
        detail = await self._store.get_run(approval.run_id) if approval.run_id else None
        if detail is None or detail.run.id != approval.run_id:
            return {"object": "ui.context", "question": None, "turns": []}
        self._log.warning(
            "content_read",
            command=f"{API_PREFIX}approvals/context",
            caller=request.session.caller,
            request_id=request.facts.request_id,
            run_id=detail.run.id,
            messages=len(detail.messages),
        )
        codec = self._codecs.get(detail.run.wire)
        return await asyncio.to_thread(led_to, detail, codec)


def led_to(detail: RunDetail, codec: ConversationCodec | None) -> dict[str, Any]:
    """Return the question of a run and the model's last turns."""
    messages = conversation_of(detail, codec)["messages"]
    asked = [
        at for at, one in enumerate(messages) if one["turn"] == 0 and one["role"] == "user" and _text(one)
    ]
    later = [one for one in messages[asked[-1] + 1 if asked else 0 :] if one["role"] == "assistant"]
    turns = [{"text": _text(one), "calls": _calls(one)} for one in later[-_MOST_TURNS:]]
    return {
        "object": "ui.context",
        "question": _text(messages[asked[-1]]) if asked else None,
        "turns": [turn for turn in turns if turn["text"] or turn["calls"]],
    }


def _text(message: Mapping[str, Any]) -> str:
    texts = "\n\n".join(part["text"] for part in message["parts"] if part["kind"] == "text")
    return texts if len(texts) <= _LONGEST else f"{texts[: _LONGEST - 1]}…"


def _calls(message: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the tools that ran in a turn."""
    return [part["name"] for part in message["parts"] if part["kind"] == "call" and part["invocation"]][
        :_MOST_CALLS
    ]
