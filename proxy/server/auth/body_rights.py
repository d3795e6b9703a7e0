"""Checks the rights of a client key that depend on the body: its models, and the owners of the ids in it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from proxy.base.errors import RequestError
from proxy.base.globs import fits
from proxy.relay.memory.commit_waiter import CommitWaiter
from proxy.rights.callers import Rights
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target
from proxy.store.base import Store
from proxy.wires.openai.dialect import CONVERSATIONS
from proxy.wires.registry.named_models import named_models
from proxy.wires.registry.requests import check_names, continued_by, conversation_of
from proxy.wires.responses.dialect import response_not_found

FORM: Final = "multipart/form-data"
"""The media type of forms with files."""


def must_read(rights: Rights, request: EdgeRequest, target: Target) -> bool:
    """Return whether the rights require reading a body that the proxy would otherwise pass on unread.

    Raises :class:`RequestError` (403) if the key is limited to models and the model of the request cannot be
    read. The model of a form is read as it passes (:class:`~proxy.server.messages.forms.Form`).
    """
    endpoint = target.endpoint
    if rights.isolated and endpoint.refers:
        return True
    if not rights.models:
        return False
    # If the top of a body does not name the model, a ``model`` there means nothing: a batch names it in the
    # lines of its file, an eval in its data source or its graders.
    media = request.content_type.lower()
    if endpoint.body == "form" and media == FORM:
        return False
    is_json = media == "application/json" or media.endswith("+json")
    if not is_json or not endpoint.model:
        raise RequestError(
            403,
            f"This key is limited to some models, and the proxy cannot read which model {request.method} "
            f"{target.shown} uses. With this key, send only requests whose JSON body names a model.",
            code="model_not_readable",
        )
    return True


def check_rights(rights: Rights, permits: Callable[[str], bool], payload: Mapping[str, Any]) -> None:
    """Refuse a body that a client key's rights do not cover.

    ``permits`` says whether a further model that the body names may be used. Raises :class:`RequestError`
    (400, 403) as :func:`~proxy.wires.registry.named_models.named_models` does, and 404 for a model that
    the key may not use.
    """
    check_names(payload)
    for field, model in named_models(payload) if rights.models else ():
        if not permits(model):
            raise RequestError(
                404,
                f"The model {model[:100]!r} does not exist or is not served here.",
                param=field,
                code="model_not_found",
            )


async def check_references(
    rights: Rights, payload: Mapping[str, Any], caller: str, store: Store, commits: CommitWaiter
) -> None:
    """Refuse a body that continues from another caller's response: one provider key keeps everybody's.

    Raises :class:`RequestError` (404), the same for another caller's and for a missing one, and
    :class:`~proxy.base.errors.StoreError` if the record cannot be read.
    """
    member = continued_by(payload)
    previous = None if member is None else member.value

    async def look() -> bool | None:
        if not isinstance(previous, str):
            return False
        if await store.find_response(previous, caller) is not None:
            return True
        return await store.is_response_owner(previous, caller) or None

    # Another process may have given it to the client a moment ago.
    if previous is not None and not await commits.look_again(look):
        raise response_not_found(404, previous)
    if (member := conversation_of(payload)) is None:
        return
    named = member.value.get("id") if isinstance(member.value, dict) else member.value
    if named is not None and not any(
        fits(f"{CONVERSATIONS.path}/{named}", pattern) for pattern in rights.endpoints
    ):
        raise RequestError(404, f"Conversation with id {str(named)[:100]!r} not found.", param=member.name)


def not_found(response_id: str) -> RequestError:
    """Return the error for a response of another caller. It is the same whether the response exists or
    not."""
    return RequestError(404, f"Response with id {response_id[:100]!r} not found.")
