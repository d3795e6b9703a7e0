"""An error code as text: for the pages of the server, and for ``toolrelay explain``."""

from proxy.api.reference.markdown import plain
from proxy.base.error_codes import ErrorCode


def error_title(error: ErrorCode) -> str:
    """Return the code with its status and type: ``model_not_found (HTTP 404, invalid_request_error)``."""
    status = f"HTTP {' or '.join(map(str, error.statuses))}" if error.statuses else ""
    code = error.name if error.code else "no code"
    facts = ", ".join(fact for fact in (status, error.type) if fact)
    return f"{code} ({facts})" if facts else code


def error_text(error: ErrorCode) -> str:
    """Return the title, what happened and what to do, in lines without Markdown."""
    lines = [error_title(error), "", f"  What happened: {plain(error.when)}"]
    if error.remedy:
        lines.append(f"  What to do: {plain(error.remedy)}")
    return "\n".join([*lines, ""])
