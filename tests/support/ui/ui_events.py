"""A client that listens to the event stream of the web UI as a page does."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from running_proxy import Conversation
from ui_rig import Browser
from waiting import PATIENCE_S

from proxy.wires.stream.sse import SSEParser


class Events:
    """The events of one connection."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.parser = SSEParser()
        self.raw = b""

    async def next(self, name: str) -> tuple[dict[str, Any], str]:
        """Return the data and the id of the next event of that name; other events are skipped."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                while (event := self.parser.next()) is None:
                    line = await self.conversation.reader.readline()
                    data = await self.conversation.reader.readexactly(int(line, 16) + 2)
                    self.raw += data[:-2]
                    self.parser.take(data[:-2])
                lines = dict(part.split(": ", 1) for part in event.raw.decode().splitlines() if ": " in part)
                if lines.get("event") == name:
                    return json.loads(event.data), lines.get("id", "")


@asynccontextmanager
async def listening(browser: Browser, last: str | None = None) -> AsyncIterator[Events]:
    """Connect to the event stream."""
    headers = browser.headers(writes=False) | ({"Last-Event-ID": last} if last is not None else {})
    async with browser.proxy.sent(None, headers, method="GET", path="/ui/api/events") as conversation:
        head = await conversation.head()
        assert head.status == 200, head
        assert head.header("content-type") == "text/event-stream"
        assert head.header("content-security-policy")
        yield Events(conversation)
