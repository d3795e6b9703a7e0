"""The options of ``toolrelay approvals``."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

import typer

from proxy.base.errors import ConfigError
from proxy.commands import common
from proxy.commands.options import ConfigOption, JsonOption, ListByDefault, read_bounds
from proxy.records import MOST_REASON

approvals_app = typer.Typer(
    help="List the calls that wait for approval, decide about them, and revoke grants.", cls=ListByDefault
)

IdsArgument = Annotated[list[str], typer.Argument(metavar="ID...", help="The ids of approvals.")]
ReasonOption = Annotated[
    str, typer.Option(metavar="TEXT", help=f"Why; the model reads it (at most {MOST_REASON} characters).")
]


@approvals_app.callback()
def approvals() -> None:
    """Without a command, list."""


@approvals_app.command("list")
def approvals_list(
    config: ConfigOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="Include those that were decided or have expired.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The largest number to list.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the calls that wait for a decision, newest first."""
    from proxy.commands.approvals import deciding

    loaded = common.load_with_log(config)
    common.run_async(deciding.list_approvals(loaded, limit=limit, waiting=not every, as_json=as_json))


@approvals_app.command("show")
def approvals_show(
    approval_id: Annotated[str, typer.Argument(metavar="ID", help="The id of an approval.")],
    config: ConfigOption = None,
) -> None:
    """Show one approval, with the exact arguments that run."""
    from proxy.commands.approvals import deciding

    common.run_or_fail(deciding.show(common.load_with_log(config), approval_id))


@approvals_app.command("approve")
def approvals_approve(
    ids: IdsArgument,
    config: ConfigOption = None,
    reason: ReasonOption = "",
    lasts: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="Let the caller's later calls of this tool run, too, for so long: 30m, 1h, 7d.",
        ),
    ] = None,
    conversation: Annotated[
        bool,
        typer.Option(
            "--conversation",
            help="Let later calls of this tool run, too, in the conversation that asked; with --for for so "
            "long, else as long as approvals.max_grant_s.",
        ),
    ] = False,
    arguments: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BOUND",
            help="Limits of the arguments of later calls, as in policy.arguments: amount={max=100}. "
            "Repeat the option, or write several lines.",
        ),
    ] = None,
) -> None:
    """Approve calls: each runs once, when its client sends the next request.

    With --for or --conversation later calls of the tool run without asking, until the grant ends.
    """
    grant: dict[str, Any] = {"for": lasts} if lasts is not None else {}
    if conversation:
        grant["conversation"] = True
    if arguments:
        if not grant:
            raise ConfigError("--arguments", "needs a grant to limit", "Add --for 1h, --conversation or both")
        grant["arguments"] = read_bounds(arguments, "amount = {max = 100}")
    _decide(ids, config, approve=True, reason=reason, grant=grant)


@approvals_app.command("deny")
def approvals_deny(ids: IdsArgument, config: ConfigOption = None, reason: ReasonOption = "") -> None:
    """Deny calls; the model reads the reason."""
    _decide(ids, config, approve=False, reason=reason)


@approvals_app.command("grants")
def approvals_grants(
    config: ConfigOption = None,
    every: Annotated[bool, typer.Option("--all", help="Include those that have ended.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The largest number to list.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the grants by which calls run without asking, newest first."""
    from proxy.commands.approvals import granting

    loaded = common.load_with_log(config)
    common.run_async(granting.list_grants(loaded, limit=limit, active=not every, as_json=as_json))


@approvals_app.command("revoke")
def approvals_revoke(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The ids of grants.")],
    config: ConfigOption = None,
) -> None:
    """Revoke grants: later calls ask again."""
    from proxy.commands.approvals import granting

    common.run_or_fail(granting.revoke(common.load_with_log(config), ids))


@approvals_app.command("watch")
def approvals_watch(config: ConfigOption = None) -> None:
    """Print each call as it starts to wait for a decision, until you press Ctrl-C."""
    from proxy.commands.approvals import deciding

    try:
        common.run_async(deciding.watch(common.load_with_log(config)))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _decide(
    ids: list[str],
    config: ConfigOption,
    *,
    approve: bool,
    reason: str,
    grant: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    from proxy.commands.approvals import deciding

    # The log is for decisions and reads, which are logged here too.
    loaded = common.load_with_log(config)
    common.run_or_fail(deciding.decide(loaded, ids, approve=approve, reason=reason, grant=grant))
