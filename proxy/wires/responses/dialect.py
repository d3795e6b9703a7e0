"""OpenAI Responses, as data."""

import re
from typing import Final

import orjson
from msgspec.structs import replace

from proxy.base.errors import RequestError
from proxy.wires.dialect import (
    OPAQUE,
    Endpoint,
    Errors,
    HostedTool,
    RepairSigns,
    RequestFields,
    TextPiece,
    TurnFields,
    UsageFields,
)
from proxy.wires.openai.dialect import SHARED, error_body, read_error
from proxy.wires.responses.typed_tools.table import NAMESPACE, TYPED_TOOLS
from proxy.wires.stream.sse import encode_event


def error_event(message: str, *, type: str, code: str | None, sequence_number: int | None = None) -> bytes:
    """Encode an error event, with its fields nested under ``error``, as OpenAI really sends them.

    All SDKs raise on the nested form; openai-python merely yields the flat form of the specification.
    """
    payload: dict[str, object] = {"type": "error"}
    if sequence_number is not None:
        payload["sequence_number"] = sequence_number
    payload["error"] = {"type": type, "code": code, "message": message, "param": None}
    return encode_event(orjson.dumps(payload), b"error")


_PLACE: Final = ("output_index", "content_index", "summary_index")

RESPONSES: Final = replace(
    SHARED,
    name="responses",
    wire="responses",
    path="/responses",
    errors=Errors(error_body, error_event, read_error),
    usage=UsageFields("input_tokens", "output_tokens", "total_tokens"),
    # llama-server numbers no event, and its later events lack more fields.
    repair=RepairSigns(sound=b'"sequence_number"'),
    answer_ids="resp_",
    # Source: OpenAI's API reference. Its streams end with this event, without an end mark.
    last_event=re.compile(
        rb"^event: *response\.(?:completed|incomplete|failed)\r?\ndata:[^\r\n]*\r?\n\r?\n\Z", re.MULTILINE
    ),
    fields=RequestFields(
        turns="input",
        texts=("instructions", "input", "prompt"),
        tool_holders=("input",),
        continues="previous_response_id",
        conversation="conversation",
        stored_prompt="prompt",
        background="background",
    ),
    turns=TurnFields(
        ids=frozenset({"id", "call_id"}),
        volatile=frozenset({"encrypted_content", "status"}),
        reasoning=frozenset({"reasoning"}),
        lists=frozenset({"content"}),
        opaque=OPAQUE
        | {"call_id", "status", "item_id", "response_id", "image_url", "file_url", "phase", "version"},
        values=frozenset({"variables"}),
        json_texts=frozenset({"arguments"}),
    ),
    pieces=(
        *(
            TextPiece(("delta",), frozenset({f"response.{text}.delta"}), _PLACE)
            for text in (
                *("output_text", "refusal", "reasoning_text", "reasoning_summary_text"),
                *("custom_tool_call_input", "code_interpreter_call_code"),
            )
        ),
        *(
            TextPiece(("delta",), frozenset({f"response.{call}_arguments.delta"}), _PLACE, in_json=True)
            for call in ("function_call", "mcp_call")
        ),
    ),
    # Code that the provider runs (``code_interpreter``, ``shell`` in a container) may keep files and reach
    # other hosts.
    tools=(
        *SHARED.tools,
        *(HostedTool(tool.type, repeatable=True, placed_by=tool.placed_by) for tool in TYPED_TOOLS),
        HostedTool(NAMESPACE, repeatable=True),
        HostedTool("computer", repeatable=True),
        HostedTool("image_generation", repeatable=True, chooses_model=True),
    ),
)


def response_not_found(status: int, response_id: object) -> RequestError:
    """Return the error for a request that continues a response that is not on record."""
    return RequestError(
        status,
        f"Previous response with id {str(response_id)[:100]!r} not found.",
        param=RESPONSES.fields.continues,
        code="previous_response_not_found",
    )


DELETE: Final = Endpoint(RESPONSES, "DELETE", "/responses/{id}", "stored", action="delete")

ENDPOINTS: Final = (
    Endpoint(
        RESPONSES, "POST", "/responses", "generate",
        body="routed", model="named", refers=True, streams=True, operation="chat", creates="response",
    ),
    Endpoint(RESPONSES, "GET", "/responses", "socket", usage="none"),
    Endpoint(
        RESPONSES, "POST", "/responses/compact", "complete",
        body="routed", model="named", refers=True, reader="responses_compact",
    ),
    Endpoint(
        RESPONSES, "POST", "/responses/input_tokens", "count",
        body="routed", model="optional", usage="none", refers=True,
    ),
    Endpoint(RESPONSES, "GET", "/responses/{id}", "stored", action="retrieve"),
    DELETE,
    Endpoint(RESPONSES, "POST", "/responses/{id}/cancel", "stored", action="cancel", usage="none"),
    Endpoint(RESPONSES, "GET", "/responses/{id}/input_items", "stored", action="input_items"),
)  # fmt: skip
