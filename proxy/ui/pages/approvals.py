"""Answer ``/ui/api/approvals``: the calls that wait for a person, and their decisions."""

import re
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from proxy.api.admin.approvals import AdminApprovals, methods_at
from proxy.api.admin.queries import json_answer, parse_query
from proxy.base.errors import RequestError
from proxy.records.approvals import APPROVAL_ID, Approval, ApprovalFilter, ApprovalStatus
from proxy.relay.approvals.rules import Decider
from proxy.rights.callers import player_name
from proxy.ui.pages.leading_up import LeadingUp
from proxy.ui.runs.run_rows import RunRows
from proxy.ui.sessions import OPERATOR, UiSession
from proxy.ui.surface import UiRequest

_STATES: Final[Mapping[str, Mapping[str, bool]]] = {
    "pending": {"waiting": True},
    "decided": {"decided": True},
    "all": {},
}
_WATCHED: Final = 500
"""The most waiting approvals that open pages get."""
_NEWEST: Final = 50
_AT_ONCE: Final = 100


class ApprovalPages:
    """Answers for the page Approvals, and finds changes for open pages."""

    def __init__(self, approvals: AdminApprovals, rows: RunRows, led: LeadingUp) -> None:
        self._approvals = approvals
        self._led = led
        self._rows = rows
        self._waited: frozenset[str] = frozenset()

    async def answer(self, request: UiRequest) -> web.Response:
        """Return a list of approvals or grants, one of them, or the answer to a decision or a revocation.

        Raises :class:`~proxy.base.errors.RequestError` and :class:`~proxy.base.errors.StoreError`.
        """
        decider = _decider(request.session)
        approval_id, _, part = request.rest.partition("/")
        if part == "context" and re.fullmatch(APPROVAL_ID, approval_id):
            request.allow("GET")
            parse_query(request.target.query)
            return json_answer(await self._led.to(approval_id, decider, request))
        if not request.rest:
            request.allow("GET")
            query = parse_query(request.target.query, "state", "limit", "before")
            return json_answer(await self._listed(query, decider))
        request.allow(*methods_at(request.rest))
        answer = await self._approvals.answer(
            request.edge_request, request.rest, request.target.query, decider, "page"
        )
        if answer is None:
            raise request.unknown()
        if "data" in answer:
            return json_answer(answer | {"data": await self._rows.named(answer["data"])})
        return json_answer((await self._rows.named([answer]))[0])

    async def news(self) -> list[dict[str, Any]]:
        """Return approvals that may have changed since the last call: those that wait, and the newest others.

        Raises :class:`~proxy.base.errors.StoreError`.
        """
        decisions = self._approvals.decisions
        waiting = await decisions.list(ApprovalFilter(limit=_WATCHED, waiting=True))
        newest = await decisions.list(ApprovalFilter(limit=_NEWEST))
        known: dict[str, Approval] = {approval.id: approval for approval in (*waiting, *newest)}
        gone = [approval_id for approval_id in self._waited if approval_id not in known]
        for start in range(0, len(gone), _AT_ONCE):
            known |= {
                approval.id: approval for approval in await decisions.read(gone[start : start + _AT_ONCE])
            }
        self._waited = frozenset(a.id for a in known.values() if a.status is ApprovalStatus.PENDING)
        oldest_first = sorted(known.values(), key=lambda approval: (approval.created_at, approval.id))
        return await self._rows.named(
            [self._approvals.shown(approval, in_list=True) for approval in oldest_first]
        )

    async def _listed(self, query: Mapping[str, str], decider: Decider) -> dict[str, Any]:
        state, before = query.get("state", "pending"), query.get("before")
        if state not in _STATES:
            raise RequestError(400, f"state must be one of {', '.join(_STATES)}.", param="state")
        if before is not None and not re.fullmatch(APPROVAL_ID, before):
            raise RequestError(400, "before must be the id of an approval.", param="before")
        answer = await self._approvals.list_approvals(query, decider, **_STATES[state])
        rules = self._approvals.decisions.rules
        may = {"edit": rules.edit, "max_grant_s": rules.max_grant_s}
        return answer | {"data": await self._rows.named(answer["data"]), "rules": may}


def _decider(session: UiSession) -> Decider:
    """Return the signed-in user as the decider.

    A user who came by a link has no key; only a user of the machine can make a link. Who logged in at an
    OpenID provider is named as it names them, and is the caller of their own tokens.
    """
    who = {"key": f"key {session.key_id}", "openid": f"user {session.name}", "link": OPERATOR}
    own = session.key_id or session.user
    return Decider(
        who[session.via], key=own, tools=session.approves, player=player_name(session.user or session.name)
    )
