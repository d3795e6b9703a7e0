"""The options of ``toolrelay runs`` and ``toolrelay usage``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from proxy.base.errors import ConfigError
from proxy.commands import common
from proxy.commands.options import (
    ConfigOption,
    ContentOption,
    JsonOption,
    ListByDefault,
    ScrubOption,
    SinceOption,
    UntilOption,
)
from proxy.records import RunStatus

if TYPE_CHECKING:
    from proxy.config.load import Config
    from proxy.store.base import RunFilter

__all__ = ["requests_app", "runs_app", "usage"]

runs_app = typer.Typer(help="Show, export, replay and delete recorded runs.", cls=ListByDefault)

StatusOption = Annotated[
    str | None, typer.Option(metavar="STATUS", help=", ".join(get_args(RunStatus)) + ".")
]
ModelOption = Annotated[str | None, typer.Option(help="Only runs of this model.")]
ToolOption = Annotated[str | None, typer.Option(help="Only runs that called this tool.")]
KeyOption = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Only runs of this key (name or id); for one end user: KEY/USER."),
]
ErrorsOption = Annotated[bool, typer.Option("--errors", help="Only runs that ended in an error.")]
AgentsOption = Annotated[bool, typer.Option("--agents", help="Include runs of agents.")]
RunArgument = Annotated[str, typer.Argument(metavar="ID", help="The run's id, or the beginning of it.")]


@runs_app.callback()
def runs() -> None:
    """Without a command, list."""


@runs_app.command("list")
def runs_list(
    config: ConfigOption = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="The largest number of runs to list.")] = 50,
    since: SinceOption = None,
    until: UntilOption = None,
    status: StatusOption = None,
    model: ModelOption = None,
    tool: ToolOption = None,
    key: KeyOption = None,
    errors: ErrorsOption = False,
    agents: AgentsOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the newest runs."""
    from proxy.commands.runs import runs

    wanted = _wanted(
        since=since, until=until, status=status, model=model, tool=tool, key=key, errors=errors, agents=agents
    )
    common.run_async(runs.list_runs(_load(config), wanted, limit, as_json=as_json))


@runs_app.command("show")
def runs_show(
    run_id: RunArgument,
    config: ConfigOption = None,
    content: ContentOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show one run: its turns and tool calls on a time line, and what the client did not get."""
    from proxy.commands.runs import runs

    common.run_async(runs.show_run(common.load_with_log(config), run_id, as_json=as_json, content=content))


@runs_app.command("export")
def runs_export(
    config: ConfigOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write to this new file, which only its owner can read. Default: standard output.",
        ),
    ] = None,
    content: ContentOption = False,
    limit: Annotated[int | None, typer.Option(min=1, help="The largest number of runs to export.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    status: StatusOption = None,
    model: ModelOption = None,
    tool: ToolOption = None,
    key: KeyOption = None,
    errors: ErrorsOption = False,
    agents: AgentsOption = False,
) -> None:
    """Export whole runs as JSON Lines, the newest first."""
    from proxy.commands.runs import runs

    wanted = _wanted(
        since=since, until=until, status=status, model=model, tool=tool, key=key, errors=errors, agents=agents
    )
    common.run_async(runs.export_runs(common.load_with_log(config), wanted, limit, out, content=content))


@runs_app.command("replay")
def runs_replay(
    run_id: RunArgument,
    config: ConfigOption = None,
    upstream: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send the client's recorded request to a model of this upstream."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Use this model instead. Needs --upstream.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a recorded run again with its tool results as they were, and show the difference."""
    from proxy.commands.runs import replay
    from proxy.config.load import Options
    from proxy.telemetry.log.setup import configure_logging

    if model is not None and upstream is None:
        raise ConfigError(
            "--model", "without --upstream the recording answers, not a model", "Add --upstream"
        )
    online = upstream is not None
    loaded = common.load(config, Options(upstream=upstream), need_secrets=online)
    configure_logging(level="warning", secrets=loaded.log_secrets())
    replaying = replay.replay_run(loaded, run_id, online=online, model=model, as_json=as_json)
    common.run_or_fail(replaying)


@runs_app.command("save")
def runs_save(
    run_id: RunArgument,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to write the fixture into, in one of its own.")
    ],
    config: ConfigOption = None,
    scrub: ScrubOption = None,
) -> None:
    """Make a fixture of a recorded run: both sides, with hidden turns and the results of tools."""
    from proxy.commands.runs import saving

    common.run_async(saving.save_run(common.load_with_log(config), run_id, folder, scrub or ()))


@runs_app.command("purge")
def runs_purge(
    config: ConfigOption = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Delete runs that started before this time: 30d for 30 days ago, or 2026-01-31.",
        ),
    ] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Delete this run.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --all deletes runs.")] = False,
) -> None:
    """Delete runs permanently, with everything that belongs to them."""
    from proxy.api.admin.run_filters import parse_moment
    from proxy.commands.runs import runs
    from proxy.store.base import PurgeFilter

    if [older_than is not None, run is not None, everything].count(True) != 1:
        raise ConfigError(
            "runs purge", "does not say what to delete", "Give one of --older-than, --run and --all"
        )
    loaded = _load(config)
    if everything and not yes and not common.confirmed(f"Delete every run of {loaded.store.shown_url}?"):
        raise ConfigError("--all", "deletes every run", "To delete without a question, add --yes")
    wanted = PurgeFilter(run_id=run, before=parse_moment("--older-than", older_than))
    common.run_async(runs.purge_runs(loaded, wanted))


requests_app = typer.Typer(
    help="Show recorded requests that have no run: passed through, refused or failed.", cls=ListByDefault
)


@requests_app.callback()
def requests() -> None:
    """Without a command, list."""


@requests_app.command("list")
def requests_list(
    config: ConfigOption = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="The largest number to list.")] = 50,
    since: SinceOption = None,
    until: UntilOption = None,
    status: Annotated[int | None, typer.Option(min=100, max=999, help="Only this HTTP status.")] = None,
    model: Annotated[str | None, typer.Option(help="Only requests for this model.")] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Only requests of this key (name or id); for one end user: KEY/USER. Empty: of nobody.",
        ),
    ] = None,
    errors: Annotated[bool, typer.Option("--errors", help="Only requests that failed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the newest requests that have no run."""
    from proxy.api.admin.run_filters import parse_moment
    from proxy.commands.runs import requests
    from proxy.store.base import RequestFilter

    wanted = RequestFilter(
        status=status,
        model=model,
        caller=key,
        since=parse_moment("--since", since),
        until=parse_moment("--until", until),
        errors_only=errors,
    )
    common.run_async(requests.list_requests(_load(config), wanted, limit, as_json=as_json))


def usage(
    config: ConfigOption = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="WORDS", help="Group by these, separated by commas: key, caller, model, tool, day."
        ),
    ] = "model",
    since: SinceOption = None,
    until: UntilOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what requests used: tokens, calls and cost, by key, caller, model, tool and day."""
    from proxy.api.admin.run_filters import parse_moment
    from proxy.commands.runs import usage
    from proxy.store.base import UsageKey

    chosen: list[UsageKey] = []
    for word in filter(None, (part.strip() for part in by.split(","))):
        known = next((key for key in get_args(UsageKey) if key == word), None)
        if known is None or known in chosen:
            problem = f"{word[:40]!r} is listed twice" if known else f"there is no {word[:40]!r}"
            raise ConfigError("--by", problem, f"Choose from: {', '.join(get_args(UsageKey))}")
        chosen.append(known)
    begin, end = parse_moment("--since", since), parse_moment("--until", until)
    common.run_async(usage.show_usage(_load(config), tuple(chosen), begin, end, as_json=as_json))


def _wanted(**options: Any) -> "RunFilter":
    """Return which runs the options of a command name."""
    from proxy.api.admin.run_filters import parse_filter

    return parse_filter(**options, prefix="--")


def _load(config: Path | None) -> "Config":
    return common.load(config, need_secrets=False)
