"""The admin API as OpenAPI 3.1; its answers are described from the types of the record.

``/admin/openapi.json`` and docs/reference/admin-api.openapi.json are this document.
"""

from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from proxy import __version__
from proxy.api.reference.admin_paths import ADMIN_PATHS, AdminPath, Schema
from proxy.api.reference.markdown import plain
from proxy.base.error_codes import ERROR_DOCS
from proxy.records.approvals import MOST_REASON, ApprovalStatus, DecidedVia
from proxy.records.grants import GrantScope, GrantState
from proxy.records.rows import (
    MessageRecord,
    NativeCall,
    RunRecord,
    ToolEffect,
    ToolInvocationRecord,
    TurnRecord,
)
from proxy.tools.access.policy import Outcome

_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer"}
_NUMBER: Final[Schema] = {"type": "number"}
_TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
_SENTENCE: Final = {"type": "string", "description": "The status as a sentence."}
_IN_ITS_WORDS: Final[Schema] = {
    **_TEXT_OR_NULL,
    "description": "What the call does, in the words of its tool, if it declares `describe`.",
}
_CUT: Final[Schema] = {
    "type": "boolean",
    "description": "Whether a list cut very long arguments; the approval itself has all.",
}
_NUMBER_OR_NULL: Final[Schema] = {"type": ["number", "null"]}
_COUNT_OR_NULL: Final[Schema] = {"type": ["integer", "null"]}
_SECONDS: Final[Schema] = {"type": ["number", "null"], "description": "Seconds; null while it goes on."}
_COST: Final[Schema] = {
    "type": ["number", "null"],
    "description": "In the currency of the prices; null if there is no price.",
}


def admin_openapi() -> dict[str, Any]:
    """Build the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for entry in ADMIN_PATHS:
        paths.setdefault(entry.path, {})[entry.method.lower()] = _operation(entry)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "toolrelay admin API",
            "version": __version__,
            "description": "The record, the tools and pending approvals, for administrators. Times are "
            "seconds since the epoch (UTC).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An administrator's key: `toolrelay keys create NAME --admin`.",
                }
            },
            "responses": {
                "Error": {
                    "description": "An error in OpenAI's shape.",
                    "headers": {
                        "Link": {"schema": _TEXT, "description": f"The page about it, below `{ERROR_DOCS}`."}
                    },
                    "content": {"application/json": {"schema": _ref("Error")}},
                }
            },
        },
    }


def _operation(entry: AdminPath) -> dict[str, Any]:
    keys = "an administrator's key" + (", or a key with `approves`." if entry.approvers else ".")
    operation: dict[str, Any] = {
        "operationId": entry.name,
        "summary": plain(entry.description).partition(". ")[0].removesuffix("."),
        "description": f"{plain(entry.description)} Needs: {keys}",
        "parameters": [
            {
                "name": parameter.name,
                "in": parameter.where,
                "required": parameter.where == "path",
                "schema": parameter.schema,
                "description": parameter.description,
            }
            for parameter in entry.parameters
        ],
        "responses": {
            "200": {
                "description": entry.answer,
                "content": {"application/json": {"schema": _ref(entry.answer)}},
            },
            **{
                str(status): {"$ref": "#/components/responses/Error"}
                for status in sorted({*entry.statuses, 401, 403, 429})
            },
        },
    }
    if entry.body:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _ref(entry.body)}},
        }
    return operation


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Mapping[str, Any], *optional: str) -> dict[str, Any]:
    """Return the schema of an object with these members, all of them required except the ``optional``
    ones."""
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": dict(properties),
    }


def _array(items: Schema) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _list_of(name: str) -> dict[str, Any]:
    return _object(
        {
            "object": {"const": "list"},
            "data": _array(_ref(name)),
            "first_id": _TEXT_OR_NULL,
            "last_id": _TEXT_OR_NULL,
            "has_more": {"type": "boolean"},
        }
    )


def _record(record: type[Any], **changed: Schema) -> dict[str, Any]:
    """Return the schema of a row of the record: every field is present, and ``changed`` replaces some
    schemas."""
    _, components = msgspec.json.schema_components((record,), ref_template="#/components/schemas/{name}")
    properties = components[record.__name__]["properties"]
    shown = {name: {key: of[key] for key in of if key != "default"} for name, of in properties.items()}
    return _object({**shown, **changed})


def _schemas() -> dict[str, Any]:
    tokens = dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), _COUNT_OR_NULL)
    return {
        "Run": _record(
            RunRecord,
            **tokens,
            **dict.fromkeys(("continues", "takes_over"), _TEXT_OR_NULL),
            cost=_COST,
            duration_s=_SECONDS,
        ),
        "RunList": _list_of("Run"),
        "Turn": _record(TurnRecord, cost=_COST, duration_s=_SECONDS),
        "Invocation": _record(
            ToolInvocationRecord,
            effect={"enum": sorted(ToolEffect)},
            error_code=_TEXT_OR_NULL,
            cost=_COST,
            operation_id=_TEXT,
            duration_s=_SECONDS,
        ),
        "Message": _record(MessageRecord),
        "NativeCall": _record(NativeCall),
        "Memory": _memory(),
        "RunDetail": _object(
            {
                "run": _ref("Run"),
                "meaning": _SENTENCE,
                "turns": _array(_ref("Turn")),
                "invocations": _array(_ref("Invocation")),
                "memory": {"anyOf": [_ref("Memory"), {"type": "null"}]},
                "agent_runs": _array(_ref("Run")),
                "inner_calls": _array(_ref("Invocation")),
                "taken_over_by": _TEXT_OR_NULL,
                "kept_from_client": _array(_object({"what": _TEXT, "why": _TEXT})),
                "message_count": _COUNT,
                "messages": _array(_ref("Message")),
                "native_calls": _array(_ref("NativeCall")),
            },
            "messages",
            "native_calls",
        ),
        **_schemas_of_tools(),
        **_schemas_of_approvals(),
        "OpenApi": {"type": "object", "required": ["openapi", "paths"]},
        "Error": _object(
            {
                "error": _object(
                    {
                        "message": _TEXT,
                        "type": _TEXT,
                        "param": _TEXT_OR_NULL,
                        "code": _TEXT_OR_NULL,
                        "doc_url": {**_TEXT, "description": "The address of the page about the error."},
                    },
                    "doc_url",
                )
            }
        ),
    }


def _memory() -> dict[str, Any]:
    return _object(
        {
            "put_back": _array({"type": "object"}),
            "outcomes": _array(
                _object(
                    {"outcome": _TEXT, "count": _COUNT, "put_back": {"type": "boolean"}, "meaning": _TEXT}
                )
            ),
            "continues": _TEXT_OR_NULL,
            "continued_by": _array(_object({"run": _TEXT, "status": _TEXT, "started_at": _NUMBER})),
        }
    )


def _schemas_of_tools() -> dict[str, Any]:
    return {
        "Tool": _object(
            {
                "id": _TEXT,
                "name": _TEXT,
                "description": _TEXT,
                "parameters": {"type": "object", "description": "A JSON Schema."},
                "effect": {"enum": sorted(ToolEffect)},
                "decision": {"enum": list(get_args(Outcome))},
                "rule": _TEXT,
                "digest": _TEXT,
                "price": _COST,
                "withheld": _TEXT_OR_NULL,
            }
        ),
        "ToolList": _list_of("Tool"),
        "Server": _object(
            {
                "id": _TEXT,
                "reached_by": _TEXT,
                "state": _TEXT,
                **dict.fromkeys(("reason", "last_error"), _TEXT_OR_NULL),
                "reconnects": _COUNT,
                **dict.fromkeys(("protocol", "server_name", "server_version"), _TEXT_OR_NULL),
                "list_ms": _NUMBER_OR_NULL,
                "tools": _array(
                    _object({"id": _TEXT, "name": _TEXT, "state": _TEXT, "withheld": _TEXT_OR_NULL})
                ),
                "left_out": _array(_object({"name": _TEXT, "reason": _TEXT})),
            }
        ),
        "ServerList": _list_of("Server"),
    }


def _schemas_of_grants() -> dict[str, Any]:
    return {
        "Grant": _object(
            {
                "id": _TEXT,
                "object": {"const": "approval.grant"},
                "status": {"enum": sorted(get_args(GrantState))},
                "tool": _TEXT,
                "caller": _TEXT,
                "scope": {"enum": sorted(get_args(GrantScope))},
                "arguments": {"type": "object", "description": "Limits of arguments, by their paths."},
                "why": {"type": "string", "description": "The reasons for asking that the grant covers."},
                "approval_id": _TEXT,
                "run_id": _TEXT,
                "created_at": _NUMBER,
                "expires_at": _NUMBER,
                "made_by": _TEXT,
                "made_via": {"enum": list(get_args(DecidedVia))},
                "revoked_at": _NUMBER_OR_NULL,
                "revoked_by": _TEXT_OR_NULL,
                "uses": _COUNT,
                "used_at": _NUMBER_OR_NULL,
                "spec_digest": _TEXT,
            }
        ),
        "GrantList": _list_of("Grant"),
    }


def _schemas_of_approvals() -> dict[str, Any]:
    return {
        "Approval": _object(
            {
                "id": _TEXT,
                "object": {"const": "approval"},
                "status": {"enum": sorted(ApprovalStatus)},
                "meaning": _SENTENCE,
                "tool": _TEXT,
                "description": _IN_ITS_WORDS,
                "effect": _TEXT,
                "arguments": {"description": "The arguments, with the tool's private fields masked."},
                "arguments_cut": _CUT,
                "why": {"type": "string", "description": "The setting that requires the approval."},
                "caller": _TEXT,
                "run_id": _TEXT,
                "created_at": _NUMBER,
                "expires_at": _NUMBER,
                "decided_by": _TEXT_OR_NULL,
                "decided_via": {"enum": [*get_args(DecidedVia), None]},
                "decided_at": _NUMBER_OR_NULL,
                "reason": _TEXT_OR_NULL,
                "arguments_digest": _TEXT,
                "spec_digest": _TEXT,
                "edited": {"type": "boolean"},
                "invocation_id": _TEXT_OR_NULL,
            }
        ),
        "ApprovalList": _list_of("Approval"),
        **_schemas_of_grants(),
        "Decision": {
            **_object(
                {
                    "approve": {"type": "boolean"},
                    "reason": {"type": ["string", "null"], "maxLength": MOST_REASON},
                    "arguments": {
                        "type": ["object", "null"],
                        "description": "Arguments to run instead, if `approvals.edit` is set.",
                    },
                    "grant": {
                        "type": ["object", "null"],
                        "description": "Lets later calls run, too: for how long (`for`), only in this "
                        "`conversation`, and within which limits of `arguments`.",
                        "properties": {
                            "for": {"type": "string", "pattern": "^[0-9]{1,6}[smhdw]$"},
                            "conversation": {"type": "boolean"},
                            "arguments": {"type": "object"},
                        },
                        "additionalProperties": False,
                    },
                },
                "reason",
                "arguments",
                "grant",
            ),
            "additionalProperties": False,
        },
    }
