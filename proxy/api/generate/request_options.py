"""What a request's headers ask of the proxy itself: tools, a trace, a history, and whether it is a retry."""

import re
from collections.abc import Sequence
from typing import Final

from multidict import istr

from proxy.api.admin.grant_terms import read_terms
from proxy.api.context import Context
from proxy.base.errors import RequestError
from proxy.http.own_headers import APPROVE, HISTORY, TOOLS, TRACE
from proxy.records.approvals import APPROVAL_ID
from proxy.relay.approvals.decisions import Verdict
from proxy.relay.ask import RequestOptions
from proxy.relay.memory.idempotency import NO_ATTEMPT, Attempt
from proxy.relay.offering.wanted import parse_wanted
from proxy.server.auth.permissions import TRACES
from proxy.server.messages.heads.head import Head
from proxy.wires.client_port import Trace

IDEMPOTENCY_KEY: Final = istr("Idempotency-Key")
_HISTORY: Final = istr(HISTORY)
_RETRY_COUNT: Final = istr("x-stainless-retry-count")
_SESSION: Final = istr("x-claude-code-session-id")
_APPROVE: Final = istr(APPROVE)
_MOST_DECISIONS: Final = 16
_DECISION: Final = re.compile(
    rf"({APPROVAL_ID})(?:\s*;\s*(deny)|((?:\s*;\s*(?:for=[0-9a-z]+|conversation)){{0,2}}))"
)
_GRANT: Final = re.compile(r"(for|conversation)=?([0-9a-z]*)")
_TOOLS: Final = istr(TOOLS)
_TRACE: Final = istr(TRACE)


def request_options_of(context: Context, *, history: bool) -> RequestOptions:
    """Return the options of a request; ``history`` says whether the operator lets the proxy remember answers.

    Raises :class:`~proxy.base.errors.RequestError` (400) for an option that does not exist.
    """
    head, permissions = context.request.head, context.permissions
    attempt = head[attempt_of] if permissions.acts else NO_ATTEMPT
    if not head[_chooses]:
        return RequestOptions(None, permissions.trace, history, attempt)
    wanted, trace = parse_wanted(head.sole(_TOOLS)), _trace(context)
    history = _wants_history(head) and history
    return RequestOptions(wanted, trace, history, attempt)


def attempt_of(head: Head) -> Attempt:
    """Return the headers by which a client marks retries of a request."""
    return Attempt(head.sole(IDEMPOTENCY_KEY) or "", head.listed(_RETRY_COUNT), head.sole(_SESSION) or "")


def _chooses(head: Head) -> bool:
    """Return whether a request chooses tools, a trace or a history; nearly none does."""
    headers = head.headers
    return _TOOLS in headers or _TRACE in headers or _HISTORY in headers


def _decides(head: Head) -> bool:
    return _APPROVE in head.headers


def decisions_of(head: Head) -> Sequence[tuple[str, Verdict]]:
    """Return the decisions in a request's header, by the ids of approvals; nearly all requests have none.

    The header is a list separated by commas: ``ID``, ``ID;deny``, or with a grant ``ID;for=1h``,
    ``ID;conversation`` or both. Raises :class:`~proxy.base.errors.RequestError` (400).
    """
    if not head[_decides]:
        return ()
    found: dict[str, Verdict] = {}
    for part in (head.sole(_APPROVE) or "").split(","):
        said = _DECISION.fullmatch(part.strip())
        given = _GRANT.findall(said[3] or "") if said is not None else []
        grant = {name: value or True for name, value in given}
        is_new = said is not None and said[1] not in found and len(found) < _MOST_DECISIONS
        if said is None or not is_new or len(grant) != len(given):
            raise RequestError(
                400,
                f"{APPROVE} must be a list of approval ids, each once, like appr_…, appr_…;deny, "
                f"appr_…;for=1h or appr_…;conversation ({_MOST_DECISIONS} at most).",
                param=APPROVE,
            )
        terms = read_terms(grant, APPROVE) if grant else None
        found[said[1]] = Verdict(said[2] is None, grant=terms)
    return tuple(found.items())


def _wants_history(head: Head) -> bool:
    """Return whether a request wants its answers looked up and remembered, if the operator allows it."""
    given = head.sole(_HISTORY)
    wish = "on" if given is None else given.strip().lower()
    if wish not in ("on", "off"):
        raise RequestError(400, f"{HISTORY} must be on or off.", param=HISTORY)
    return wish == "on"


def _trace(context: Context) -> Trace:
    """Return the trace of a request: the one it asks for, or ``silent`` if that is more than the caller may
    see.

    The next lower level would differ in kind. ``events`` are sent beside the answer, so a client that wants
    them does not want ``status`` lines in its text. A response header names the level.
    """
    request, permissions = context.request, context.permissions
    header = request.head.sole(_TRACE)
    if header is None:
        return permissions.trace
    for level, name in enumerate(TRACES):
        if name == header.strip():
            granted = name if level <= TRACES.index(permissions.trace_max) else "silent"
            request.page_headers = {**request.page_headers, _TRACE: granted}
            return granted
    raise RequestError(
        400,
        f"{TRACE} must be one of {', '.join(TRACES)}.",
        param=TRACE,
    )
