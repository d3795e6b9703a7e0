"""``/admin/approvals``: lists approvals and takes the decisions of administrators."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson
import structlog
from msgspec import Struct

from proxy.api.admin.grant_terms import read_terms
from proxy.api.admin.queries import page, parse_query, read_bool, read_limit
from proxy.base.errors import RequestError
from proxy.json.objects import unambiguous
from proxy.records.approvals import APPROVAL_ID, MOST_REASON, Approval, ApprovalFilter, DecidedVia
from proxy.records.grants import GRANT_ID, Grant, GrantFilter
from proxy.relay.approvals.decisions import Decisions, Verdict
from proxy.relay.approvals.notice import meaning_of
from proxy.relay.approvals.rules import Decider
from proxy.rights.callers import player_name
from proxy.server.auth.key_ring import Key
from proxy.server.messages.body import read_body
from proxy.server.messages.request import EdgeRequest
from proxy.tools.access.catalog import Registry
from proxy.tools.contract.redaction import bounded, described

_MAX_BODY: Final = 64 * 1024
_BODY_S: Final = 10.0
_ID: Final = re.compile(APPROVAL_ID)
_GRANT: Final = re.compile(f"grants/{GRANT_ID}")
_KNOWN: Final = ("approve", "reason", "arguments", "grant")


def approval_to_json(approval: Approval, *, exact: bool = False, in_list: bool = False) -> dict[str, Any]:
    """Return an approval as plain JSON values; times are seconds since the epoch (UTC).

    The arguments are all of the model's, with the tool's private fields masked. ``exact`` gives those that
    run, with the private fields. ``in_list`` cuts very long ones, and says so.
    """
    is_cut = in_list and not approval.fits_text
    shown: dict[str, Any] = {
        "id": approval.id,
        "object": "approval",
        "status": str(approval.status),
        "meaning": meaning_of(approval),
        "tool": approval.tool,
        "description": None,
        "effect": approval.effect,
        "arguments": bounded(approval.arguments_shown) if is_cut else approval.arguments_shown,
        "arguments_cut": is_cut,
        "why": approval.rule,
        "caller": approval.caller,
        "run_id": approval.run_id,
        "created_at": approval.created_at,
        "expires_at": approval.expires_at,
        "decided_by": approval.decided_by or None,
        "decided_via": approval.decided_via or None,
        "decided_at": approval.decided_at,
        "reason": approval.reason or None,
        "arguments_digest": approval.arguments_digest,
        "spec_digest": approval.spec_digest,
        "edited": bool(approval.edited),
        "invocation_id": approval.invocation_id or None,
    }
    if exact:
        shown["arguments"] = json.loads(approval.effective_arguments)
    return shown


def grant_to_json(grant: Grant, state: str) -> dict[str, Any]:
    """Return a grant as plain JSON values; times are seconds since the epoch (UTC). ``state`` is its present
    state."""
    return {
        "id": grant.id,
        "object": "approval.grant",
        "status": state,
        "tool": grant.tool,
        "caller": grant.caller,
        "scope": grant.scope,
        "arguments": orjson.loads(grant.bounds),
        "why": grant.rule,
        "approval_id": grant.approval_id,
        "run_id": grant.run_id,
        "created_at": grant.created_at,
        "expires_at": grant.expires_at,
        "made_by": grant.made_by,
        "made_via": grant.made_via,
        "revoked_at": grant.revoked_at,
        "revoked_by": grant.revoked_by or None,
        "uses": grant.uses,
        "used_at": grant.used_at,
        "spec_digest": grant.spec_digest,
    }


def read_verdict(raw: bytes) -> Verdict:
    """Return the decision in a request body: only the JSON value ``true`` approves.

    Raises :class:`~proxy.base.errors.RequestError` (400).
    """
    example = 'like {"approve": true}'
    try:
        value = json.loads(raw, object_pairs_hook=unambiguous)
    except (ValueError, RecursionError):
        raise RequestError(
            400,
            f"The body must be JSON without duplicate members and lone surrogates in names, {example}.",
            code="invalid_json",
        ) from None
    if not isinstance(value, dict):
        raise RequestError(400, f"The body must be a JSON object, {example}.", code="invalid_json")
    for name in value:
        if name not in _KNOWN:
            raise RequestError(
                400,
                f"{name[:40]!r} is not a known field. Write one of: {', '.join(_KNOWN)}.",
                param=name[:40],
            )
    approve, reason, arguments = value.get("approve"), value.get("reason"), value.get("arguments")
    if not isinstance(approve, bool):
        raise RequestError(400, "approve must be present, and true or false.", param="approve")
    if reason is not None and (not isinstance(reason, str) or len(reason) > MOST_REASON):
        raise RequestError(
            400, f"reason must be a string of at most {MOST_REASON} characters.", param="reason"
        )
    if arguments is not None and (not isinstance(arguments, dict) or not approve):
        raise RequestError(
            400, "arguments must be a JSON object, and needs approve to be true.", param="arguments"
        )
    grant = value.get("grant")
    if grant is not None and not approve:
        raise RequestError(400, "grant needs approve to be true.", param="grant")
    return Verdict(approve, reason or "", arguments, None if grant is None else read_terms(grant))


class AdminApprovals(Struct, frozen=True):
    """The actions of administrators and approvers on approvals, for the admin API and for the pages."""

    decisions: Decisions
    tools: Registry

    def shown(self, approval: Approval, *, exact: bool = False, in_list: bool = False) -> dict[str, Any]:
        """Return an approval as :func:`approval_to_json` does, with what its tool says that the call does.

        A tool whose definition has changed since the call was planned says nothing about it.
        """
        spec = self.tools.current.get(approval.tool)
        known = spec if spec is not None and spec.digest == approval.spec_digest else None
        description = None if approval.edited else described(known, approval.arguments_shown)
        return approval_to_json(approval, exact=exact, in_list=in_list) | {"description": description}

    async def answer(
        self, request: EdgeRequest, below: str, query: str, decider: Decider, via: DecidedVia
    ) -> dict[str, Any] | None:
        """Answer a path below that of the approvals, with a method of :func:`methods_at`.

        Returns a list of grants, a grant or an approval, or ``None`` for an unknown path. Raises
        :class:`~proxy.base.errors.RequestError` and :class:`~proxy.base.errors.StoreError`.
        """
        if below == "grants":
            return await self._list_grants(parse_query(query, "limit", "before", "active"), decider)
        if _GRANT.fullmatch(below):
            parse_query(query)
            act = self.revoke_grant if request.method == "DELETE" else self.get_grant
            return await act(below.removeprefix("grants/"), decider)
        if not _ID.fullmatch(below):
            return None
        if request.method == "POST":
            parse_query(query)
            return await self._decide(below, decider, request, via)
        content = read_bool(parse_query(query, "content"), "content")
        return await self.get_approval(below, decider, content=content)

    async def list_approvals(
        self, query: Mapping[str, str], decider: Decider, *, waiting: bool = False, decided: bool = False
    ) -> dict[str, Any]:
        """Return a page of the approvals that ``decider`` may decide, newest first.

        ``waiting`` selects those that can still be decided, ``decided`` all others. Raises
        :class:`~proxy.base.errors.StoreError`.
        """
        limit = read_limit(query.get("limit"))
        wanted = ApprovalFilter(
            limit=limit + 1,
            before=query.get("before"),
            waiting=waiting,
            decided=decided,
            tools=tuple(decider.tools),
        )
        rows = await self.decisions.list(wanted)
        return page([self.shown(row, in_list=True) for row in rows[:limit]], more=len(rows) > limit)

    async def get_approval(self, approval_id: str, decider: Decider, *, content: bool) -> dict[str, Any]:
        """Return one approval; ``content`` adds the exact arguments that run, and this is logged.

        Raises :class:`~proxy.base.errors.RequestError` (404) and :class:`~proxy.base.errors.StoreError`.
        """
        approval = await self.decisions.find(approval_id, decider)
        if content:
            # Logged before the arguments go out, so that nobody reads them without an entry in the log.
            log_read(approval, decider)
        return self.shown(approval, exact=content)

    async def _list_grants(self, query: Mapping[str, str], decider: Decider) -> dict[str, Any]:
        """Return a page of the grants for tools that ``decider`` may approve, newest first."""
        active, limit = read_bool(query, "active"), read_limit(query.get("limit"))
        grants = self.decisions.grants
        wanted = GrantFilter(limit + 1, query.get("before"), active, tools=tuple(decider.tools))
        rows = await grants.list(wanted)
        shown = [grant_to_json(grant, grants.state(grant)) for grant in rows[:limit]]
        return page(shown, more=len(rows) > limit)

    async def get_grant(self, grant_id: str, decider: Decider) -> dict[str, Any]:
        """Return one grant.

        Raises :class:`~proxy.base.errors.RequestError` (404) and :class:`~proxy.base.errors.StoreError`.
        """
        grants = self.decisions.grants
        grant = await grants.find(grant_id, decider)
        return grant_to_json(grant, grants.state(grant))

    async def revoke_grant(self, grant_id: str, decider: Decider) -> dict[str, Any]:
        """Revoke a grant and return it; raise as :meth:`get_grant` does."""
        grants = self.decisions.grants
        revoked = await grants.revoke(grant_id, decider)
        return grant_to_json(revoked, grants.state(revoked))

    async def _decide(
        self, approval_id: str, decider: Decider, request: EdgeRequest, via: DecidedVia
    ) -> dict[str, Any]:
        """Record the decision in the body of a request and return the approval.

        Raises :class:`~proxy.base.errors.RequestError` (400, 403, 404, 408, 409, 413) and
        :class:`~proxy.base.errors.StoreError`.
        """
        verdict = read_verdict(await read_body(request, _MAX_BODY, _BODY_S))
        approval = await self.decisions.decide(approval_id, verdict, decider, via)
        return self.shown(approval)


def methods_at(below: str) -> tuple[str, ...]:
    """Return the methods besides HEAD of a path below that of the approvals; none for an unknown path."""
    if below == "grants":
        return ("GET",)
    if _GRANT.fullmatch(below):
        return ("GET", "DELETE")
    return ("GET", "POST") if _ID.fullmatch(below) else ()


def decider_of(key: Key) -> Decider:
    """Return the decider for an administrator's or approver's key."""
    name, tools = key.caller.name, ("*",) if key.admin else key.approves
    return Decider(f"key {name}", key=name, tools=tools, player=player_name(key.name))


def log_read(approval: Approval, decider: Decider) -> None:
    """Log that an administrator or approver reads the exact arguments of a call."""
    log = structlog.get_logger("proxy.admin")
    log.warning(
        "approval_read", caller=decider.key or decider.name, approval_id=approval.id, tool=approval.tool
    )
