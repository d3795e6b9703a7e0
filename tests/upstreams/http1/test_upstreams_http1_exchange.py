"""The states of a response: each transition of the table happens, and no other is allowed."""

import asyncio
from collections.abc import Callable

import pytest
from taped_line import Taped

from proxy.base.errors import UpstreamBroken, UpstreamTimeout
from proxy.http.rules import HeaderRules
from proxy.records.transitions import IllegalTransition, Transitions
from proxy.upstreams.http1 import exchange as exchange_module
from proxy.upstreams.http1.exchange import ConnectionLost, Exchange
from proxy.upstreams.http1.response_heads import ResponseHeads
from proxy.upstreams.http1.response_states import NEXT, ResponseEvent, ResponseState

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
UNTIL_EOF = b"HTTP/1.1 200 OK\r\n\r\n"

Step = Callable[[Exchange], object]


def fed(data: bytes) -> Step:
    """The connection brings these bytes."""
    return lambda exchange: exchange.feed(data)


def lost(*, by_peer: bool = False) -> Step:
    """The connection ends."""
    return lambda exchange: exchange.lost(by_peer=by_peer)


def silent(exchange: Exchange) -> None:
    """Nothing comes for too long."""
    exchange.look_for_silence(exchange.last)
    exchange.look_for_silence(exchange.last + 100)


def pushed_to_nobody(exchange: Exchange) -> None:
    """The sink fails with the first piece of the body, and nobody waits for the push."""

    def gone(data: bytes) -> None:
        raise ConnectionResetError("gone")

    exchange._sink = gone


def upload_fails(exchange: Exchange) -> None:
    """The client's body breaks off."""
    exchange._fail(UpstreamBroken("the upload broke off"))


PLAYBOOKS: dict[str, tuple[list[Step], list[tuple[ResponseState, ResponseEvent]], ResponseState]] = {
    "an answer": (
        [fed(HEAD[:9]), fed(HEAD[9:]), fed(b"hello")],
        [
            (ResponseState.SENT, ResponseEvent.BYTES),
            (ResponseState.BEGUN, ResponseEvent.HEAD),
            (ResponseState.BODY, ResponseEvent.END),
        ],
        ResponseState.COMPLETE,
    ),
    "an answer in one read": (
        [fed(HEAD + b"hello")],
        [
            (ResponseState.SENT, ResponseEvent.BYTES),
            (ResponseState.BEGUN, ResponseEvent.HEAD),
            (ResponseState.BODY, ResponseEvent.END),
        ],
        ResponseState.COMPLETE,
    ),
    "an answer that the end of its connection ends": (
        [fed(UNTIL_EOF), fed(b"hello"), lost(by_peer=True)],
        [
            (ResponseState.SENT, ResponseEvent.BYTES),
            (ResponseState.BEGUN, ResponseEvent.HEAD),
            (ResponseState.BODY, ResponseEvent.END),
        ],
        ResponseState.COMPLETE,
    ),
    "no answer": ([silent], [(ResponseState.SENT, ResponseEvent.FAILURE)], ResponseState.FAILED),
    "a lost connection": (
        [lost(by_peer=True)],
        [(ResponseState.SENT, ResponseEvent.FAILURE)],
        ResponseState.FAILED,
    ),
    "half a head": (
        [fed(HEAD[:9]), lost(by_peer=True)],
        [(ResponseState.SENT, ResponseEvent.BYTES), (ResponseState.BEGUN, ResponseEvent.FAILURE)],
        ResponseState.FAILED,
    ),
    "half a body": (
        [fed(HEAD + b"he"), lost(by_peer=True)],
        [
            (ResponseState.SENT, ResponseEvent.BYTES),
            (ResponseState.BEGUN, ResponseEvent.HEAD),
            (ResponseState.BODY, ResponseEvent.FAILURE),
        ],
        ResponseState.FAILED,
    ),
    "two failures": (
        [silent, lost()],
        [(ResponseState.SENT, ResponseEvent.FAILURE), (ResponseState.FAILED, ResponseEvent.FAILURE)],
        ResponseState.FAILED,
    ),
    "a client that goes": (
        [fed(HEAD), pushed_to_nobody, fed(b"he")],
        [
            (ResponseState.SENT, ResponseEvent.BYTES),
            (ResponseState.BEGUN, ResponseEvent.HEAD),
            (ResponseState.BODY, ResponseEvent.REFUSAL),
        ],
        ResponseState.FAILED,
    ),
    "a client that goes with the last piece": (
        [fed(HEAD), pushed_to_nobody, fed(b"hello")],
        [
            (ResponseState.SENT, ResponseEvent.BYTES),
            (ResponseState.BEGUN, ResponseEvent.HEAD),
            (ResponseState.BODY, ResponseEvent.END),
            (ResponseState.COMPLETE, ResponseEvent.REFUSAL),
            (ResponseState.FAILED, ResponseEvent.FAILURE),
        ],
        ResponseState.FAILED,
    ),
    "an upload that breaks off behind its answer": (
        [fed(HEAD + b"hello"), upload_fails],
        [
            (ResponseState.SENT, ResponseEvent.BYTES),
            (ResponseState.BEGUN, ResponseEvent.HEAD),
            (ResponseState.BODY, ResponseEvent.END),
            (ResponseState.COMPLETE, ResponseEvent.FAILURE),
        ],
        ResponseState.COMPLETE,
    ),
}


class Noted(Transitions[ResponseState, ResponseEvent]):
    """The table of transitions, which notes each look-up."""

    def __init__(self) -> None:
        super().__init__(NEXT)
        self.asked: list[tuple[ResponseState, ResponseEvent]] = []

    def __getitem__(self, key: tuple[ResponseState, ResponseEvent]) -> ResponseState:
        self.asked.append(key)
        return super().__getitem__(key)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """A table that notes its look-ups, in place of the real one."""
    noted = Noted()
    monkeypatch.setattr(exchange_module, "NEXT", noted)
    return noted


def new() -> Exchange:
    """An exchange whose request was sent."""
    loop, heads = asyncio.get_running_loop(), ResponseHeads(HeaderRules(), ())
    return Exchange("main", Taped(), heads, loop, first_byte_timeout_s=1, idle_timeout_s=2, bodiless=False)


@pytest.mark.parametrize("name", PLAYBOOKS)
async def test_what_happens_leads_from_state_to_state(name: str, table: Noted) -> None:
    """Each sequence of steps makes these transitions in this order, and ends in this state."""
    steps, transitions, end = PLAYBOOKS[name]
    exchange = new()
    for step in steps:
        step(exchange)
    assert table.asked == transitions
    assert exchange._state is end
    exchange.head.cancel()
    if exchange.head.done() and not exchange.head.cancelled():
        exchange.head.exception()  # asyncio logs an exception that nobody retrieves.


def test_the_stories_walk_the_whole_table() -> None:
    """The playbooks make every transition of the table and reach every state."""
    walked = {step for _, transitions, _ in PLAYBOOKS.values() for step in transitions}
    assert walked == set(NEXT)
    assert {ResponseState.SENT, *NEXT.values()} == set(ResponseState)


@pytest.mark.parametrize("state", ResponseState)
@pytest.mark.parametrize("event", ResponseEvent)
def test_no_other_transition_is_legal(state: ResponseState, event: ResponseEvent) -> None:
    """A transition that the table does not have raises IllegalTransition."""
    if (state, event) not in NEXT:
        with pytest.raises(IllegalTransition, match=rf"{event.name}.*{state.name}"):
            NEXT[state, event]


async def test_bytes_behind_the_end_are_a_fault_of_the_program() -> None:
    """Bytes for a complete exchange raise IllegalTransition, since its connection must not feed them."""
    exchange = new()
    exchange.feed(HEAD + b"hello")
    with pytest.raises(IllegalTransition, match="BYTES"):
        exchange.feed(b"HTTP/1.1 200 OK\r\n")


async def test_what_is_raised_says_how_far_the_response_was() -> None:
    """The error tells a loss before any byte from one in the head or the body, and from silence."""
    untouched, begun, body, late = new(), new(), new(), new()
    untouched.lost(by_peer=True)
    begun.feed(HEAD[:9])
    begun.lost(by_peer=True)
    with pytest.raises(ConnectionLost) as nothing:
        await untouched.head
    with pytest.raises(ConnectionLost) as some:
        await begun.head
    assert (nothing.value.received, some.value.received) == (False, True)
    body.feed(HEAD + b"he")
    body.lost(by_peer=True)
    assert await body.next_piece() == b"he"
    with pytest.raises(UpstreamBroken, match="broke off its response"):
        await body.next_piece()
    late.feed(HEAD)
    silent(late)
    with pytest.raises(UpstreamTimeout, match="sent nothing for 2 s"):
        await late.next_piece()
