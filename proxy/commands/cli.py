"""The commands and their options; other modules of this package do the work."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from proxy import __version__
from proxy.base.errors import ConfigError, RunFault, ToolRelayError
from proxy.base.light_imports import import_structlog, import_without
from proxy.commands import common
from proxy.commands.approvals.cli import approvals_app
from proxy.commands.credentials.cli import credentials_app
from proxy.commands.keys.cli import keys_app
from proxy.commands.mcp.cli import mcp_app, openapi_app
from proxy.commands.options import ConfigOption, JsonOption, ListByDefault, NamedUpstreamOption, ScrubOption
from proxy.commands.prices.cli import prices_app
from proxy.commands.runs.cli import requests_app, runs_app, usage
from proxy.commands.serve.memory import share_one_arena

app = typer.Typer(
    name="toolrelay",
    help="An OpenAI-compatible reverse proxy that runs the operator's tools on the server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
tools_app = typer.Typer(help="List the tools, or call one of them.", cls=ListByDefault)
app.add_typer(approvals_app, name="approvals")
app.add_typer(credentials_app, name="credentials")
app.add_typer(keys_app, name="keys")
app.add_typer(mcp_app, name="mcp")
app.add_typer(openapi_app, name="openapi")
app.add_typer(prices_app, name="prices")
app.add_typer(requests_app, name="requests")
app.add_typer(runs_app, name="runs")
app.add_typer(tools_app, name="tools")

HostOption = Annotated[str | None, typer.Option(help="The address to listen on.")]
PortOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes any free one.")
]
OpenOption = Annotated[
    bool,
    typer.Option("--open", help="Serve everybody who reaches the port, without a start token or client key."),
]
UpstreamOption = Annotated[
    str | None, typer.Option(metavar="URL", help="The base URL of the default upstream.")
]


def run(arguments: Sequence[str]) -> int:
    """Run one command; print every toolrelay error as one line on standard error and return status 1.

    A last line names the command that explains the first setting or error code among them.
    """
    if not arguments or "--help" in arguments or "-h" in arguments:
        import_without("typer.rich_utils", "rich.markdown", "rich.traceback")
    try:
        app(list(arguments), standalone_mode=True)
    except ToolRelayError as error:
        faults = [str(fault) for fault in (error, *(error.others if isinstance(error, ConfigError) else ()))]
        common.say_faults(faults, [error.code] if isinstance(error, RunFault) else [])
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
    """An OpenAI-compatible reverse proxy that runs the operator's tools on the server."""
    import_structlog()


@app.command()
def demo(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes any free one.")
    ] = 8080,
    speed: Annotated[
        float,
        typer.Option(
            min=0, max=1000, help="How many times as fast as recorded the model answers; 0: no pauses."
        ),
    ] = 1.0,
) -> None:
    """Serve recorded conversations on the real code path, without a key or a network."""
    from proxy.commands.demo import demo as start

    common.run_async(start(port, speed=speed))


@app.command()
def serve(
    config: ConfigOption = None,
    host: HostOption = None,
    port: PortOption = None,
    upstream: UpstreamOption = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="The number of processes that serve requests.")
    ] = None,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Restart when the configuration or one of your tools changes."),
    ] = False,
    is_open: OpenOption = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOOL",
            help="Allow this tool, or all that match a pattern such as 'core__*', in addition to "
            "policy.allow. Repeat the option for more.",
        ),
    ] = None,
) -> None:
    """Run the proxy."""
    share_one_arena()
    from proxy.config.load import Options
    from proxy.server.auth.key_ring import new_secret

    options = Options(
        host=host,
        port=port,
        workers=workers,
        upstream=upstream,
        open=is_open,
        allow=tuple(allow or ()),
        start_token=new_secret(),
    )
    loaded = common.load(config, options)
    common.start_logging(loaded)
    from proxy.commands.serve.multiprocess import serve_multiprocess

    serve_multiprocess(config, options, loaded, reload=reload)


@app.command()
def ui(
    config: ConfigOption = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="The address of the server for your browser. Default: server.host and server.port.",
        ),
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open the link in a browser.")] = False,
) -> None:
    """Print a link that signs you in to the web UI, once."""
    from proxy.commands.ui import print_link

    loaded = common.load(config)
    common.run_async(print_link(loaded, address=url, browse=browse))


@app.command()
def check(
    config: ConfigOption = None,
    probe: Annotated[bool, typer.Option("--probe", help="Send each upstream a few test requests.")] = False,
) -> None:
    """Validate the configuration; list upstreams, tools, and the policy's decision about each."""
    from proxy.config.load import find_faults

    loaded, faults = find_faults(common.config_path(config), os.environ, go_on=True)
    if loaded is None:
        common.say_faults(map(str, faults))
        raise typer.Exit(1)
    from proxy.commands.doctor import check as checking
    from proxy.telemetry.log.setup import configure_logging

    # The check reports what the log would warn about, such as a refused key. Once is enough.
    configure_logging(level="error", secrets=loaded.log_secrets())
    if common.run_async(checking.check_composed(loaded, probing=probe, known=faults)):
        raise typer.Exit(1)


@app.command()
def doctor(
    upstream: NamedUpstreamOption = None,
    model: Annotated[
        str | None, typer.Option(help="The model to test. Default: the first model that the upstream lists.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    write: Annotated[
        bool, typer.Option("--write", help="Write the recommended settings into the configuration file.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Send the requests without asking first.")] = False,
) -> None:
    """Find out what an upstream supports, what it gets wrong, and which settings suit it."""
    from proxy.config.load import Options

    by_url = upstream is not None and ("://" in upstream or upstream.startswith("replay:"))
    loaded = common.load(config, Options(upstream=upstream) if by_url else None)
    name = common.upstream_named(loaded, None if by_url else upstream)
    file = common.config_path(config) if write else None
    if write and (file is None or by_url):
        raise ConfigError(
            "--write",
            "works only for an upstream of a configuration file",
            "Give --config FILE and the upstream's name",
        )
    from proxy.commands.doctor.doctor import doctor as examine
    from proxy.telemetry.log.setup import configure_logging

    configure_logging(level="error", secrets=loaded.log_secrets())
    try:
        status = common.run_async(
            examine(
                loaded,
                name,
                model=model,
                as_json=as_json,
                write=file,
                yes=yes,
                keep=not by_url and common.config_path(config) is not None,
            )
        )
    except KeyboardInterrupt:
        common.say_error("stopped; no file was changed")
        raise typer.Exit(130) from None
    if status:
        raise typer.Exit(status)


@app.command()
def explain(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="For example model_not_found, server.port, policy, x-toolrelay-tools.",
        ),
    ],
) -> None:
    """Print what an error code, a setting, a header or a metric means."""
    from proxy.commands.explain import explain as text_of

    common.say(*"\n".join(map(text_of, names)).rstrip().split("\n"))


@app.command()
def init(path: Annotated[Path, typer.Argument(help="The file to write.")] = Path(common.CONFIG_NAME)) -> None:
    """Write a short configuration, with every other key and its default as comments."""
    from proxy.config.text import initial_config

    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(initial_config())
    except FileExistsError:
        raise ConfigError(
            str(path), "the file exists already", "Choose another file name, or move the existing file away"
        ) from None
    except OSError as error:
        raise ConfigError(
            str(path), f"the file cannot be written: {error.strerror}", "Choose another file name"
        ) from None
    common.say(f"wrote {path}; start the proxy with: toolrelay serve --config {path}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of toolrelay.toml, with which editors complete and check it."""
    from proxy.commands.schema import schema_text

    common.say(*schema_text().split("\n"))


@app.command()
def migrate(
    config: ConfigOption = None,
    reseal: Annotated[
        bool,
        typer.Option(
            "--reseal",
            help="Encrypt all content with the present key, including content that is not encrypted yet.",
        ),
    ] = False,
    forget_sealed: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Delete the content that was encrypted with this key. Use it if the key is lost.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before --forget-sealed deletes content.")
    ] = False,
) -> None:
    """Migrate the record to the current schema; a copy of a non-empty file is kept."""
    from proxy.commands.runs import sealing

    loaded = common.load(config, need_secrets=False)
    sealing.migrate(loaded)
    if forget_sealed is not None:
        sealing.forget_sealed(loaded, forget_sealed, ask=not yes)
    if reseal:
        sealing.reseal(loaded)


@app.command()
def record(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write the exchanges to.")],
    upstream: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The base URL of the provider. Only --mode replay needs none."),
    ] = None,
    config: ConfigOption = None,
    port: PortOption = None,
    is_open: OpenOption = False,
    mode: Annotated[
        str,
        typer.Option(
            metavar="record|replay|once",
            help="record asks the provider and saves every exchange; once does so only for what the folder "
            "does not have yet; replay never asks.",
        ),
    ] = "record",
    scrub: ScrubOption = None,
) -> None:
    """Serve, and save the exchanges with the upstream as fixtures."""
    from proxy.config.load import Options
    from proxy.server.auth.key_ring import new_secret

    if mode not in common.RECORD_MODES:
        raise ConfigError("--mode", f"{mode[:40]!r} is not a mode", "Write record, replay or once")
    if upstream is None and mode != "replay":
        raise ConfigError("--upstream", "says which provider is recorded", "Give its base URL")
    address = upstream or f"replay:{out.absolute()}"
    options = Options(port=port, upstream=address, open=is_open, start_token=new_secret())
    loaded = common.load(config, options)
    from proxy.commands.fixtures.record import record as start

    common.start_logging(loaded, serves=True)
    common.run_async(start(loaded, out, mode=mode, scrub=scrub or ()))


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder with the fixtures.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes any free one.")
    ] = 8090,
    speed: Annotated[
        float,
        typer.Option(
            min=0,
            max=1_000_000,
            help="How many times as fast as recorded streams come: 1 keeps the pauses, 0 leaves them out.",
        ),
    ] = 1.0,
    scrub: ScrubOption = None,
) -> None:
    """Answer from fixtures, as a model provider in all four dialects, without a key or a network."""
    from proxy.commands.fixtures.replay import replay as start

    common.run_async(start(folder, port, speed=speed, scrub=scrub or ()))


@app.command("eval")
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder with the fixtures.")],
    upstream: NamedUpstreamOption = None,
    model: Annotated[
        str | None, typer.Option(help="Ask this model. Default: the model of each fixture.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, max=100, help="How often to play each fixture.")] = 1,
    as_json: JsonOption = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the results as JUnit XML.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Play fixtures with a model and their recorded tool results, and compare what it does.

    It ends with status 1 if the model called other tools, with other arguments, or broke a rule.
    """
    from proxy.commands.fixtures.evaluate import Plays
    from proxy.commands.fixtures.evaluate import evaluate as start
    from proxy.config.load import Options
    from proxy.telemetry.log.setup import configure_logging

    by_url = upstream is not None and ("://" in upstream or upstream.startswith("replay:"))
    loaded = common.load(config, Options(upstream=upstream) if by_url else None)
    name = common.upstream_named(loaded, None if by_url else upstream)
    configure_logging(level="error", secrets=loaded.secrets())
    common.run_or_fail(start(loaded, name, Plays(folder, model, runs), as_json=as_json, junit=junit))


app.command("usage")(usage)


@tools_app.callback()
def tools() -> None:
    """Without a command, list."""


@tools_app.command("list")
def tools_list(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List every loaded tool with its effect and the policy's decision."""
    from proxy.commands import tools

    common.run_async(tools.list_tools(common.load(config, need_secrets=False), as_json=as_json))


@tools_app.command("call")
def tools_call(
    name: Annotated[str, typer.Argument(help="The tool's name, for example core__get_weather.")],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="The tool's arguments as a JSON object.")
    ] = "{}",
    config: ConfigOption = None,
) -> None:
    """Run one tool under the same runner and policy as a model's call."""
    from proxy.commands import tools

    common.run_or_fail(tools.call_tool(common.load_with_log(config), name, arguments))


FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="FILE", help="Keep the pins in this file (for mcp.pins) instead of the store."
    ),
]


@tools_app.command("allow")
def tools_allow(
    pattern: Annotated[
        str,
        typer.Argument(
            help="A tool of an MCP server or an API, or a pattern: mcp__files__read, openapi__pets__*."
        ),
    ],
    config: ConfigOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Allow the tools without asking first.")] = False,
    file: FileOption = None,
) -> None:
    """Show the current definitions of tools of MCP servers and APIs, and allow them."""
    from proxy.commands.mcp import allowing

    loaded = common.load_quietly(config, need_secrets=allowing.needed_secrets(pattern))
    common.run_or_fail(allowing.allow_tools(loaded, pattern, yes=yes, file=file))


@tools_app.command("deny")
def tools_deny(
    name: Annotated[str, typer.Argument(help="The tool's name, for example mcp__files__read.")],
    config: ConfigOption = None,
    file: FileOption = None,
) -> None:
    """Stop allowing a tool of an MCP server or an API."""
    from proxy.commands.mcp import allowing

    loaded = common.load(config, need_secrets=False)
    common.run_or_fail(allowing.deny_tool(loaded, name, file=file))
