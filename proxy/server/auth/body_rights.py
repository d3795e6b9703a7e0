"""What of a client key's rights only a request's body can tell: its models, and whose ids are in it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from proxy.errors import ModelMissing, RequestError
from proxy.globs import fits
from proxy.relay.run.settling import Settling
from proxy.server.callers import Rights
from proxy.server.serving.request import EdgeRequest
from proxy.store.base import Store
from proxy.wires.dialects.table import ENDPOINTS

__all__ = ["READS_IDS", "check_names", "check_references", "check_rights", "must_read", "not_found"]

READS_IDS: Final = frozenset(known.path for known in ENDPOINTS if known.refers)
"""Paths whose body may name a response or a conversation to go on from."""

_NAMES_ITS_MODEL: Final = frozenset(known.path for known in ENDPOINTS if known.model)
"""Paths whose JSON says at its top which model answers.

Elsewhere a ``model`` there says nothing: that of a batch stands in the lines of its file, that of an
eval in its data source or its graders, that of a realtime session inside of ``session``.
"""

_NAMED_ELSEWHERE: Final = ("models", "fallbacks")
"""Fields in which providers take further models to fall back on."""

_DECIDED_ON: Final = frozenset(
    {
        "background",
        "conversation",
        "include_usage",
        "model",
        "previous_response_id",
        "prompt",
        "stream",
        "stream_options",
        "tools",
        *_NAMED_ELSEWHERE,
    }
)
"""Fields that say what a request may reach, where it goes, and how it is counted."""


def must_read(rights: Rights, request: EdgeRequest, below: str) -> bool:
    """Whether the body has to be read before a request is passed on that the proxy does not read itself.

    Raises :class:`RequestError` (403) where somebody who is limited to models asks for something whose
    model cannot be read.
    """
    if rights.keyed and request.method == "POST" and below in READS_IDS:
        return True
    if not rights.models:
        return False
    media = request.content_type.lower()
    is_json = media == "application/json" or media.endswith("+json")
    if request.method != "POST" or not is_json or below not in _NAMES_ITS_MODEL:
        raise RequestError(
            403,
            f"This key is limited to some models, and that of {request.method} /v1{below[:100]} cannot be "
            "read. Only requests for an answer whose JSON body names its model are served to it.",
            code="model_not_readable",
        )
    return True


def check_names(payload: Mapping[str, Any]) -> None:
    """Refuse a field that is one of those we decide on but for the case of its letters.

    Readers in Go take such a field for the same, and of two the last one (encoding/json folds names).
    Raises :class:`RequestError` (400).
    """
    for name in payload:
        if name not in _DECIDED_ON and (folded := name.casefold()) in _DECIDED_ON:
            raise RequestError(400, f"Write {folded!r} in lower case.", param=name[:40])


def check_rights(rights: Rights, permits: Callable[[str], bool], payload: Mapping[str, Any]) -> None:
    """Refuse what a client key's rights do not cover and only the body tells.

    ``permits`` says whether a further model that the body names may be used.  Raises
    :class:`RequestError` (400, 404).
    """
    check_names(payload)
    for model in _models(rights, payload):
        if not permits(model):
            raise RequestError(
                404,
                f"The model {model[:100]!r} does not exist or is not served here.",
                param="model",
                code="model_not_found",
            )


def _models(rights: Rights, payload: Mapping[str, Any]) -> Iterator[str]:
    """Every further model that a body names, for whoever is limited to models.

    Raises :class:`RequestError` (400) where there is no model, since a provider would choose one, and
    where a further one is not a name.
    """
    if not rights.models:
        return
    if not isinstance(payload.get("model"), str):
        raise ModelMissing()
    for field in _NAMED_ELSEWHERE:
        further = payload.get(field)
        for model in further if isinstance(further, list) else () if further is None else (further,):
            if not isinstance(model, str):
                raise RequestError(400, f"{field} must be a list of names.", param=field)
            yield model
    tools = payload.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            check_names(tool)
            if isinstance(tool.get("model"), str):
                yield tool["model"]


async def check_references(
    rights: Rights, payload: Mapping[str, Any], caller: str, store: Store, settling: Settling
) -> None:
    """Refuse a body that goes on from what is not the caller's: one provider key keeps everybody's.

    Raises :class:`RequestError` (404), the same for what is another's and for what there is not, and
    :class:`~proxy.errors.StoreError` where nobody can say.
    """
    previous = payload.get("previous_response_id")

    async def look() -> bool | None:
        if not isinstance(previous, str):
            return False
        if await store.find_response(previous, caller) is not None:
            return True
        return await store.owns_response(previous, caller) or None

    # Another process may have given it to the client a moment ago.
    if previous is not None and not await settling.look(look):
        raise RequestError(
            404,
            f"Previous response with id {str(previous)[:100]!r} not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    conversation = payload.get("conversation")
    named = conversation.get("id") if isinstance(conversation, dict) else conversation
    if named is not None and not any(
        fits(f"/conversations/{named}", pattern) for pattern in rights.endpoints
    ):
        raise RequestError(404, f"Conversation with id {str(named)[:100]!r} not found.", param="conversation")


def not_found(response_id: str) -> RequestError:
    """What everybody is told of a response that is not theirs, whether or not there is one."""
    return RequestError(404, f"Response with id {response_id[:100]!r} not found.")
