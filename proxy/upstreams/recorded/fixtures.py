"""Reads folders of recorded exchanges (fixtures).

``proxy/upstreams/recorded/format.py`` says which files and keys a folder has.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import orjson
from msgspec import Struct
from pydantic import BaseModel, ValidationError

from proxy.base.errors import ConfigError
from proxy.http.headers import Headers
from proxy.upstreams.recorded.format import (
    CLIENT,
    EVENTS,
    JSON,
    META,
    MOST_BYTES,
    MOST_TURNS,
    REQUEST,
    RESPONSE,
    TURN,
    ExchangeMeta,
    TurnResponse,
    numbered,
)
from proxy.wires.registry.comparing import Varying
from proxy.wires.registry.table import BY_WIRE

_MAX_FILE_BYTES = 64 * 1024 * 1024

_Model = TypeVar("_Model", bound=BaseModel)


class RecordedTurn(Struct, frozen=True):
    """One request and its response: of the upstream, or of the client if ``is_client``.

    ``chunks`` are the network pieces as (milliseconds since the request, number of bytes). ``broken`` says
    that the connection ended before the message did.
    """

    exchange: str
    number: int
    method: str
    path: str
    request: Mapping[str, Any]
    match: tuple[str, ...]
    results: tuple[str, ...]
    status: int
    headers: Headers
    chunks: tuple[tuple[float, int], ...]
    delay_ms: float
    broken: bool
    sse: bytes | None
    other: bytes | None
    may_differ: tuple[Varying, ...] = ()
    is_client: bool = False

    def fits_results(self, results: Sequence[str]) -> bool:
        """Return whether each of the turn's ``results`` occurs in a tool result of a request."""
        return all(any(text in result for result in results) for text in self.results)

    @property
    def label(self) -> str:
        """The name of the turn in messages."""
        return f"{self.exchange} {'client request' if self.is_client else 'turn'}-{self.number}"

    def body(self, *, stream: bool) -> bytes | None:
        """Return the body for a request with or without ``stream``; an error has the same body for both."""
        if self.status >= 400:
            return self.other if self.other is not None else self.sse
        return self.sse if stream else self.other


class Exchange(Struct, frozen=True):
    """One folder: its name below the folder that was searched, ``meta.toml``, and its requests in order."""

    name: str
    meta: ExchangeMeta
    turns: Sequence[RecordedTurn]


def load_turns(folders: Iterable[Path], *, clients: bool = False) -> list[RecordedTurn]:
    """Load every turn below these folders, sorted by name; see :func:`load_exchanges`."""
    return [turn for one in load_exchanges(folders, clients=clients) for turn in one.turns]


def load_exchanges(folders: Iterable[Path], *, clients: bool = False) -> list[Exchange]:
    """Load every exchange below these folders, sorted by name; ignore folders without ``meta.toml``.

    With ``clients``, also load what the clients sent and got, after the turns of the exchange. Raises
    :class:`~proxy.base.errors.ConfigError`, which names the file that cannot be used.
    """
    loaded: list[Exchange] = []
    count_of_turns = size = 0
    for root in folders:
        for meta_file in sorted(root.rglob(META)):
            folder = meta_file.parent
            size += sum(file.stat().st_size for file in folder.glob("*/*") if file.is_file())
            if size <= MOST_BYTES:
                loaded.append(one := _exchange(root, meta_file, clients=clients))
                count_of_turns += len(one.turns)
            if count_of_turns > MOST_TURNS or size > MOST_BYTES:
                raise ConfigError(
                    str(root),
                    f"has over {MOST_TURNS} requests or {MOST_BYTES >> 20} MiB",
                    "Name a folder with fewer fixtures",
                )
    return loaded


def _exchange(root: Path, meta_file: Path, *, clients: bool) -> Exchange:
    folder = meta_file.parent
    name = folder.relative_to(root).as_posix() if folder != root else folder.name
    meta = read_table(ExchangeMeta, meta_file)
    if meta.wire not in BY_WIRE:
        known = ", ".join(BY_WIRE)
        raise ConfigError(str(meta_file), f"there is no wire {meta.wire!r}", f"Write one of: {known}")
    numbered_turns = sorted((_turn_number(turn), turn) for turn in folder.glob(f"{TURN}*") if turn.is_dir())
    turns = [_turn(name, number, turn, meta) for number, turn in numbered_turns]
    return Exchange(name, meta, [*turns, *(_client_turns(name, folder, meta) if clients else ())])


def _client_turns(exchange: str, folder: Path, meta: ExchangeMeta) -> Iterator[RecordedTurn]:
    """Yield what the client of an exchange sent and got."""
    _refuse_link(folder / CLIENT)
    for number in count(1):
        if not (folder / CLIENT / numbered(REQUEST, number)).is_file():
            return
        if (answered := _client_turn(exchange, number, folder / CLIENT, meta)) is not None:
            yield answered


def _client_turn(exchange: str, number: int, folder: Path, meta: ExchangeMeta) -> RecordedTurn | None:
    """Read what a client sent and got; ``None`` if its answer was not kept."""
    sse, other = (_bytes(folder / numbered(name, number)) for name in (EVENTS, JSON))
    if sse is None and other is None:
        return None
    response = read_table(TurnResponse, folder / numbered(RESPONSE, number))
    request = _request(folder / numbered(REQUEST, number))
    path = meta.client_path or meta.path or BY_WIRE[meta.wire].path
    return _recorded(exchange, number, meta, path, request, response, (sse, other), is_client=True)


def _turn(exchange: str, number: int, folder: Path, meta: ExchangeMeta) -> RecordedTurn:
    _refuse_link(folder)
    response = read_table(TurnResponse, folder / RESPONSE)
    sse, other = _bytes(folder / EVENTS), _bytes(folder / JSON)
    if sse is None and other is None:
        raise ConfigError(str(folder), f"has neither {EVENTS} nor {JSON}")
    path = meta.path or BY_WIRE[meta.wire].path
    return _recorded(exchange, number, meta, path, _request(folder / REQUEST), response, (sse, other))


def _recorded(
    exchange: str,
    number: int,
    meta: ExchangeMeta,
    path: str,
    request: Mapping[str, Any],
    response: TurnResponse,
    bodies: tuple[bytes | None, bytes | None],
    *,
    is_client: bool = False,
) -> RecordedTurn:
    return RecordedTurn(
        exchange=exchange,
        number=number,
        method=meta.method,
        path=path,
        request=request,
        match=meta.match.fields,
        results=() if is_client else meta.match.results.get(number, ()),
        status=response.status,
        headers=response.headers,
        chunks=response.chunks,
        delay_ms=response.delay_ms,
        broken=response.broken,
        sse=bodies[0],
        other=bodies[1],
        may_differ=meta.match.may_differ,
        is_client=is_client,
    )


def _request(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no file."""
    try:
        request = orjson.loads(_bytes(file) or b"{}")
    except orjson.JSONDecodeError as exc:
        raise ConfigError(str(file), f"is not JSON: {exc}") from exc
    if not isinstance(request, dict):
        raise ConfigError(str(file), "is not a JSON object")
    return request


def _turn_number(folder: Path) -> int:
    digits = folder.name.removeprefix(TURN)
    if not (digits.isascii() and digits.isdigit()):
        raise ConfigError(str(folder), "is not named turn-1, turn-2, …")
    return int(digits)


def read_table(model: type[_Model], file: Path) -> _Model:
    """Read the keys of a TOML file; keys that it lacks, or a missing file, give the defaults.

    Raises :class:`~proxy.base.errors.ConfigError`, which names the file and the key.
    """
    try:
        return model.model_validate(tomllib.loads((_bytes(file) or b"").decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(str(file), f"is not TOML: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        raise ConfigError(str(file), f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _bytes(file: Path) -> bytes | None:
    if not file.is_file():  # Another kind, such as a pipe, could block the reader.
        return None
    _refuse_link(file)
    if file.stat().st_size > _MAX_FILE_BYTES:
        raise ConfigError(str(file), f"is over {_MAX_FILE_BYTES} bytes")
    return file.read_bytes()


def _refuse_link(path: Path) -> None:
    """Refuse a link: whoever sends fixtures must not choose which other files are served."""
    if path.is_symlink():
        raise ConfigError(str(path), "is a symbolic link", "Put what it leads to in its place")
