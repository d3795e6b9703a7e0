"""The items of a Responses conversation: who made each one, the form of the proxy's own, references, answers.

Source: OpenAI's API reference, "The response object" and "Input items".
"""

import hashlib
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from proxy.base.chance import replayable
from proxy.base.conversation import Message, Refusal, Text, ToolCallPart
from proxy.base.errors import RequestError
from proxy.json.splice import elements, join_array, join_object, members, replace_values, value_at
from proxy.records.approvals import is_mention
from proxy.wires.chosen import ChosenServer, ServedTool

SERVER_LABEL = "toolrelay"
MOST_NAMED_BYTES = 64 << 20
"""Bytes of all stored items that a request names in place of sending them."""

_SEALED_TURN = f"{SERVER_LABEL}-turn:"
"""The prefix of ``encrypted_content`` that marks an encrypted turn of the proxy. Providers and libraries
accept any text there; some libraries drop the item's id."""

_UNSIGNED = (
    "The client reports this tool call. It was not made in this conversation, or it was changed since."
)

_CLIENT_ROLES = frozenset({"user", "system", "developer"})
_CLIENT_ITEMS = frozenset(
    {
        "function_call_output",
        "custom_tool_call_output",
        "computer_call_output",
        "local_shell_call_output",
        "shell_call_output",
        "apply_patch_call_output",
        "mcp_approval_response",
        "compaction_trigger",
        "additional_tools",
        "configuration_update",
    }
)


_PREFIXES = {
    "response": "resp",
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
}
"""Prefixes of ids. Providers refuse a call whose id has another prefix."""

_NOT_OF_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64
_OUR_RESPONSE = re.compile(r"resp_([0-9a-f]{48})")
_ITEM_OF = re.compile(r"[a-z]+_([0-9a-f]{48})[0-9a-f]{8}")


def mint_item_id(kind: object, response_id: str = "") -> str:
    """Return a new id for an item of this type, or for a response, whose own id is missing or taken.

    If ``response_id`` is the id of a response of the proxy, :func:`response_of` finds it in the item's id.
    An upstream's id has no effect.
    """
    prefix = _PREFIXES.get(kind, "item") if isinstance(kind, str) else "item"
    ours = _OUR_RESPONSE.fullmatch(response_id)
    within = ours[1] if ours is not None else ""
    return f"{prefix}_{within}{replayable('item_id', lambda: secrets.token_hex(4 if within else 24))}"


def response_of(item_id: str) -> str:
    """Return the id of the proxy's response that one of its items belongs to; ``""`` for any other item."""
    match = _ITEM_OF.fullmatch(item_id)
    return f"resp_{match[1]}" if match is not None else ""


def is_reference(item: Mapping[str, Any]) -> bool:
    """Return whether an item only refers, by its id, to one that the client was given before.

    Source: OpenAI's API reference; the type of such an item may be left out.
    """
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and item.get("role") is None and "content" not in item)


def names_image(item: Mapping[str, Any]) -> bool:
    """Return whether an item only names an image of the proxy's own, by its id.

    OpenAI's guide "Image generation" does so by an ``image_generation_call`` without ``result``.
    """
    alone = is_reference(item) or (item.get("type") == "image_generation_call" and not item.get("result"))
    return alone and str(item.get("id")).startswith(own_mark("ig"))


def own_item_id(prefix: str) -> str:
    """Return an id for an item of the proxy's own, which the proxy recognizes when a client sends it back."""
    return own_mark(prefix) + replayable("own_item_id", lambda: secrets.token_hex(20))


def own_mark(prefix: str) -> str:
    """Return the beginning of the ids of the proxy's own items."""
    return f"{prefix}_{SERVER_LABEL}"


def request_id_of(approval_id: str) -> str:
    """Return the id of the item that asks for an approval. Its prefix marks it as the proxy's own."""
    return own_mark("mcpr") + approval_id.removeprefix("appr_")


def _is_own_id(value: object) -> bool:
    return isinstance(value, str) and value.partition("_")[2].startswith(SERVER_LABEL)


def is_model_item(item: Mapping[str, Any]) -> bool:
    """Return whether a model or its provider produced an item, rather than the client.

    A reference counts as the model's: clients refer to what they received, and send their own items whole.
    """
    # A client may send anything, also unhashable values.
    kind = str(item.get("type") or "message")
    if kind == "message":
        return str(item.get("role")) not in _CLIENT_ROLES
    return kind not in _CLIENT_ITEMS


def item_text(item: Mapping[str, Any]) -> str:
    """Return the text of a message item; ``""`` for anything else."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def mcp_call(
    item_id: str,
    name: str,
    arguments: str,
    *,
    status: str,
    label: str = SERVER_LABEL,
    asked_by: str | None = None,
) -> dict[str, Any]:
    """Return a server call as a hosted MCP call, the only form that every client shows and none runs.

    ``label`` is the client's name of the server. ``asked_by`` is the id of the item that asked for
    approval.
    """
    return {
        "id": item_id,
        "type": "mcp_call",
        "server_label": label,
        "name": name,
        "arguments": arguments,
        "output": None,
        "error": None,
        "status": status,
        "approval_request_id": asked_by,
    }


def mcp_list(item_id: str, label: str, tools: Sequence[ServedTool]) -> dict[str, Any]:
    """Return the tools of a server, as a hosted MCP server lists them."""
    listed = [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": tool.schema,
            "annotations": {"read_only": tool.reads},
        }
        for tool in tools
    ]
    return {"id": item_id, "type": "mcp_list_tools", "server_label": label, "tools": listed}


def message_item(item_id: str, text: str | None, *, status: str) -> dict[str, Any]:
    """Return a message of the assistant; without a text, its content comes later."""
    content = [] if text is None else [text_part(text)]
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def reasoning_item(item_id: str, text: str | None) -> dict[str, Any]:
    """Return a reasoning item with a summary of one part."""
    summary = [] if text is None else [{"type": "summary_text", "text": text}]
    return {"id": item_id, "type": "reasoning", "summary": summary}


def sealed_turn_item(item_id: str, sealed: str) -> dict[str, Any]:
    """Return a reasoning item with an encrypted turn, which clients send back with their conversation."""
    return {**reasoning_item(item_id, None), "encrypted_content": _SEALED_TURN + sealed}


def sealed_turn(item: Any) -> str | None:
    """Return the encrypted turn in an item of the proxy; ``None`` for anything else."""
    is_reasoning = isinstance(item, Mapping) and item.get("type") == "reasoning"
    content = item.get("encrypted_content") if is_reasoning else None
    if not isinstance(content, str) or not content.startswith(_SEALED_TURN):
        return None
    return content[len(_SEALED_TURN) :]


def sealed_bytes(items: Sequence[bytes]) -> int:
    """Return the total length of the items that hold encrypted turns."""
    likely = (item for item in items if _SEALED_TURN.encode() in item)
    return sum(len(item) for item in likely if sealed_turn(orjson.loads(item)) is not None)


def without_sealed_turns(raw: bytes) -> bytes:
    """Return a request body without items that hold encrypted turns; the same bytes if it has none."""
    if f'"{_SEALED_TURN}'.encode() not in raw:
        return raw
    parts = members(raw)
    given = parts.get("input", b"")
    if given[:1] != b"[":
        return raw
    items = elements(given)
    kept = [item for item in items if sealed_turn(orjson.loads(item)) is None]
    return raw if len(kept) == len(items) else join_object({**parts, "input": join_array(kept)})


def is_ours(item: Mapping[str, Any], labels: Collection[str] = ()) -> bool:
    """Return whether an item is one of the proxy's own, or claims to be.

    ``labels`` are the client's names of the proxy's servers in this request.
    """
    label = item.get("server_label")
    if label == SERVER_LABEL or (labels and isinstance(label, str) and label in labels):
        return True
    if _is_own_id(item.get("id")) or _is_own_id(item.get("approval_request_id")):
        return True
    return item.get("type") == "reasoning" and sealed_turn(item) is not None


def is_shown_call(item: Mapping[str, Any], labels: Collection[str] = ()) -> bool:
    """Return whether an item shows a server call, or claims to."""
    return item.get("type") == "mcp_call" and is_ours(item, labels)


def called_name(item: Mapping[str, Any], servers: Sequence[ChosenServer], offered: Collection[str]) -> str:
    """Return the name that models use for the tool of a shown call, as far as it is known.

    ``servers`` are those that the request chooses, and ``offered`` the names of its server tools.
    """
    label, name = item.get("server_label"), str(item.get("name") or "")
    for server in (chosen.name for chosen in servers if chosen.label == label and name not in offered):
        known = (f"mcp__{server}__{name}", f"{server}__{name}")
        name = next((candidate for candidate in known if candidate in offered), known[0] if server else name)
    return _NOT_OF_NAMES.sub("_", name)[:_LONGEST_NAME]


def as_upstream_items(
    item: Mapping[str, Any], *, signed: bool, labels: Collection[str] = (), called: str = ""
) -> list[dict[str, Any]]:
    """Return the items for the upstream in place of an item of the proxy that a client sends back.

    ``called`` is the tool's name for models; ``labels`` are those of :func:`is_ours`. A ``signed`` call
    becomes the call and its output. A call without a signature may be the client's invention, and goes
    upstream as text of the client. All other items of the proxy are left out: lines about calls, lists of
    tools, approvals.
    """
    if not is_shown_call(item, labels):
        return []
    output = item.get("output")
    if not isinstance(output, str):
        error = item.get("error")
        output = error if isinstance(error, str) else orjson.dumps(error or "").decode()
    name = item["name"] if isinstance(item.get("name"), str) else ""
    arguments = item.get("arguments")
    arguments = arguments if isinstance(arguments, str) and arguments else "{}"
    if not signed:
        text = f"{_UNSIGNED}\nTool: {name}\nArguments: {arguments}\nResult: {output}"
        return [{"type": "message", "role": "user", "content": text}]
    call_id = f"call_{str(item.get('id'))[-40:]}"
    return [
        {"type": "function_call", "call_id": call_id, "name": called or name, "arguments": arguments},
        {"type": "function_call_output", "call_id": call_id, "output": output},
    ]


def unique_calls(items: Sequence[bytes]) -> list[bytes]:
    """Return the items with unique call ids: upstreams refuse repeated ids, and models repeat them.

    A new id is derived from the old one, so that the next request begins with the same bytes.
    """
    seen: set[str] = set()
    renamed: dict[str, str] = {}
    unique = []
    for raw in items:
        item = orjson.loads(raw)
        call_id = item.get("call_id")
        if isinstance(call_id, str):
            if item.get("type") == "function_call":
                if call_id in seen:
                    again = renamed.get(call_id, call_id)
                    while again in seen:
                        again = f"call_{hashlib.blake2b(again.encode(), digest_size=12).hexdigest()}"
                    renamed[call_id] = again
                    seen.add(again)
                seen.add(call_id)
            if call_id in renamed:
                raw = join_object({**members(raw), "call_id": orjson.dumps(renamed[call_id])})
        unique.append(raw)
    return unique


def turn_items(message: Message) -> bytes:
    """Return an assistant message as a response that is not stored. Reasoning is left out, because only its
    own model can read it."""
    items: list[dict[str, Any]] = []
    texts = [part for part in message.parts if isinstance(part, Text | Refusal)]
    if texts:
        content = [
            text_part(part.text) if isinstance(part, Text) else {"type": "refusal", "refusal": part.text}
            for part in texts
        ]
        item = message_item(mint_item_id("message"), None, status="completed")
        items.append({**item, "content": content})
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            kind, text = ("custom_tool_call", "input") if part.custom else ("function_call", "arguments")
            named = {"id": mint_item_id(kind), "type": kind, "call_id": part.call_id, "name": part.name}
            items.append({**named, text: part.arguments, "status": "completed"})
    return orjson.dumps({"id": mint_item_id("response"), "store": False, "output": items})


def event_response_id(payload: Mapping[str, Any] | None) -> str:
    """Return the id of the response in an event; ``""`` if it has none."""
    response = (payload or {}).get("response")
    response_id = response.get("id") if isinstance(response, dict) else None
    return response_id if isinstance(response_id, str) and response_id.strip() else ""


def is_message_event(payload: Mapping[str, Any] | None) -> bool:
    """Return whether an event is part of a message, whose JSON would come before the final one."""
    payload = payload or {}
    item, part = payload.get("item"), payload.get("part")
    if isinstance(item, dict):
        return item.get("type") == "message"
    if isinstance(part, dict):
        return part.get("type") in ("output_text", "refusal")
    return str(payload.get("type")).startswith(("response.output_text.", "response.refusal."))


# ---------------------------------------------------------------- references


def with_items(raw: bytes, asked: Sequence[Mapping[str, Any]], responses: Sequence[bytes]) -> bytes:
    """Return the body of a request, whose items are ``asked``, with output items in place of references.

    The output items are those of ``responses``. All else keeps its bytes. Raises
    :class:`~proxy.base.errors.RequestError` (413) if the items are larger than ``MOST_NAMED_BYTES`` together:
    an image that is named often would come as often.
    """
    given = value_at(raw, "input")
    if given is None or given[:1] != b"[":
        return raw
    known = {
        str(item.get("id")): item
        for response in responses
        for item in orjson.loads(response).get("output") or ()
        if isinstance(item, dict)
    }
    items, room = elements(given), MOST_NAMED_BYTES
    for at, (item, _) in enumerate(zip(asked, items, strict=True)):
        if (is_reference(item) or names_image(item)) and (named := known.get(str(item.get("id")))):
            items[at] = orjson.dumps(named)
            room -= len(items[at])
            if room < 0:
                raise too_many_named()
    return replace_values(raw, {"input": join_array(items)})


def too_many_named() -> RequestError:
    """Return the error for a request whose references stand for too much."""
    return RequestError(
        413,
        f"The stored items that input names have more than {MOST_NAMED_BYTES} bytes together. Name fewer of "
        "them, and each only once.",
        param="input",
        code="request_too_large",
    )


# ---------------------------------------------------------------- answers


Item = Mapping[str, Any]


def answer_spans(items: Iterable[Item]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each answer of a model: its items up to the client's next one.

    It also ends before the output of a program that waited for the client, whose outputs were taken out. It
    also ends after questions about calls that wait for approval. The client's items with the
    decisions were removed from the conversation, so the status of the next question marks the border.
    """
    start: int | None = None
    asked, called, length = False, False, 0
    for position, item in enumerate(items):
        of_model = is_model_item(item)
        asks = of_model and _is_question(item)
        goes_on = called and item.get("type") == "program_output"
        if start is not None and (not of_model or goes_on or (asked and (not asks or "status" in item))):
            yield start, position
            start = None
        if of_model and start is None:
            start = position
        asked, called, length = asks, item.get("type") == "function_call", position + 1
    if start is not None:
        yield start, length


def answer_length(items: Iterable[Item]) -> int:
    """Return how many of the first items form one answer; 0 if the first is the client's."""
    start, end = next(answer_spans(items), (0, 0))
    return 0 if start else end


def _is_question(item: Item) -> bool:
    """Return whether an item stands for a question that the proxy asked the client."""
    return item.get("type") == "message" and item.get("role") == "assistant" and is_mention(item_text(item))
