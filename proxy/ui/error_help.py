"""What the pages say about an error code: what happened, what to do, and the page about it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from proxy.base.error_codes import ERROR_DOCS, ERRORS
from proxy.base.errors import ToolErrorCode
from proxy.tools.contract.error_codes import TOOL_ERRORS

_STATUS: Final = "http_"
"""The beginning of the code of a run whose upstream refused the request with a status."""
_REFUSED: Final[Mapping[str, str]] = {
    "401": "The key in upstreams.NAME.api_key is missing, wrong or revoked. Replace it.",
    "403": "The provider does not let this key use the model, or blocks the region. Check the account.",
    "404": "The provider does not know the model or the path. Check upstreams.NAME.models and base_url.",
    "413": "The conversation is too long for the provider. Shorten it, or use a model with a longer context.",
    "429": "The provider’s limit is reached, or its credit is used up. Wait, or raise the limit there.",
}
_TOOLS: Final[Mapping[str, str]] = {
    "policy_denied": "If the model should have the tool, add it to policy.allow. “Why (not)?” has the line.",
    "approval_required": "Allow the tool without asking, or use a client that can wait for an approval.",
    "timeout": "Raise the tool’s timeout_s if it may take longer.",
    "rate_limited": "Raise limits.tool_calls, or let the caller make fewer calls.",
    "budget_exhausted": "Raise the budget that the run names, or ask for less in one request.",
}


def help_with(codes: Iterable[str | None]) -> dict[str, dict[str, Any]]:
    """Return for each error code ``when`` (what happened) and ``remedy`` in Markdown, and ``page``, a path.

    A code of the proxy has its own page; for any other, ``page`` is the page that lists all codes.
    """
    return {code: _help(code) for code in codes if code}


def _help(code: str) -> dict[str, Any]:
    if code in ERRORS:
        known = ERRORS[code]
        return {"when": known.when, "remedy": known.remedy, "page": f"{ERROR_DOCS}/{code}"}
    if code in TOOL_ERRORS:
        return {
            "when": TOOL_ERRORS[cast("ToolErrorCode", code)],
            "remedy": _TOOLS.get(code, ""),
            "page": ERROR_DOCS,
        }
    if code.startswith(_STATUS):
        status = code.removeprefix(_STATUS)
        remedy = _REFUSED.get(status, "The message says what the upstream did not accept.")
        return {
            "when": f"The upstream answered with HTTP status {status}.",
            "remedy": remedy,
            "page": ERROR_DOCS,
        }
    return {"when": "", "remedy": "", "page": ERROR_DOCS}
