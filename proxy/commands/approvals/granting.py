"""Implements ``toolrelay approvals grants`` and ``revoke`` on the database."""

from collections.abc import Sequence

from proxy.api.admin.approvals import grant_to_json
from proxy.api.admin.json_output import to_line
from proxy.base.errors import RequestError
from proxy.base.plain_text import plain_text
from proxy.commands.approvals.deciding import moment, open_decisions, user
from proxy.commands.common import MAX_LINE, console, say, say_error, table, text
from proxy.config.load import Config
from proxy.records.grants import Grant, GrantFilter
from proxy.tools.running.granted import ArgumentLimits

__all__ = ["list_grants", "revoke"]


async def list_grants(config: Config, *, limit: int, active: bool, as_json: bool) -> None:
    """Print the newest grants, one per line."""
    async with open_decisions(config) as decisions:
        grants = decisions.grants
        grants_listed = await grants.list(GrantFilter(limit, active=active))
        states = [grants.state(grant) for grant in grants_listed]
    if as_json:
        for grant, state in zip(grants_listed, states, strict=True):
            say(to_line(grant_to_json(grant, state)))
        return
    if not grants_listed:
        say("There are no active grants." if active else "There are no grants.")
        return
    made = table("id", "status", "tool", "covers", "given by", "uses", "until")
    for grant, state in zip(grants_listed, states, strict=True):
        made.add_row(
            text(grant.id),
            text(state),
            text(grant.tool),
            text(_covers(grant)),
            text(grant.made_by),
            text(str(grant.uses)),
            text(moment(grant.expires_at)),
        )
    console().print(made)


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
