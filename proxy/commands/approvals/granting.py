"""Implements ``toolrelay approvals grants`` and ``revoke`` on the database."""

from collections.abc import Sequence

from proxy.api.admin.approvals import grant_to_json
from proxy.base.errors import RequestError
from proxy.base.plain_text import plain_text
from proxy.commands.approvals.deciding import moment, open_decisions, user
from proxy.commands.common import MAX_LINE, print_table, say, say_error, say_json
from proxy.config.load import Config
from proxy.records.grants import Grant, GrantFilter
from proxy.tools.running.granted import ArgumentLimits


async def list_grants(config: Config, *, limit: int, active: bool, as_json: bool) -> None:
    """Print the newest grants, one per line."""
    async with open_decisions(config) as decisions:
        grants = decisions.grants
        wanted = GrantFilter(limit, active=active)
        listed = [(grant, grants.state(grant)) for grant in await grants.list(wanted)]
    if as_json:
        say_json(*(grant_to_json(grant, state) for grant, state in listed))
    elif not listed:
        say("There are no active grants." if active else "There are no grants.")
    else:
        rows = [
            (row.id, state, row.tool, _covers(row), row.made_by, row.uses, moment(row.expires_at))
            for row, state in listed
        ]
        print_table(("id", "status", "tool", "covers", "given by", "uses", "until"), rows)


async def revoke(config: Config, ids: Sequence[str]) -> bool:
    """Revoke grants one by one; return whether all of them have ended."""
    done = True
    async with open_decisions(config) as decisions:
        for grant_id in ids:
            try:
                grant = await decisions.grants.revoke(grant_id, user())
            except RequestError as error:
                say_error(error.message)
                done = False
            else:
                line = plain_text(f"later calls of {grant.tool} by {grant.caller} ask again.", MAX_LINE)
                say(f"{grant.id} is revoked: {line}")
    return done


def _covers(grant: Grant) -> str:
    """Describe whose calls a grant allows, and with which arguments."""
    whose = grant.caller if grant.scope == "caller" else f"{grant.caller}, one conversation"
    limits = [f"{path}: {bound}" for path, bound in ArgumentLimits.from_json(grant.bounds).bounds.items()]
    return f"{whose}; {'; '.join(limits) or 'any arguments'}"
