"""Sealed turns, which clients carry: the proxy accepts them unchanged, in time and from their caller only."""

import base64
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.records.rows import SuspendedTurn
from proxy.relay.memory.hidden.sealed_turns import MAX_BYTES, Carried, SealedTurns
from proxy.wires.chat.wire import ChatWire
from proxy.wires.responses.wire import ResponsesWire

MARK = "toolrelay-turn:"
TURN = SuspendedTurn("key", "run_1", "ann", "responses", b'{"items":["{}"]}', 100.0, ephemeral=True)
LASTS_S = 50.0


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def sealing(clock: Clock | None = None, keys: Sequence[bytes] = (bytes(32),), **more: Any) -> SealedTurns:
    """A sealer that uses this clock."""
    return SealedTurns(keys, lasts_s=LASTS_S, now=clock or Clock(), **more)


async def written(made: SealedTurns, turn: SuspendedTurn = TURN) -> str:
    """A sealed turn as the client carries it."""
    sealed = await made.close(turn)
    assert sealed is not None
    return sealed


async def opened(made: SealedTurns, *sealed: str, caller: str = "ann") -> Carried:
    """The turns of a request that sends these back, each as an item of its own."""
    items = [{"type": "reasoning", "summary": [], "encrypted_content": MARK + one} for one in sealed]
    return await made.open(ResponsesWire().parse({"model": "m", "input": items}), caller)


async def test_a_turn_comes_back_as_it_was() -> None:
    """An opened turn equals the row that the record would have."""
    made = sealing()
    carried = await opened(made, await written(made))
    assert carried.turns == {"key": TURN}
    assert carried.knows("key")
    assert not carried.knows("other")


async def test_another_process_with_the_key_opens_it() -> None:
    """Another process opens the turn if it has the key, also as an old key, and otherwise not."""
    sealed = await written(sealing())
    assert (await opened(sealing(keys=(b"1" * 32, bytes(32))), sealed)).turns == {"key": TURN}
    other = await opened(sealing(keys=(b"1" * 32,)), sealed)
    assert (other.turns, other.missed) == ({}, [(0, "sealed_unreadable")])


@given(caller=st.text(max_size=40))
async def test_nobody_else_opens_it(caller: str) -> None:
    """A turn opens only for the caller that it was made for; the whole name is compared."""
    made = sealing()
    carried = await opened(made, await written(made), caller=caller)
    assert bool(carried.turns) == (caller == "ann")


@given(flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=5))
async def test_changed_bytes_open_nothing(flips: list[tuple[int, int]]) -> None:
    """A turn with a changed byte does not open, wherever the byte is."""
    made = sealing()
    whole = base64.b64decode(await written(made))
    changed = bytearray(whole)
    for at, difference in flips:
        changed[at % len(changed)] ^= difference
    carried = await opened(made, base64.b64encode(changed).decode())
    assert bool(carried.turns) == (bytes(changed) == whole)


async def test_a_turn_has_an_end() -> None:
    """A turn opens until its time is over; then the outcome is ``sealed_expired``."""
    clock = Clock()
    made = sealing(clock)
    sealed = await written(made)
    clock.now += LASTS_S - 0.001
    assert (await opened(made, sealed)).turns == {"key": TURN}
    clock.now += 0.001
    carried = await opened(made, sealed)
    assert (carried.turns, carried.missed) == ({}, [(0, "sealed_expired")])


async def test_several_turns_of_one_key() -> None:
    """Rule R4: equal turns of one key count as one; if two differ, none of them counts, in any order."""
    made = sealing()
    same, other = await written(made), await written(made, replace(TURN, payload=b'{"items":[]}'))
    assert (await opened(made, same, await written(made))).turns == {"key": TURN}
    for order in itertools.permutations((same, other, same)):
        carried = await opened(made, *order)
        assert carried.turns == {}
        assert carried.ambiguous == {"key"}
        assert carried.knows("key")
        assert carried.miss_reason("key", 0, 3) == "ambiguous"


async def test_why_a_turn_is_not_put_back() -> None:
    """The reason for a missing turn comes from the sealed items at the positions of its calls."""
    made = sealing()
    carried = await opened(made, await written(made), "AAAA")
    assert carried.miss_reason("other", 0, 1) == "sealed_elsewhere"
    assert carried.miss_reason("other", 1, 2) == "sealed_unreadable"
    assert carried.miss_reason("other", 2, float("inf")) == "no_held_turn"


async def test_a_turn_that_is_too_long() -> None:
    """A turn that is one byte over the limit is not sealed."""
    made = sealing()
    longest = replace(TURN, payload=b"x" * MAX_BYTES)
    assert (await opened(made, await written(made, longest))).turns == {"key": longest}
    assert await made.close(replace(TURN, payload=b"x" * (MAX_BYTES + 1))) is None


async def test_the_newest_turns_are_opened() -> None:
    """Of very many sealed turns the proxy opens only the newest 256."""
    made = sealing()
    turns = [replace(TURN, key=f"key{number}") for number in range(300)]
    carried = await opened(made, *[await written(made, turn) for turn in turns])
    assert carried.turns == {turn.key: turn for turn in turns[-256:]}


def test_who_is_given_a_turn() -> None:
    """A client gets a sealed turn only if it sends it back and the record does not store it."""
    parse = ResponsesWire().parse
    asks: dict[str, Any] = {"include": ["reasoning.encrypted_content"]}
    chat = ChatWire().parse({"model": "m", "messages": [], "store": False})
    for unstored, fields, wants in (
        (False, {}, False),
        (False, asks, False),
        (False, {"store": False}, True),
        (False, {"store": False, "previous_response_id": "resp_1"}, True),
        (False, {"store": False, "conversation": "conv_1"}, False),
        (False, {"store": False, "include": "odd"}, True),
        (True, {}, False),
        (True, {"include": None}, False),
        (True, asks, True),
        (True, {**asks, "conversation": {"id": "conv_1"}}, False),
    ):
        made = sealing(unstored=unstored)
        assert made.wants(parse({"model": "m", "input": "hi", **fields})) is wants, (unstored, fields)
        assert not made.wants(chat)
