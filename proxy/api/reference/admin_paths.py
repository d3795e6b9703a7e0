"""The paths of the admin API as data: what each returns, and its parameters.

The admin API reads its parameters from here. Its OpenAPI description and docs/reference/admin-api.md are
generated from it.
"""

from collections.abc import Mapping
from typing import Any, Final, get_args

from msgspec import Struct

from proxy.records.approvals import APPROVAL_ID
from proxy.records.grants import GRANT_ID
from proxy.records.rows import RunStatus

MOST_LIMIT: Final = 200
DEFAULT_LIMIT: Final = 50
"""The number of entries on one page of a list: the maximum, and the default."""

Schema = Mapping[str, Any]
"""A JSON Schema."""

_TEXT: Final[Schema] = {"type": "string"}
_TRUTH: Final[Schema] = {"type": "boolean", "default": False}


class Parameter(Struct, frozen=True):
    """A parameter of a query, or the last segment of a path (``where``)."""

    name: str
    schema: Schema
    description: str
    where: str = "query"


class AdminPath(Struct, frozen=True):
    """One method of a path below ``/admin``.

    ``answer`` is the name of the schema of a 200. ``description`` describes the answer in Markdown; its links
    are relative to ``docs/``. ``statuses`` are its possible statuses besides 200, 401, 403 and 429.
    ``approvers`` says that a key with ``approves`` may use it, too.
    """

    method: str
    path: str
    name: str
    description: str
    answer: str
    parameters: tuple[Parameter, ...] = ()
    body: str = ""
    statuses: tuple[int, ...] = (400, 404, 405)
    approvers: bool = False


_LIMIT: Final = Parameter(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": MOST_LIMIT, "default": DEFAULT_LIMIT},
    "Number of entries.",
)
_BEFORE: Final = Parameter("before", _TEXT, "The `last_id` of the page before.")
_RUN_ID: Final = Parameter("id", _TEXT, "The complete id of a run.", "path")
_APPROVAL_ID: Final = Parameter(
    "id", {"type": "string", "pattern": f"^{APPROVAL_ID}$"}, "The id of an approval.", "path"
)
_GRANT_ID: Final = Parameter(
    "id", {"type": "string", "pattern": f"^{GRANT_ID}$"}, "The id of a grant.", "path"
)

ADMIN_PATHS: Final = (
    AdminPath(
        "GET",
        "/admin/runs",
        "listRuns",
        "A page of runs, the newest first. The filters are those of `toolrelay runs list`.",
        "RunList",
        (
            _LIMIT,
            _BEFORE,
            Parameter("errors", _TRUTH, "Only runs with an error."),
            Parameter("since", _TEXT, "Only runs since a time: `90m`, `24h`, `7d`, or `2026-01-31`."),
            Parameter("until", _TEXT, "Only runs before a time."),
            Parameter("status", {"enum": list(get_args(RunStatus))}, "Only runs with this status."),
            Parameter("model", _TEXT, "Only runs of this model."),
            Parameter("tool", _TEXT, "Only runs that called this tool."),
            Parameter("key", _TEXT, "Only runs of this client key, by its name."),
            Parameter("id", _TEXT, "Only runs whose id begins with this text."),
            Parameter("agents", _TRUTH, "Also runs of agents."),
        ),
        statuses=(400, 405, 503),
    ),
    AdminPath(
        "GET",
        "/admin/runs/{id}",
        "showRun",
        "One run, in the form of `toolrelay runs show --json`. With `content=true` also its messages; the "
        "log then gets the line `content_read` with the key's name.",
        "RunDetail",
        (_RUN_ID, Parameter("content", _TRUTH, "Also messages, and calls as the upstream sent them.")),
        statuses=(400, 404, 405, 503),
    ),
    AdminPath(
        "GET",
        "/admin/tools",
        "listTools",
        "Each loaded tool: its effect, the decision of the policy and its rule, and in `withheld` why models "
        "are not offered it.",
        "ToolList",
        statuses=(400, 405),
    ),
    AdminPath(
        "GET",
        "/admin/mcp",
        "listServers",
        "Each MCP server: its state, protocol, last error and reconnects. For each of its tools: how its "
        "definition compares with the allowed one (`pinned`, `new`, `changed`, `moved`, `gone`), and in "
        "`withheld` why models are not offered it. An allowed tool has its definition in `pinned` (2 MiB of "
        "all together).",
        "ServerList",
        statuses=(400, 405, 503),
    ),
    AdminPath(
        "GET",
        "/admin/approvals",
        "listApprovals",
        "A page of [approvals](approvals.md), the newest first. A key with `approves` sees those of its "
        "tools.",
        "ApprovalList",
        (_LIMIT, _BEFORE, Parameter("waiting", _TRUTH, "Only those that can still be decided.")),
        statuses=(400, 405, 503),
        approvers=True,
    ),
    AdminPath(
        "GET",
        "/admin/approvals/{id}",
        "showApproval",
        "One approval. With `content=true` its exact arguments; the log then says who read them.",
        "Approval",
        (_APPROVAL_ID, Parameter("content", _TRUTH, "The exact arguments, with the tool's private fields.")),
        statuses=(400, 404, 405, 503),
        approvers=True,
    ),
    AdminPath(
        "POST",
        "/admin/approvals/{id}",
        "decideApproval",
        'Decides: `{"approve": true}` or `{"approve": false, "reason": "…"}`; `grant` beside `approve` gives '
        "a [grant](approvals.md#grants). Answers with the approval.",
        "Approval",
        (_APPROVAL_ID,),
        body="Decision",
        statuses=(400, 404, 405, 408, 409, 413, 503),
        approvers=True,
    ),
    AdminPath(
        "GET",
        "/admin/approvals/grants",
        "listGrants",
        "A page of [grants](approvals.md#grants), the newest first. A key with `approves` sees those of its "
        "tools.",
        "GrantList",
        (_LIMIT, _BEFORE, Parameter("active", _TRUTH, "Only those that let calls run now.")),
        statuses=(400, 405, 503),
        approvers=True,
    ),
    AdminPath(
        "GET",
        "/admin/approvals/grants/{id}",
        "showGrant",
        "One grant.",
        "Grant",
        (_GRANT_ID,),
        statuses=(400, 404, 405, 503),
        approvers=True,
    ),
    AdminPath(
        "DELETE",
        "/admin/approvals/grants/{id}",
        "revokeGrant",
        "Revokes a grant: later calls ask again. Answers with the grant.",
        "Grant",
        (_GRANT_ID,),
        statuses=(400, 404, 405, 503),
        approvers=True,
    ),
    AdminPath("GET", "/admin/openapi.json", "openapi", "This description, as OpenAPI 3.1.", "OpenApi"),
)


def query_of(path: str) -> tuple[str, ...]:
    """Return the parameters that the query of a path may have."""
    return tuple(
        parameter.name
        for entry in ADMIN_PATHS
        if entry.path == path
        for parameter in entry.parameters
        if parameter.where == "query"
    )
