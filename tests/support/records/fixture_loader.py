"""Reads the folders under fixtures/ without the package under test."""

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"


@dataclass(frozen=True)
class Turn:
    """One request to the upstream and its recorded answer; a body that is missing is None."""

    number: int
    path: Path
    request: dict[str, Any] | None
    status: int
    headers: list[tuple[str, str]]
    sse: bytes | None
    json_body: bytes | None
    response: dict[str, Any]


@dataclass(frozen=True)
class Exchange:
    """One folder with an exchange.

    ``meta["run_by"]`` says who runs the tools: ``server`` (the client sends ``client_request`` once),
    ``client`` (it sends each of ``client_requests`` in order), ``mixed`` (the same, and the server's calls
    stay hidden), or ``none``.
    """

    name: str
    path: Path
    meta: dict[str, Any]
    client_requests: list[dict[str, Any]]
    turns: list[Turn]

    @property
    def client_request(self) -> dict[str, Any]:
        """The client's first request."""
        return self.client_requests[0]

    @property
    def wire(self) -> str:
        """The dialect: chat, responses, anthropic or ollama."""
        return str(self.meta["wire"])

    @property
    def run_by(self) -> str:
        """Who runs the tools: server, client, mixed or none."""
        return str(self.meta["run_by"])

    @property
    def streams(self) -> bool:
        """Whether the client asks for a stream."""
        return bool(self.client_requests) and self.client_request.get("stream") is True


@cache
def all_exchanges() -> tuple[Exchange, ...]:
    """Return every exchange, sorted by name (``demo/time``)."""
    return tuple(_read(meta.parent) for meta in sorted(FIXTURES.rglob("meta.toml")))


def exchange(name: str) -> Exchange:
    """Return one exchange by its name."""
    return next(e for e in all_exchanges() if e.name == name)


def _read(folder: Path) -> Exchange:
    requests = sorted(
        (folder / "client").glob("request*.json"),
        key=lambda f: int(f.stem.removeprefix("request").lstrip("-") or 1),
    )
    turns = sorted(folder.glob("turn-*"), key=lambda f: int(f.name.removeprefix("turn-")))
    return Exchange(
        name=folder.relative_to(FIXTURES).as_posix(),
        path=folder,
        meta=tomllib.loads((folder / "meta.toml").read_text("utf-8")),
        client_requests=[json.loads(f.read_bytes()) for f in requests],
        turns=[_turn(turn) for turn in turns],
    )


def _turn(folder: Path) -> Turn:
    response = tomllib.loads((folder / "response.toml").read_text("utf-8"))
    request, sse, body = (folder / name for name in ("request.json", "response.sse", "response.json"))
    return Turn(
        number=int(folder.name.removeprefix("turn-")),
        path=folder,
        request=json.loads(request.read_bytes()) if request.exists() else None,
        status=response["status"],
        headers=[(name, value) for name, value in response["headers"]],
        sse=sse.read_bytes() if sse.exists() else None,
        json_body=body.read_bytes() if body.exists() else None,
        response=response,
    )
