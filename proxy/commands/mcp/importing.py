"""``toolrelay mcp import``: prints servers from files of other programs as lines for ``toolrelay.toml``."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from proxy.base.errors import ConfigError
from proxy.base.plain_text import plain_text
from proxy.commands.common import say, say_error
from proxy.config.mcp.files import (
    ForeignServer,
    UnknownVariable,
    UnusableFile,
    UnusableServer,
    Variable,
    read_servers,
    split_variables,
    variable_name,
)
from proxy.config.text import toml_value
from proxy.tools.mcp.masking import masked_args, masked_url

_PLAIN_ENV = frozenset({"true", "false", "0", "1", "debug", "info", "warning", "error"})


def import_servers(path: Path) -> bool:
    """Print the servers of a file as TOML; return whether all could be read.

    A secret in the file becomes ``env:NAME``, and a comment says to set that variable. Raises ConfigError for
    a file without servers.
    """
    try:
        servers = read_servers(path)
    except UnusableFile as fault:
        raise ConfigError(str(path), str(fault)) from None
    well = True
    for server in servers:
        try:
            lines = _lines(server)
        except _NoServer as fault:
            say_error(f"{path}: {plain_text(server.key)}: {fault}")
            well = False
            continue
        for line in lines:
            say(line)
        say("")
    return well


class _NoServer(Exception):
    """The reason why an entry of a file cannot be a server here."""


def _lines(server: ForeignServer | UnusableServer) -> list[str]:
    """Return one server as a TOML table, commented out if it is disabled; raises :class:`_NoServer`."""
    if isinstance(server, UnusableServer):
        raise _NoServer(server.reason)
    try:
        lines = list(_section(server))
    except UnknownVariable as fault:
        raise _NoServer(f"the variable {fault} is not known here") from None
    if server.disabled:
        note = f"# The file disables the server {plain_text(server.key)}."
        return [note, *(line if line.startswith("#") else f"# {line}" for line in lines)]
    return lines


def _section(server: ForeignServer) -> Iterator[str]:
    yield f"[mcp.servers.{server.name}]"
    shown = {"args": masked_args(server.args), "url": masked_url(server.url) if server.url else ""}
    plain = {"command": server.command, "args": server.args, "cwd": server.cwd, "url": server.url}
    for key, written in plain.items():
        value = shown.get(key, written)
        if value != written:
            yield (
                f"# {key} of the file may contain a secret. It is not printed, and others could see it: "
                f"pass it in {'env' if server.command else 'headers'} if the server can read it there."
            )
        if not value:
            continue
        for text in value if isinstance(value, tuple) else (value,):
            for variable in _variables(server, text):
                yield f"# Write the value of {variable.name} into {key}: no variables are filled in there."
        yield f"{key} = {toml_value(value)}"
    yield from _values(server, "env", server.env)
    yield from _values(server, "headers", server.headers)
    if server.timeout_s is not None:
        yield f"timeout_s = {toml_value(server.timeout_s)}"
    if server.tools:
        yield f"tools = {toml_value(server.tools)}"
    for ignored in server.ignored_keys:
        yield f"# {ignored} of the file has no counterpart here and is left out"


def _variables(server: ForeignServer, text: str) -> list[Variable]:
    return [piece for piece in split_variables(server.name, text) if isinstance(piece, Variable)]


def _values(server: ForeignServer, table: str, values: Mapping[str, str]) -> Iterator[str]:
    """Yield a table of values without secrets."""
    if not values:
        return
    made: dict[str, str] = {}
    for name, text in values.items():
        pieces = split_variables(server.name, text)
        match pieces:
            case [Variable(default=None) as sole]:
                made[name] = f"env:{sole.name}"
                if sole.input_id:
                    yield f"# Set {sole.name} to what {plain_text(sole.input_id)} asks for."
            case _ if table == "env" and all(isinstance(piece, str) for piece in pieces) and _is_plain(text):
                made[name] = text
            case _:
                own = variable_name(server.name, name)
                made[name] = f"env:{own}"
                inside = [piece.name for piece in pieces if isinstance(piece, Variable)]
                filled = f", with {' and '.join(inside)} filled in" if inside else ""
                yield f"# Set {own} to its value from the file{filled}; secrets may not be written here."
    yield f"{table} = {toml_value(made)}"


def _is_plain(value: str) -> bool:
    """Return whether a value is certainly no secret: a switch, a number, a path or a log level."""
    return value.lower() in _PLAIN_ENV or value.isdigit() or value.startswith(("/", "./", "~/"))
