"""Checks and reads the members that the requests of several dialects have in common."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final

from proxy.base.errors import ModelMissing, RequestError

_MOST_NAME: Final = 64
_PREVIEW: Final = 120
"""The length of a preview, in characters."""


def model_name(payload: Mapping[str, Any]) -> str:
    """Return the name of the model. Raises :class:`~proxy.base.errors.ModelMissing` if there is none."""
    model = payload.get("model")
    if not isinstance(model, str) or not model:
        raise ModelMissing()
    return model


def listed_messages(payload: Mapping[str, Any], field: str = "messages") -> list[dict[str, Any]]:
    """Return the messages of a conversation.

    Raises :class:`RequestError` if the value is not a list, or an element is not an object.
    """
    messages = payload.get(field)
    if not isinstance(messages, list):
        raise RequestError(400, f"{field} must be a list of messages.", param=field)
    for position, message in enumerate(messages):
        if type(message) is not dict:
            raise RequestError(400, f"{field}[{position}] must be an object.", param=f"{field}[{position}]")
    return messages


def listed_tools(payload: Mapping[str, Any], field: str = "tools") -> Sequence[Any]:
    """Return the entries of a list of tools; ``()`` if there is no list.

    Raises :class:`RequestError` if the value is not a list. Otherwise the proxy would replace it by its own
    tools and hide the mistake.
    """
    listed = payload.get(field)
    if listed is None:
        return ()
    if not isinstance(listed, list):
        raise RequestError(400, f"{field} must be a list of tools.", param=field)
    return listed


def declared_names(tools: Sequence[Any], name_of: Callable[[Any], str | None], place: str) -> tuple[str, ...]:
    """Return the names of the declared tools, in order.

    ``name_of`` returns the name of an entry, or ``None`` for an entry that the model does not call by a name.
    ``place`` names the field of the name in messages of errors; ``{}`` in it becomes the position of the
    tool, as in ``tools[{}].name``. Raises :class:`RequestError` for a name that is declared twice.
    """
    names: dict[str, None] = {}
    for position, tool in enumerate(tools):
        name = name_of(tool)
        if name is None:
            continue
        if name in names:
            at = place.format(position)
            raise RequestError(400, f"{at}: the tool {name[:_MOST_NAME]!r} is declared twice.", param=at)
        names[name] = None
    return tuple(names)


def check_result(
    param: str,
    call_id: object,
    calls: Mapping[str, str],
    unanswered: MutableMapping[str, int],
    reserved: Callable[[str], bool],
) -> None:
    """Check that a result answers an open call of the message before it, and count it.

    ``param`` is the field with the ``call_id``. ``calls`` are the names of the calls by id, and
    ``unanswered`` the number of results that each still lacks. Raises :class:`RequestError`.
    """
    if not isinstance(call_id, str) or not call_id:
        raise RequestError(400, f"{param} must name the call that this result answers.", param=param)
    if call_id not in calls:
        raise RequestError(
            400,
            f"{param} does not match a call of the assistant message before it. Remove the result.",
            param=param,
        )
    if not unanswered[call_id]:
        raise RequestError(400, f"{param} answers a call that already has a result.", param=param)
    if reserved(calls[call_id]):
        raise answers_server_call(param)
    unanswered[call_id] -= 1


def answers_server_call(param: str, result: str = "result") -> RequestError:
    """Return the error for a client's result of a server tool's call; ``param`` names its field."""
    return RequestError(
        400,
        f"{param} answers a call of a server tool, which only the proxy may answer. "
        f"Remove the call and its {result}.",
        param=param,
    )


def preview_of(text: object) -> str:
    """Return the beginning of a text, for people who watch the run; ``""`` for anything but a text."""
    return text[:_PREVIEW] if isinstance(text, str) else ""
