"""Hidden turns that the client carries in encrypted form, because the record must not store them.

These are held turns, and those behind an answer for which a tool of the provider ran. A client with
``store: false`` sends all of an answer back with its next request. So it gets the hidden part
of the turn, too: encrypted, bound to its caller and its place in the conversation, and with an expiry. Any
process that has the key can continue from it, and nothing is stored. The returned part counts like one of
the record, and is restored by the same rules (rule R4). It holds results, so continuing from it again runs
no tool again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
import structlog
from msgspec import Struct, field

from proxy.base.sealed_text import TextSeal
from proxy.json.in_thread import in_thread
from proxy.records.rows import HiddenTurns, SuspendedTurn
from proxy.relay.memory.hidden.outcomes import MemoryOutcome
from proxy.wires.client_port import CarriedTurn, ClientRequest

MAX_BYTES: Final = 1 << 20
"""The longest turn that a client gets to carry, in bytes before encryption. It comes again with each
request."""

_MOST: Final = 256
"""The most sealed turns of one request that are opened, the newest ones."""

_LONG_BYTES: Final = 256 << 10
"""Above this size encryption and decryption take milliseconds, and run in a thread."""

_VERSION: Final = b"\x01"
"""The format of a sealed text, including the payload, which is JSON in the client's dialect."""


class Carried(Struct, frozen=True):
    """The sealed turns of one request.

    ``turns`` holds the turns by key. ``ambiguous`` are keys with several different turns. ``missed`` has,
    for each sealed turn, its position in the request, and why it would not be put back.
    """

    turns: Mapping[str, SuspendedTurn] = field(default_factory=dict)
    ambiguous: frozenset[str] = frozenset()
    missed: Sequence[tuple[int, MemoryOutcome]] = ()

    def knows(self, key: str) -> bool:
        """Return whether the request itself decides about this key, so that the record is not asked."""
        return key in self.turns or key in self.ambiguous

    def miss_reason(self, key: str, start: int, end: float) -> MemoryOutcome:
        """Return the outcome to count for calls for which no turn was found.

        Their items are at the positions from ``start`` to before ``end``.
        """
        if key in self.ambiguous:
            return "ambiguous"
        here = [outcome for position, outcome in self.missed if start <= position < end]
        return here[-1] if here else "no_held_turn"


NOTHING_CARRIED: Final = Carried()


class SealedTurns:
    """Encrypts turns for clients, and decrypts those that come back."""

    def __init__(
        self,
        keys: Sequence[bytes],
        *,
        lasts_s: float,
        unstored: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``keys`` are those of :class:`~proxy.base.sealed_text.TextSeal`. A turn can be put back for
        ``lasts_s`` seconds. ``unstored`` says that the record stores no turns at all."""
        self._seal = TextSeal(keys, b"held turns", _VERSION)
        self._lasts_s = lasts_s
        self._unstored = unstored
        self._now = now
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.relay")

    def wants(self, request: ClientRequest) -> bool:
        """Return whether the record must not store turns of this request, and the client can carry them."""
        may_keep = request.may_store and not self._unstored
        return not may_keep and request.carries()

    async def close(self, turn: SuspendedTurn) -> str | None:
        """Encrypt a turn for its client to carry; return ``None`` if it is longer than :data:`MAX_BYTES`."""
        if len(turn.payload) > MAX_BYTES:
            self._log.warning("turn_too_long_to_seal", run_id=turn.run_id, bytes=len(turn.payload))
            return None
        head = {"key": turn.key, "run": turn.run_id, "wire": turn.wire, "at": turn.created_at}
        until = {"until": self._now() + self._lasts_s}
        text = orjson.dumps({**head, **until}) + b"\n" + turn.payload
        if len(text) > _LONG_BYTES:
            return await in_thread(self._seal.close, text, _place(turn.caller))
        return self._seal.close(text, _place(turn.caller))

    async def open(self, request: ClientRequest, caller: str) -> Carried:
        """Decrypt the turns that a request of this caller carries."""
        sealed = request.carried()[-_MOST:]
        if not sealed:
            return NOTHING_CARRIED
        if sum(len(one.sealed) for one in sealed) > _LONG_BYTES:
            return await in_thread(self._open_all, sealed, caller)
        return self._open_all(sealed, caller)

    def _open_all(self, sealed: Sequence[CarriedTurn], caller: str) -> Carried:
        turns: dict[str, SuspendedTurn] = {}
        ambiguous: set[str] = set()
        missed: list[tuple[int, MemoryOutcome]] = []
        for one in sealed:
            turn = self._open(one.sealed, caller)
            if not isinstance(turn, SuspendedTurn):
                missed.append((one.position, turn))
                continue
            missed.append((one.position, "sealed_elsewhere"))
            if turns.setdefault(turn.key, turn).payload != turn.payload:
                ambiguous.add(turn.key)
        # It is unknown which of several turns really happened.
        left = {key: turn for key, turn in turns.items() if key not in ambiguous}
        return Carried(left, frozenset(ambiguous), missed)

    def _open(self, sealed: str, caller: str) -> SuspendedTurn | MemoryOutcome:
        opened = self._seal.open(sealed, _place(caller)) if len(sealed) <= 2 * MAX_BYTES else None
        if opened is None:
            return "sealed_unreadable"
        written, _, payload = opened.partition(b"\n")
        head: Mapping[str, Any] = orjson.loads(written)
        if self._now() >= head["until"]:
            return "sealed_expired"
        return SuspendedTurn(
            key=head["key"],
            run_id=head["run"],
            caller=caller,
            wire=head["wire"],
            payload=payload,
            created_at=head["at"],
            ephemeral=True,
        )


def hidden_turns(turn: SuspendedTurn) -> HiddenTurns:
    """Return the turns behind an answer that the client carried."""
    return HiddenTurns(
        turn.key, "carried", turn.run_id, turn.caller, turn.wire, turn.payload, turn.created_at
    )


def _place(caller: str) -> bytes:
    """Return what a sealed turn is bound to, beside its own head: the caller that got it."""
    return caller.encode("utf-8", "surrogatepass")
