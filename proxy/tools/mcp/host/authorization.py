"""Get the ``Authorization`` headers of servers from workers, which have the credentials, one at a time.

The host process stores no credentials, because it reads untrusted data.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.net.channel import Channel

_WORKER_S: Final = 10.0
"""Seconds to wait for a worker that can be asked."""

_ANSWER_S: Final = 30.0

Ask = Callable[[str, Sequence[str] | None], Awaitable[str]]
"""Called as ``(refused, scopes)``; returns the value of ``Authorization`` for one server.

``refused`` is a value that the server refused, empty at first. ``scopes`` are those that it requires for the
request, ``None`` if no scope is missing. Raises :class:`NotAuthorized`.
"""


class NotAuthorized(Exception):
    """A request cannot be authorized; the message is for the operator.

    ``needs_login`` says that only a login helps. ``lacks_scope`` says that only this request's scope is
    missing, so that other requests may be authorized.
    """

    def __init__(self, reason: str, *, needs_login: bool = False, lacks_scope: bool = False) -> None:
        self.needs_login = needs_login
        self.lacks_scope = lacks_scope
        super().__init__(reason)


class _Gone(Exception):
    """The worker that was asked has ended."""


class _Question(Struct, frozen=True):
    worker: Channel
    answer: "asyncio.Future[dict[str, Any]]"


class Authorizations:
    """The workers that can be asked. Belongs to one event loop."""

    def __init__(self) -> None:
        self._workers: list[Channel] = []
        self._joined = asyncio.Event()
        self._open: dict[int, _Question] = {}
        self._numbers = itertools.count(1)

    def joined(self, worker: Channel) -> None:
        """Add a worker that can be asked."""
        if worker not in self._workers:
            self._workers.append(worker)
            self._joined.set()

    def left(self, worker: Channel) -> None:
        """Remove a worker that has ended; its open questions go to other workers."""
        with contextlib.suppress(ValueError):
            self._workers.remove(worker)
        if not self._workers:
            self._joined.clear()
        for question in self._open.values():
            if question.worker is worker and not question.answer.done():
                question.answer.set_exception(_Gone())

    def on_answer(self, worker: Channel, number: int, body: bytes) -> None:
        """Handle a worker's answer."""
        question = self._open.get(number)
        if question is not None and question.worker is worker and not question.answer.done():
            question.answer.set_result(orjson.loads(body))

    async def ask(self, server: str, refused: str, scopes: Sequence[str] | None) -> str:
        try:
            async with asyncio.timeout(_ANSWER_S):
                while True:
                    with contextlib.suppress(_Gone):
                        reply = await self._ask_one(server, refused, scopes)
                        break
        except TimeoutError:
            raise NotAuthorized("no worker has answered in time") from None
        value = reply.get("value")
        if isinstance(value, str):
            return value
        raise NotAuthorized(reply["reason"], needs_login=reply["needs_login"], lacks_scope=scopes is not None)

    async def _ask_one(self, server: str, refused: str, scopes: Sequence[str] | None) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_WORKER_S):
                await self._joined.wait()
        except TimeoutError:
            raise NotAuthorized("no worker runs that has its credentials") from None
        worker = self._workers[0]
        number = next(self._numbers)
        question = self._open[number] = _Question(worker, asyncio.get_running_loop().create_future())
        asked = {"server": server, "refused": refused, "scopes": None if scopes is None else list(scopes)}
        body = orjson.dumps(asked)
        try:
            if not worker.send("authorize", body, id=number):
                self.left(worker)
            return await question.answer
        finally:
            del self._open[number]
