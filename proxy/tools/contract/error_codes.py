"""The meaning of each error code of a failed call; docs/reference/errors.md is generated from it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from proxy.base.errors import ToolErrorCode

TOOL_ERRORS: Final[Mapping[ToolErrorCode, str]] = MappingProxyType(
    {
        "invalid_json": "The arguments are not a JSON object.",
        "invalid_arguments": (
            "The arguments do not fit the tool's schema, or are larger than `policy.max_argument_bytes`."
        ),
        "unknown_tool": "There is no tool of this name.",
        "policy_denied": (
            "`policy.allow` or the upstream's `tools` does not name the tool, this request did not offer "
            "it, or `policy.arguments` does not allow an argument."
        ),
        "approval_required": (
            "`policy.approve`, `policy.approve_effects`, `policy.approve_safety` or "
            "`policy.after_untrusted` demands an approval, and this call [cannot wait for "
            "one](approvals.md#limits). On the call of an agent: calls of its own [wait for "
            "one](agents.md#approvals)."
        ),
        "approval_denied": (
            "A person refused the call, or its approval expired or no longer counts. The message has the "
            "reason."
        ),
        "client_call_required": (
            "On the call of a program: it waits for tools of the client, [whose results its next request "
            "brings](programs.md#the-form-of-anthropic)."
        ),
        "login_required": (
            "The tool needs the user's own account, and the user has not logged in. The message has the "
            "[link at which to do so](credentials.md#accounts-of-end-users)."
        ),
        "timeout": (
            "The call took longer than the tool's `timeout_s` (`tools.timeout_s` if it has none), or "
            "longer than the run has left."
        ),
        "rate_limited": (
            "`limits.tool_calls` is reached. Or Redis does not answer, and `limits.on_error` is `closed`."
        ),
        "result_too_large": (
            "The tool returned far more than the proxy can handle. If a result is only over "
            "`policy.max_result_bytes`, the proxy cuts out its middle and tells the model."
        ),
        "execution_failed": "The tool failed, or the proxy could not record the call.",
        "already_ran": (
            "The call did not run. The client repeats its request, and an earlier attempt called this tool"
            " with other arguments. `earlier_call` has these arguments, the `outcome` and the `result`."
        ),
        "redaction_missing": "The tool has no redaction rule. The proxy does not load such a tool.",
        "budget_exhausted": "The run has used up one of its budgets.",
        "cancelled": "The client left before the call ran.",
        "url_not_in_prior_context": (
            "A client declared its provider's fetch of pages, and the address has not occurred in the "
            "conversation before the model asked for it."
        ),
        "url_not_allowed": (
            "A client declared its provider's fetch of pages, and its `allowed_domains` or `blocked_domains` "
            "exclude the page."
        ),
    }
)
"""The meanings are Markdown, with links relative to ``docs/``. The model does not read them: it gets the
code and a message about its own call."""
