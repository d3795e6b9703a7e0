"""The commands and their options; each does its work in a module beside this one."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from proxy import __version__
from proxy.commands import common
from proxy.commands.keys.cli import keys_app
from proxy.commands.options import ConfigOption, JsonOption, ListByDefault
from proxy.commands.runs.cli import runs_app, usage
from proxy.commands.serve.memory import share_one_arena
from proxy.errors import ConfigError, ToolRelayError
from proxy.server.auth.key_ring import new_secret
from proxy.server.config.load import Options, find_faults
from proxy.server.config.text import initial_config

__all__ = ["app", "run"]

app = typer.Typer(
    name="toolrelay",
    help="An OpenAI-compatible reverse proxy that runs curated tools on the server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
tools_app = typer.Typer(help="The tools, and one call of one of them.", cls=ListByDefault)
app.add_typer(keys_app, name="keys")
app.add_typer(runs_app, name="runs")
app.add_typer(tools_app, name="tools")

HostOption = Annotated[str | None, typer.Option(help="Address to listen on.")]
PortOption = Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on.")]
OpenOption = Annotated[
    bool, typer.Option("--open", help="Ask for no start token and no key: let in whoever reaches the port.")
]
UpstreamOption = Annotated[str | None, typer.Option(metavar="URL", help="The default upstream's base URL.")]


def run(arguments: Sequence[str]) -> int:
    """Run one command; every fault of ours ends as one line on standard error and status 1."""
    try:
        app(list(arguments), standalone_mode=True)
    except ToolRelayError as error:
        for fault in (error, *(error.others if isinstance(error, ConfigError) else ())):
            common.say_error(str(fault))
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _version(wanted: bool) -> None:
    if wanted:
        common.say(f"toolrelay {__version__}")
        raise typer.Exit


@app.callback()
def toolrelay(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """An OpenAI-compatible reverse proxy that runs curated tools on the server."""


@app.command()
def demo(port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8080) -> None:
    """Serve recorded conversations: no key, no network, the real code path."""
    from proxy.commands.demo import demo as start

    common.run_async(start(port))


@app.command()
def serve(
    config: ConfigOption = None,
    host: HostOption = None,
    port: PortOption = None,
    upstream: UpstreamOption = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that serve.")] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Start again when a file changes.")] = False,
    is_open: OpenOption = False,
) -> None:
    """Run the proxy."""
    share_one_arena()
    options = Options(
        host=host, port=port, workers=workers, upstream=upstream, open=is_open, start_token=new_secret()
    )
    loaded = common.load(config, options)
    common.start_logging(loaded)
    from proxy.commands.serve.multiprocess import serve_multiprocess

    serve_multiprocess(config, options, loaded, reload=reload)


@app.command()
def check(
    config: ConfigOption = None,
    probe: Annotated[bool, typer.Option("--probe", help="Ask each upstream what it can do.")] = False,
) -> None:
    """Validate the configuration; list upstreams, tools, and what policy says of each."""
    loaded, faults = find_faults(common.config_path(config), os.environ, go_on=True)
    if loaded is None:
        for fault in faults:
            common.say_error(str(fault))
        raise typer.Exit(1)
    from proxy.commands.doctor import check as checking
    from proxy.server.telemetry.logging import configure_logging

    # What the log would warn of (a key that is refused, say) is told as a fault, and once is enough.
    configure_logging(level="error", secrets=loaded.secrets())
    if common.run_async(checking.check_composed(loaded, probing=probe, known=faults)):
        raise typer.Exit(1)


@app.command()
def init(path: Annotated[Path, typer.Argument(help="File to write.")] = Path(common.CONFIG_NAME)) -> None:
    """Write a commented configuration with every key and its default."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(initial_config())
    except FileExistsError:
        raise ConfigError(str(path), "is there already", "Name another file, or move that one away") from None
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written: {error.strerror}", "Name another file") from None
    common.say(f"wrote {path}; start with: toolrelay serve --config {path}")


@app.command()
def migrate(
    config: ConfigOption = None,
    reseal: Annotated[
        bool, typer.Option("--reseal", help="Seal all content with store.seal_key, also what is not sealed.")
    ] = False,
    forget_sealed: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Delete the content that the lost key of this name has sealed."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask about --forget-sealed.")] = False,
) -> None:
    """Bring the record's database up to date; a copy of a non-empty file is kept."""
    from proxy.commands.runs import sealing

    loaded = common.load(config, need_secrets=False)
    sealing.migrate(loaded)
    if forget_sealed is not None:
        sealing.forget_sealed(loaded, forget_sealed, ask=not yes)
    if reseal:
        sealing.reseal(loaded)


@app.command()
def record(
    upstream: Annotated[str, typer.Option(metavar="URL", help="The provider's base URL.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the exchanges.")],
    config: ConfigOption = None,
    port: PortOption = None,
    is_open: OpenOption = False,
) -> None:
    """Serve, and save every exchange with the upstream as a fixture."""
    options = Options(port=port, upstream=upstream, open=is_open, start_token=new_secret())
    loaded = common.load(config, options)
    from proxy.commands.record import record as start

    common.start_logging(loaded, serves=True)
    common.run_async(start(loaded, out))


app.command("usage")(usage)


@tools_app.callback()
def tools() -> None:
    """The tools; without a command: list."""


@tools_app.command("list")
def tools_list(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Every loaded tool with its effect and what policy says of it."""
    from proxy.commands import tools

    common.run_async(tools.list_tools(common.load(config, need_secrets=False), as_json=as_json))


@tools_app.command("call")
def tools_call(
    name: Annotated[str, typer.Argument(help="The tool, like core__get_weather.")],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Its arguments as a JSON object.")] = "{}",
    config: ConfigOption = None,
) -> None:
    """Run one tool under the same runner and policy as a model's call."""
    from proxy.commands import tools

    loaded = common.load(config, need_secrets=False)
    common.start_logging(loaded)
    if not common.run_async(tools.call_tool(loaded, name, arguments)):
        raise typer.Exit(1)
