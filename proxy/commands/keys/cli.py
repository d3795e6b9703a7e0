"""The options of ``toolrelay keys``."""

import json
import re
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from proxy.base.errors import ConfigError
from proxy.commands import common
from proxy.commands.options import ConfigOption, JsonOption, ListByDefault, read_bounds

keys_app = typer.Typer(help="Create, list and revoke client keys.", cls=ListByDefault)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_AGE = re.compile(r"(\d{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}

ListOption = list[str] | None


def _list_option(about: str) -> Any:
    return typer.Option(metavar="LIST", help=f"{about} Separate several with commas, or repeat the option.")


@keys_app.callback()
def keys() -> None:
    """Without a command, list."""


@keys_app.command("create")
def keys_create(
    name: Annotated[str, typer.Argument(help="A name for the key.")],
    config: ConfigOption = None,
    models: Annotated[ListOption, _list_option("Models that the key may use. Default: all.")] = None,
    upstreams: Annotated[ListOption, _list_option("Upstreams that the key may use. Default: all.")] = None,
    tools: Annotated[
        ListOption, _list_option('Tools that the key may use; "" for none. Default: all allowed tools.')
    ] = None,
    endpoints: Annotated[ListOption, _list_option("More paths that the key may call, like /files*.")] = None,
    limits: Annotated[
        ListOption,
        _list_option("Own limits: requests=60/minute, tool_calls, tokens, cost, concurrent_streams=4."),
    ] = None,
    arguments: Annotated[
        ListOption,
        typer.Option(
            metavar="BOUND",
            help="Limits of tool arguments, as in policy.arguments: core__get_weather.days={max=3}. "
            "Repeat the option, or write several lines.",
        ),
    ] = None,
    trace: Annotated[
        str | None, typer.Option(help="The most it may see of tools: silent, reasoning, status, events.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="When it expires: 2027-01-31, or 90d from now.")
    ] = None,
    approves: Annotated[
        ListOption, _list_option("Tools whose calls the key may approve or deny. Default: none.")
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Let the key read /admin.")] = False,
    mint: Annotated[bool, typer.Option("--mint", help="Let the key make short-lived tokens.")] = False,
    shared: Annotated[bool, typer.Option("--shared", help="Several people use the key.")] = False,
) -> None:
    """Create a key. Its secret is printed only once, alone on standard output."""
    from proxy.commands.keys import keys

    if not _NAME.match(name):
        raise ConfigError(
            name[:80],
            "is not a valid name for a key",
            "Use up to 64 letters, digits, - and _, starting with a letter or digit",
        )
    options: dict[str, Any] = {"admin": admin, "mint": mint, "shared": shared}
    lists = {"models": models, "upstreams": upstreams, "tools": tools, "endpoints": endpoints}
    for option, given in (lists | {"approves": approves}).items():
        if given is not None:
            options[option] = _split(given)
    if limits is not None:
        options["limits"] = read_limits(limits)
    if arguments is not None:
        options["arguments"] = read_bounds(arguments, '"core__get_weather".days = {max = 3}')
    if trace is not None:
        options["trace_max"] = trace
    if expires is not None:
        options["expires"] = _moment(expires)
    loaded = common.load(config, need_secrets=False)
    common.run_async(keys.create_key(loaded, name, keys.read_grants(options)))


@keys_app.command("list")
def keys_list(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List every key without its secret, including those of the configuration and revoked ones."""
    from proxy.commands.keys import keys

    common.run_async(keys.list_keys(common.load(config, need_secrets=False), as_json=as_json))


@keys_app.command("revoke")
def keys_revoke(
    key: Annotated[str, typer.Argument(metavar="NAME|ID", help="The key's name or id.")],
    config: ConfigOption = None,
) -> None:
    """Revoke a key permanently: every worker refuses its next request."""
    from proxy.commands.keys import keys

    common.run_async(keys.revoke_key(common.load(config, need_secrets=False), key))


def _split(given: list[str]) -> list[str]:
    return [part.strip() for each in given for part in each.split(",") if part.strip()]


def read_limits(given: list[str]) -> dict[str, Any]:
    """Parse limits, written as ``KIND=LIMIT`` separated by commas (a kind may repeat) or as one JSON object.

    Raises ConfigError for ``--limits``.
    """
    if len(given) == 1 and given[0].lstrip().startswith("{"):
        try:
            parsed = json.loads(given[0])
        except ValueError:
            raise ConfigError("--limits", "is not a JSON object", "Write requests=60/minute") from None
        return dict(parsed)
    limits: dict[str, Any] = {}
    for part in _split(given):
        kind, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise ConfigError("--limits", f"{part[:60]!r} is not a limit", "Write requests=60/minute")
        if kind == "concurrent_streams":
            limits[kind] = int(value) if value.isdecimal() else value
        else:
            limits.setdefault(kind, []).append(value)
    return limits


def _moment(text: str) -> float | str:
    """Parse an expiry: a duration counts from now; a time is returned as text, which ``KeyGrants`` parses."""
    age = _AGE.fullmatch(text.strip())
    if age is None:
        try:
            datetime.fromisoformat(text.strip())
        except ValueError:
            raise ConfigError(
                "--expires",
                f"{text[:40]!r} is not a time",
                "Write 2027-01-31, 2027-01-31T12:00 (UTC), or a duration from now such as 90d",
            ) from None
        return text.strip()
    moment = time.time() + int(age[1]) * _SECONDS[age[2]]
    if moment > datetime(9999, 1, 1, tzinfo=UTC).timestamp():
        raise ConfigError(
            "--expires", "is too far in the future", "Leave the option out for a key that does not expire"
        )
    return moment
