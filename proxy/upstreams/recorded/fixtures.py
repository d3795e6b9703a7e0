"""Reads folders of recorded exchanges (fixtures).

``proxy/upstreams/recorded/format.py`` says which files and keys a folder has.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson
from msgspec import Struct
from pydantic import BaseModel, ValidationError

from proxy.base.errors import ConfigError
from proxy.http.headers import Headers
from proxy.upstreams.recorded.format import (
    EVENTS,
    JSON,
    META,
    REQUEST,
    RESPONSE,
    TURN,
    ExchangeMeta,
    TurnResponse,
)
from proxy.wires.registry.table import BY_WIRE

_MAX_FILE_BYTES = 64 * 1024 * 1024

_Model = TypeVar("_Model", bound=BaseModel)


class RecordedTurn(Struct, frozen=True):
    """One request to an upstream and its response.

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

    def fits_results(self, results: Sequence[str]) -> bool:
        """Return whether each of the turn's ``results`` occurs in a tool result of a request."""
        return all(any(text in result for result in results) for text in self.results)

    @property
    def label(self) -> str:
        """The name of the turn in messages."""
        return f"{self.exchange} turn-{self.number}"

    def body(self, *, stream: bool) -> bytes | None:
        """Return the body for a request with or without ``stream``; an error has the same body for both."""
        if self.status >= 400:
            return self.other if self.other is not None else self.sse
        return self.sse if stream else self.other


def load_turns(folders: Iterable[Path]) -> list[RecordedTurn]:
    """Load every turn below these folders, sorted by name; ignore folders without ``meta.toml``.

    Raises :class:`~proxy.base.errors.ConfigError`, which names the file that cannot be used.
    """
    turns: list[RecordedTurn] = []
    for root in folders:
        for meta_file in sorted(root.rglob(META)):
            folder = meta_file.parent
            name = folder.relative_to(root).as_posix() if folder != root else folder.name
            meta = _read(ExchangeMeta, meta_file)
            if meta.wire not in BY_WIRE:
                known = ", ".join(BY_WIRE)
                raise ConfigError(str(meta_file), f"there is no wire {meta.wire!r}", f"Write one of: {known}")
            numbered = sorted((_turn_number(turn), turn) for turn in folder.glob(f"{TURN}*") if turn.is_dir())
            turns.extend(_turn(name, number, turn, meta) for number, turn in numbered)
    return turns


def _turn(exchange: str, number: int, folder: Path, meta: ExchangeMeta) -> RecordedTurn:
    response = _read(TurnResponse, folder / RESPONSE)
    sse, other = _bytes(folder / EVENTS), _bytes(folder / JSON)
    if sse is None and other is None:
        raise ConfigError(str(folder), f"has neither {EVENTS} nor {JSON}")
    return RecordedTurn(
        exchange=exchange,
        number=number,
        method=meta.method,
        path=meta.path or BY_WIRE[meta.wire].path,
        request=_request(folder / REQUEST),
        match=meta.match.fields,
        results=meta.match.results.get(number, ()),
        status=response.status,
        headers=response.headers,
        chunks=response.chunks,
        delay_ms=response.delay_ms,
        broken=response.broken,
        sse=sse,
        other=other,
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


def _read(model: type[_Model], file: Path) -> _Model:
    """Read the keys of a TOML file; keys that it lacks, or a missing file, give the defaults."""
    try:
        return model.model_validate(tomllib.loads((_bytes(file) or b"").decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(str(file), f"is not TOML: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        raise ConfigError(str(file), f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _bytes(file: Path) -> bytes | None:
    if not file.exists():
        return None
    if file.stat().st_size > _MAX_FILE_BYTES:
        raise ConfigError(str(file), f"is over {_MAX_FILE_BYTES} bytes")
    return file.read_bytes()
