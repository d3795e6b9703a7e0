"""The options of ``toolrelay approvals``."""

from typing import Annotated

import typer

from proxy.approval_records import MOST_REASON
from proxy.commands import common
from proxy.commands.options import ConfigOption, JsonOption, ListByDefault
from proxy.server.config.load import Config

__all__ = ["approvals_app"]

approvals_app = typer.Typer(
    help="List the calls that wait for approval, and decide about them.", cls=ListByDefault
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

    common.run_async(
        deciding.list_approvals(_config(config), limit=limit, waiting=not every, as_json=as_json)
    )


@approvals_app.command("show")
def approvals_show(
    approval_id: Annotated[str, typer.Argument(metavar="ID", help="The id of an approval.")],
    config: ConfigOption = None,
) -> None:
    """Show one approval, with the exact arguments that run."""
    from proxy.commands.approvals import deciding

    if not common.run_async(deciding.show(_config(config), approval_id)):
        raise typer.Exit(1)


@approvals_app.command("approve")
def approvals_approve(ids: IdsArgument, config: ConfigOption = None, reason: ReasonOption = "") -> None:
    """Approve calls: each runs once, when its client sends the next request."""
    _decide(ids, config, approve=True, reason=reason)


@approvals_app.command("deny")
def approvals_deny(ids: IdsArgument, config: ConfigOption = None, reason: ReasonOption = "") -> None:
    """Deny calls; the model reads the reason."""
    _decide(ids, config, approve=False, reason=reason)


@approvals_app.command("watch")
def approvals_watch(config: ConfigOption = None) -> None:
    """Print each call as it starts to wait for a decision, until you press Ctrl-C."""
    from proxy.commands.approvals import deciding

    try:
        common.run_async(deciding.watch(_config(config)))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _decide(ids: list[str], config: ConfigOption, *, approve: bool, reason: str) -> None:
    from proxy.commands.approvals import deciding

    if not common.run_async(deciding.decide(_config(config), ids, approve=approve, reason=reason)):
        raise typer.Exit(1)


def _config(config: ConfigOption) -> Config:
    """The configuration, with the log on standard error: decisions and reading are logged here, too."""
    loaded = common.load(config, need_secrets=False)
    common.start_logging(loaded)
    return loaded
