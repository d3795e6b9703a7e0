"""Implements ``toolrelay approvals`` on the database: every user who can write to it may decide."""

import asyncio
import contextlib
import getpass
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from proxy.api.admin.approvals import approval_to_json, log_read
from proxy.api.admin.grant_terms import read_terms
from proxy.app.open_record import opened_record
from proxy.base.errors import RequestError
from proxy.base.plain_text import plain_text
from proxy.commands.common import print_table, say, say_error, say_json
from proxy.config.load import Config
from proxy.records.approvals import MOST_REASON, Approval, ApprovalFilter, ApprovalLog
from proxy.relay.approvals.decisions import Decisions, Verdict
from proxy.relay.approvals.notice import arguments_text, meaning_of
from proxy.relay.approvals.rules import ApprovalRules, Decider

_EVERY_S: Final = 1.0
_MOST_LISTED: Final = 1000


@contextlib.asynccontextmanager
async def open_decisions(config: Config) -> AsyncIterator[Decisions]:
    """Open the record's approvals. Raises :class:`~proxy.base.errors.StoreError` if there is no record."""
    settings = config.approvals
    rules = ApprovalRules(
        expires_s=settings.expires_s,
        by=settings.by,
        admin_only=settings.admin_only,
        max_grant_s=settings.max_grant_s,
    )
    async with opened_record(config, must_exist=True) as store:
        yield Decisions(store if isinstance(store, ApprovalLog) else None, rules, now=store.now)


def user() -> Decider:
    """Return the user of this machine as a decider, who may decide about all tools."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # Some containers have users without a name.
        name = "unknown"
    return Decider(f"user {name}", tools=("*",))


async def list_approvals(config: Config, *, limit: int, waiting: bool, as_json: bool) -> None:
    """Print the newest approvals, one per line."""
    async with open_decisions(config) as decisions:
        approvals = await decisions.list(ApprovalFilter(limit=limit, waiting=waiting))
    if as_json:
        say_json(*(approval_to_json(approval, in_list=True) for approval in approvals))
    elif not approvals:
        say("No calls wait for approval." if waiting else "There are no approvals.")
    else:
        rows = [
            (row.id, row.status, row.tool, _in_list(row), row.caller, moment(row.expires_at))
            for row in approvals
        ]
        print_table(("id", "status", "tool", "arguments", "caller", "until"), rows)


async def show(config: Config, approval_id: str) -> bool:
    """Print one approval as JSON; return whether it exists."""
    async with open_decisions(config) as decisions:
        try:
            approval = await decisions.find(approval_id, user())
        except RequestError as error:
            say_error(error.message)
            return False
    log_read(approval, user())
    say_json(approval_to_json(approval, exact=True))
    return True


async def decide(
    config: Config, ids: Sequence[str], *, approve: bool, reason: str, grant: Mapping[str, Any]
) -> bool:
    """Decide about approvals one by one; return whether all of them now have this decision.

    ``grant`` is given with each approval, in the form for :func:`read_terms`; empty
    for no grant.
    """
    if len(reason) > MOST_REASON:
        say_error(f"--reason: write at most {MOST_REASON} characters, not {len(reason)}")
        return False
    try:
        terms = read_terms({**grant}) if grant else None
    except RequestError as error:
        say_error(error.message)
        return False
    done = True
    async with open_decisions(config) as decisions:
        for approval_id in ids:
            try:
                if approve:
                    current = await decisions.find(approval_id, user())
                    say(f"{current.id}: {plain_text(current.tool)} with {arguments_text(current)}")
                approval = await decisions.decide(
                    approval_id, Verdict(approve, reason, grant=terms), user(), "command"
                )
            except RequestError as error:
                say_error(error.message)
                done = False
            else:
                tool, caller = plain_text(approval.tool), plain_text(approval.caller)
                say(f"{approval.id} ({tool}): {plain_text(meaning_of(approval))}")
                if terms is not None:
                    where = " in this conversation" if terms.in_conversation else ""
                    say(f"Later calls of {tool} by {caller}{where} run without asking.")
    return done


async def watch(config: Config) -> None:
    """Print each approval as it starts to wait, until cancelled."""
    seen: set[str] = set()
    async with open_decisions(config) as decisions:
        while True:
            waiting_now = await decisions.list(ApprovalFilter(waiting=True))
            for approval in reversed([approval for approval in waiting_now if approval.id not in seen]):
                say(_line(approval))
            seen = {approval.id for approval in waiting_now}
            await asyncio.sleep(_EVERY_S)


def _line(approval: Approval) -> str:
    until = moment(approval.expires_at)
    tool, caller = plain_text(approval.tool), plain_text(approval.caller)
    return f"{approval.id} {tool} {_in_list(approval)} (for {caller}, until {until})"


def _in_list(approval: Approval) -> str:
    """Return the arguments for one line of many; a mark says where to read the rest of long ones."""
    text = arguments_text(approval)
    if len(text) <= _MOST_LISTED:
        return text
    return f"{text[:_MOST_LISTED]}… ({len(text):,} characters: toolrelay approvals show {approval.id})"


def moment(seconds: float) -> str:
    """Format a time for tables, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
