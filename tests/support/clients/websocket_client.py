"""A client of the WebSocket mode of ``/v1/responses`` that uses ``websockets`` and JSON only."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import websockets
from running_proxy import ProxyAddress
from waiting import PATIENCE_S
from websockets.asyncio.client import ClientConnection

ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}


@dataclass
class Turn:
    """The events that one message of the client led to."""

    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def last(self) -> dict[str, Any]:
        """The event that ended the turn."""
        return self.events[-1]

    @property
    def types(self) -> list[str]:
        """The types of the events, in order."""
        return [str(event["type"]) for event in self.events]

    @property
    def response(self) -> dict[str, Any]:
        """The response in the last event."""
        assert self.last["type"] != "error", self.last
        return dict(self.last["response"])

    @property
    def text(self) -> str:
        """The text of the answer."""
        messages = [item for item in self.response["output"] if item["type"] == "message"]
        return "".join(part["text"] for item in messages for part in item["content"])

    @property
    def code(self) -> str | None:
        """The code of the error that ended the turn."""
        assert self.last["type"] == "error", self.last
        code = self.last["error"]["code"]
        return None if code is None else str(code)


@dataclass
class WebSocketClient:
    """One connection."""

    connection: ClientConnection

    async def send(self, **said: Any) -> None:
        """Ask for a response."""
        await self.connection.send(json.dumps({"type": "response.create", "model": "m", **said}))

    async def turn(self) -> Turn:
        """Read events until a response ends."""
        turn = Turn()
        while not turn.events or turn.last["type"] not in ENDS:
            turn.events.append(json.loads(await self.connection.recv()))
        return turn

    async def ask(self, **said: Any) -> Turn:
        """Ask for a response and read its events."""
        await self.send(**said)
        return await self.turn()


@asynccontextmanager
async def connected(
    proxy: ProxyAddress, headers: Mapping[str, str] | None = None
) -> AsyncIterator[WebSocketClient]:
    """Open a connection to a proxy."""
    url = f"ws://127.0.0.1:{proxy.port}/v1/responses"
    async with websockets.connect(
        url, additional_headers=headers, open_timeout=PATIENCE_S, max_size=None
    ) as connection:
        yield WebSocketClient(connection)
