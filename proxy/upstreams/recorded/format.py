"""The format of recorded exchanges: the files of a folder, and the keys of its TOML files.

docgen makes docs/reference/fixtures.md from it. Readers and writers of fixtures take names and keys from
here. Texts are Markdown.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt

from proxy.http.headers import Headers
from proxy.wires.registry.comparing import Varying
from proxy.wires.registry.table import BY_WIRE

META: Final = "meta.toml"
CLIENT: Final = "client"
"""The folder with the client's requests and responses."""
TURN: Final = "turn-"
"""The first part of the name of a turn's folder; the turn's number follows."""
MOST_TURNS: Final = 10_000
"""The most requests that are read from the folders of one replay."""
MOST_BYTES: Final = 1 << 30
"""The most bytes that are read from the folders of one replay."""
LONGEST_WAIT_S: Final = 60.0
"""The longest wait before one piece of a stream, whatever a file says."""
REQUEST: Final = "request.json"
RESPONSE: Final = "response.toml"
EVENTS: Final = "response.sse"
JSON: Final = "response.json"


class _Table(BaseModel):
    # People who keep recordings may add notes to them.
    model_config = ConfigDict(extra="ignore", frozen=True)


class ExchangeMatch(_Table):
    """What a request must share with a recorded one, besides path, model and conversation."""

    fields: tuple[str, ...] = Field(
        default=(), description='Members of the request that must be equal: `["service_tier"]`.'
    )
    results: dict[Annotated[int, Field(ge=1)], tuple[str, ...]] = Field(
        default={},
        description="For the number of a turn, texts. Each must stand in a result of a tool, so one "
        "conversation can go on in several ways: `2 = ['\"left_for\"']`.",
    )
    may_differ: tuple[Varying, ...] = Field(
        default=(),
        description="Kinds of text that do not count: `dates`, `times`, `ids` (UUIDs), `numbers`. "
        '`["dates", "times"]` is for a prompt that says what day it is.',
    )
    arguments: tuple[str, ...] = Field(
        default=(), description="Names of arguments of tools that `toolrelay eval` does not compare."
    )


class ExchangeCheck(_Table):
    """What ``toolrelay eval`` asks of the last answer of a model."""

    contains: tuple[str, ...] = Field(default=(), description="Texts that it must contain, in any case.")
    matches: tuple[str, ...] = Field(
        default=(),
        description="Regular expressions that must match somewhere in it; without look-around and "
        "back-references.",
    )
    json_schema: dict[str, Any] = Field(
        default={}, description="A JSON Schema. The answer must be JSON that fits it."
    )


class ExchangeMeta(_Table):
    """The keys of ``meta.toml``."""

    title: str = Field(default="", description="What the exchange shows, for readers.")
    recorded: str = Field(
        default="", description='The date and the upstream: `"2026-11-21, openai"`, or `"hand-written"`.'
    )
    wire: str = Field(
        default="chat",
        description=f"The dialect of the upstream: {', '.join(f'`{wire}`' for wire in BY_WIRE)}.",
    )
    method: str = Field(default="POST", description="The method of the requests.")
    path: str = Field(
        default="",
        description="The path of the requests below the upstream's base URL. Empty: the path of the dialect.",
    )
    client_path: str = Field(
        default="",
        description="The path of the client's requests, if it differs: the client may speak another dialect.",
    )
    match: ExchangeMatch = Field(
        default=ExchangeMatch(), description="A table: what else a request must have in common."
    )
    check: ExchangeCheck = Field(
        default=ExchangeCheck(), description="A table: what `toolrelay eval` asks of the last answer."
    )


class TurnResponse(_Table):
    """The keys of ``response.toml``."""

    status: int = Field(default=200, ge=200, le=599, description="The HTTP status.")
    headers: tuple[tuple[str, str], ...] = Field(
        default=(), description='Pairs of a name and a value: `[["Content-Type", "application/json"]]`.'
    )
    chunks: tuple[tuple[FiniteFloat, NonNegativeInt], ...] = Field(
        default=(),
        description="The network pieces of a stream: pairs of milliseconds since the request and a number of "
        "bytes.",
    )
    delay_ms: FiniteFloat = Field(
        default=0.0, description="Milliseconds to wait before each event, if there are no `chunks`."
    )
    broken: bool = Field(
        default=False,
        description="`true`: the connection ended before the message did. A replay does the same.",
    )


def numbered(name: str, number: int) -> str:
    """Return the name of one of the client's files: ``request.json``, then ``request-2.json``."""
    stem, _, suffix = name.partition(".")
    return name if number == 1 else f"{stem}-{number}.{suffix}"


def meta_text(title: str, recorded: str, wire: str, *, path: str = "", client_path: str = "") -> str:
    """Build the text of ``meta.toml``; without the paths if they are those of the dialect."""
    usual = BY_WIRE[wire].path
    meta = {"title": title, "recorded": recorded, "wire": wire}
    if path not in ("", usual):
        meta["path"] = path
    if client_path not in ("", path or usual):
        meta["client_path"] = client_path
    return "".join(f"{key} = {_toml(value)}\n" for key, value in meta.items())


def response_text(
    status: int, headers: Headers, pieces: Iterable[tuple[float, int]] = (), *, broken: bool = False
) -> str:
    """Build the text of ``response.toml``; ``pieces`` are pairs of milliseconds and numbers of bytes."""
    pairs = ", ".join(f"[{_toml(name)}, {_toml(value)}]" for name, value in headers)
    lines = [f"status = {status}", f"headers = [{pairs}]"]
    if broken:
        lines.append("broken = true")
    if shown := "".join(f"  [{ms:.2f}, {size}],\n" for ms, size in pieces):
        lines += ["# network pieces: [milliseconds since the request, bytes]", f"chunks = [\n{shown}]"]
    return "\n".join(lines) + "\n"


def _toml(value: str) -> str:
    """Build a TOML basic string. JSON's escapes are valid in TOML, except for DEL and lone surrogates."""
    text = value.encode("utf-8", "replace").decode().replace("\x7f", "?")
    return orjson.dumps(text).decode()
