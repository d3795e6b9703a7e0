"""Replay a run whose bytes were kept: repeat the upstream's bytes, and compare what the client gets."""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

import orjson

from proxy.api.taping.tape import Leg, Taped
from proxy.base.errors import UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.http.headers import Headers
from proxy.upstreams.base import PulledResponse, Upstream, UpstreamRequest, UpstreamResponse
from proxy.wires.anthropic.dialect import PING
from proxy.wires.chat.dialect import CHAT
from proxy.wires.registry.table import BY_WIRE
from proxy.wires.stream.sse import KEEP_ALIVE

TO_CLIENT: Final = "bytes to client"
"""The name of the comparison of the bytes that the client got."""
_CONTEXT: Final = 60
"""The most bytes to show before the first different byte, and after it."""
_RAISED: Final = {kind.code: kind for kind in (UpstreamUnreachable, UpstreamTimeout, UpstreamBroken)}


def wire_of(taped: Taped) -> str:
    """Return the name of the dialect that the upstream was asked in; empty if its path is unknown."""
    return next((dialect.wire for dialect in BY_WIRE.values() if dialect.path == taped.path), "")


class TapedAnswers:
    """An upstream that gives the answers of a tape, one for each request, in order."""

    def __init__(self, origin: Upstream, taped: Taped) -> None:
        self._origin = origin
        legs = [leg for leg in taped.legs.values() if leg.name.startswith("upstream.")]
        # Leave out the upstreams that were asked before the one that answered; the replay has only that one.
        own = {leg.name.rpartition(".")[0] for leg in legs if leg.upstream == taped.upstream}
        self._answers = deque(
            leg for leg in legs if leg.name.endswith(".response") and leg.name.rpartition(".")[0] in own
        )

    @property
    def name(self) -> str:
        """The upstream's name in the record of the run."""
        return self._origin.name

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Return the next answer; raises UpstreamError if the upstream gave no answer then."""
        if not self._answers:
            body = CHAT.errors.body("the recording has no further answer", type="upstream_error")
            missing = Leg("upstream.response", 0, 502, "application/json")
            missing.pieces.append((0.0, orjson.dumps(body)))
            return _TapedAnswer(missing)
        leg = self._answers.popleft()
        if leg.status is None:
            raise _error(leg)
        return _TapedAnswer(leg)

    async def aclose(self) -> None:
        """Close the upstream that this object replaces."""
        await self._origin.aclose()


def _error(leg: Leg) -> UpstreamError:
    code, message = leg.error or ("upstream_error", "the recording has no answer")
    return _RAISED.get(code, UpstreamError)(message, code=code)


class _TapedAnswer(PulledResponse):
    """A recorded answer, in its original pieces but without their delays."""

    def __init__(self, leg: Leg) -> None:
        self._leg = leg
        self.status = leg.status or 502
        self.content_type = leg.content_type
        self.headers: Headers = [("Content-Type", leg.content_type)] if leg.content_type else []

    async def chunks(self) -> AsyncIterator[bytes]:
        for _, data in self._leg.pieces:
            yield data
        if self._leg.error is not None:
            raise _error(self._leg)

    async def read(self, limit: int) -> bytes:
        whole = b"".join([piece async for piece in self.chunks()])
        if len(whole) > limit:
            raise UpstreamBroken(f"the recorded body is over {limit} bytes")
        return whole

    async def aclose(self) -> None:
        return


def compare_bytes(
    was: Taped, now: Taped | None, run_ids: tuple[str, str], *, requests: bool
) -> Sequence[tuple[str, str, str]]:
    """Compare the bodies of two runs, each as (name, before, now); equal texts mean equal bodies.

    The client's body comes first, then, with ``requests``, the bodies that the upstream was sent.
    ``run_ids`` are the ids of both runs; they are needed because errors contain them.
    """
    before, after = _without_waits(was), _without_waits(now)
    differences = [(TO_CLIENT, *_compared(before, after.replace(run_ids[1].encode(), run_ids[0].encode())))]
    if requests:
        asked = [leg for tape in (was, now) if tape is not None for leg in tape.legs.values()]
        names = [leg.name for leg in asked if leg.side == "upstream" and leg.name.endswith(".request")]
        differences += [
            (
                f"bytes of request {number} to upstream",
                *_compared(was.body(name), now.body(name) if now is not None else b""),
            )
            for number, name in enumerate(dict.fromkeys(names), 1)
        ]
    return differences


def _without_waits(tape: Taped | None) -> bytes:
    """Return the client's bytes without keep-alives, which depend on how long an upstream or a tool took."""
    body = tape.body("client.response") if tape is not None else b""
    return body.replace(KEEP_ALIVE, b"").replace(PING, b"")


def _compared(before: bytes, after: bytes) -> tuple[str, str]:
    """Describe two bodies: the number of bytes if they are equal, else the text around the first
    difference."""
    if before == after:
        return f"{len(before)} bytes", f"{len(before)} bytes"
    offset = next(
        (offset for offset, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    return _around(before, offset), _around(after, offset)


def _around(body: bytes, offset: int) -> str:
    """Show the bytes around an offset, in ASCII."""
    start = max(0, offset - _CONTEXT)
    before, after = body[start:offset], body[offset : offset + _CONTEXT]
    shown = f"{_shown(before)}»{_shown(after)}" if after else f"{_shown(before)}» (the end)"
    more = "…" if offset + _CONTEXT < len(body) else ""
    return f"byte {offset} of {len(body)}: {'…' if start else ''}{shown}{more}"


def _shown(data: bytes) -> str:
    return repr(data)[2:-1]
