"""The channel between a supervisor and its workers, and the questions that it carries."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from waiting import PATIENCE_S

from proxy.commands.serve.supervisor.broadcast import Broadcast
from proxy.net.channel import MAX_BODY, Channel, ChannelBroken
from proxy.server.peers import MAX_ANSWER, Answers, Peers


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Channel, Channel]]:
    """Both ends of a channel."""
    one, other = socket.socketpair()
    ends = await Channel.over(one), await Channel.over(other)
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


async def test_a_message_arrives_as_it_was_sent() -> None:
    """The receiver gets each header and body as they were sent, in order, even an empty body."""
    async with linked() as (one, other):
        bodies = [b"", b"\0\xff" * 10, b"x" * 100_000]
        for number, body in enumerate(bodies):
            assert one.send("told", body, id=number)
        for number, body in enumerate(bodies):
            assert await other.receive() == ({"kind": "told", "id": number}, body)


async def test_the_end_of_the_other_is_seen() -> None:
    """A closed channel ends the messages, even in the middle of one; sending on it returns False."""
    async with linked() as (one, other):
        one.send("last")
        one.close()
        assert await other.receive() == ({"kind": "last"}, b"")
        assert await other.receive() is None
        assert not one.send("more")
    ours, theirs = socket.socketpair()
    theirs.sendall(struct.pack(">II", 10, 10) + b"half")
    theirs.close()
    channel = await Channel.over(ours)
    assert await channel.receive() is None
    channel.close()


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">II", 5000, 0),
        struct.pack(">II", 2, MAX_BODY + 1),
        struct.pack(">II", 2, 0) + b"no",
        struct.pack(">II", 2, 0) + b"[]",
        struct.pack(">II", 2, 0) + b"{}",
    ],
)
async def test_what_is_no_message_breaks_the_channel(raw: bytes) -> None:
    """A length past the bounds and a header that is not valid break the channel."""
    ours, theirs = socket.socketpair()
    theirs.sendall(raw)
    channel = await Channel.over(ours)
    with pytest.raises(ChannelBroken):
        await channel.receive()
    channel.close()
    theirs.close()


async def test_a_peer_that_does_not_read_holds_nobody_up() -> None:
    """If the peer does not read, messages past a bound are dropped, and ``send`` returns False at once."""
    async with linked() as (one, _):
        sent = [one.send("told", b"x" * MAX_BODY) for _ in range(8)]
        assert sent[0]
        assert not sent[-1]
        assert not one.send("told", b"x" * (MAX_BODY + 1))


# Questions.


class Member:
    """A worker that asks and answers questions over its channel."""

    def __init__(self, questions: Broadcast, hub: Channel, channel: Channel) -> None:
        self.peers = Peers()
        self.channel = channel
        self.answers: list[bytes] = []
        self.missing: int | None = None
        self.ended = b""
        self.heard = asyncio.Event()
        self.answered = asyncio.Event()
        self.silent = False
        self.done = asyncio.Event()
        questions.add_member(self, hub)
        self.tasks = [
            asyncio.create_task(self._hub(questions, hub)),
            asyncio.create_task(self._listen()),
        ]

    async def _hub(self, questions: Broadcast, hub: Channel) -> None:
        while (message := await hub.receive()) is not None:
            questions.on_message(self, *message)
        questions.remove_member(self)

    async def _listen(self) -> None:
        while (message := await self.channel.receive()) is not None:
            header, body = message
            if header["kind"] == "question" and self.silent:
                self.heard.set()
            elif header["kind"] == "question":
                told = self.peers.own_answer(header["name"])
                self.channel.send("answer", told or b"", id=header["id"], known=told is not None)
            elif header["kind"] == "answer":
                self.answers.append(body)
                self.answered.set()
            else:
                self.missing, self.ended = header["missing"], body
                self.done.set()

    async def ask(self, name: str, within_s: float = PATIENCE_S) -> Answers:
        """Ask all other workers and return their answers."""
        self.done.clear()
        self.answered.clear()
        self.answers = []
        self.channel.send("ask", id=7, name=name, within_s=within_s)
        await self.done.wait()
        assert self.missing is not None
        return Answers(tuple(sorted(self.answers)), self.missing)


@asynccontextmanager
async def members(count: int, questions: Broadcast | None = None) -> AsyncIterator[list[Member]]:
    """Yield ``count`` workers of one supervisor."""
    questions, made, hubs = questions or Broadcast(), [], []
    for _ in range(count):
        ours, theirs = socket.socketpair()
        hub, channel = await Channel.over(ours), await Channel.over(theirs)
        hubs.append(hub)
        made.append(Member(questions, hub, channel))
    try:
        yield made
    finally:
        for channel in (*hubs, *[member.channel for member in made]):
            channel.close()
        await asyncio.gather(*(task for member in made for task in member.tasks))


def telling(body: bytes) -> Callable[[], bytes]:
    return lambda: body


async def test_everybody_else_is_asked() -> None:
    """A worker that asks gets the answers of all other workers, but not its own."""
    async with members(4) as made:
        for number, member in enumerate(made):
            member.peers.publish("dummy", telling(b"%d" % number))
        assert await made[0].ask("dummy") == Answers((b"1", b"2", b"3"), 0)
        assert await made[3].ask("dummy") == Answers((b"0", b"1", b"2"), 0)


async def test_who_does_not_know_is_missing() -> None:
    """A worker counts as missing if it has no answer, fails to make one, or makes one that is too long."""
    async with members(4) as made:
        made[1].peers.publish("dummy", telling(b"x" * (MAX_ANSWER + 1)))
        made[2].peers.publish("dummy", lambda: bytes(1 // 0))
        made[3].peers.publish("dummy", telling(b"y" * MAX_ANSWER))
        assert await made[0].ask("dummy") == Answers((b"y" * MAX_ANSWER,), 2)
        assert await made[0].ask("other") == Answers((), 3)


async def test_who_says_nothing_is_waited_for_in_bounds() -> None:
    """If a worker stays silent, the asker gets the other answers at the timeout, and the number missing."""
    async with members(3) as made:
        made[1].peers.publish("dummy", telling(b"1"))
        made[2].silent = True
        assert await made[0].ask("dummy", within_s=1.0) == Answers((b"1",), 1)


async def test_who_goes_is_not_waited_for() -> None:
    """A worker that dies while it is asked counts as missing at once; later questions leave it out."""
    async with members(3) as made:
        made[1].peers.publish("dummy", telling(b"1"))
        made[2].silent = True
        asked = asyncio.create_task(made[0].ask("dummy"))
        await made[2].heard.wait()
        made[2].channel.close()
        assert await asked == Answers((b"1",), 1)
        assert await made[0].ask("dummy") == Answers((b"1",), 0)


def summed(bodies: Sequence[bytes]) -> bytes:
    return b"%d" % sum(map(int, bodies))


async def test_what_is_remembered_outlives_who_told_it() -> None:
    """For a remembered name, the last answers of ended workers are combined into one for each asker."""
    async with members(4, Broadcast({"count": summed})) as made:
        for member, number in zip(made, (1, 20, 300, 4000), strict=True):
            member.peers.publish("count", telling(b"%d" % number))
            member.peers.publish("other", telling(b"7"))
        assert await made[0].ask("count") == Answers((b"20", b"300", b"4000"), 0)
        assert made[0].ended == b""
        made[3].channel.send("last", b"4005", name="count")
        made[3].channel.send("last", b"8", name="other")
        for gone in (made[1], made[3]):
            gone.channel.close()
            await gone.tasks[0]
        assert await made[0].ask("count") == Answers((b"300",), 0)
        assert made[0].ended == b"4025"
        assert await made[2].ask("other") == Answers((b"7",), 0)
        assert made[2].ended == b""


async def test_the_last_answer_stands_for_who_says_nothing() -> None:
    """For a remembered name, a silent worker's last answer is used; one that never answered is missing."""
    async with members(3, Broadcast({"count": summed})) as made:
        made[1].peers.publish("count", telling(b"20"))
        assert await made[0].ask("count") == Answers((b"20",), 1)
        made[1].silent = made[2].silent = True
        assert await made[0].ask("count", within_s=1.0) == Answers((b"20",), 1)


async def test_who_goes_while_asked_is_counted_once() -> None:
    """A worker that ends during a question is counted once, whether it has answered or not."""
    async with members(4, Broadcast({"count": summed})) as made:
        for member, number in zip(made, (1, 20, 300, 4000), strict=True):
            member.peers.publish("count", telling(b"%d" % number))
        await made[0].ask("count")
        made[2].silent = made[3].silent = True
        asked = asyncio.create_task(made[0].ask("count"))
        await made[2].heard.wait()
        await made[3].heard.wait()
        await made[0].answered.wait()
        for gone in made[1:]:
            gone.channel.close()
            await gone.tasks[0]
        assert await asked == Answers((b"20", b"300", b"4000"), 0)
        assert made[0].ended == b""
        assert await made[0].ask("count") == Answers((), 0)
        assert made[0].ended == b"4320"


async def test_an_asker_is_remembered_too() -> None:
    """The value that a worker sends with its question is remembered; one that cannot be read is left out."""
    async with members(3, Broadcast({"count": summed})) as made:
        for member, own in zip(made, (b"1", b"no number", b"300"), strict=True):
            member.channel.send("ask", own, id=7, name="count", within_s=0.05)
            await member.done.wait()
        for gone in made[:2]:
            gone.channel.close()
            await gone.tasks[0]
        assert await made[2].ask("count") == Answers((), 0)
        assert made[2].ended == b"1"


async def test_a_worker_alone_has_its_own() -> None:
    """If there are no other workers, a question is answered at once."""
    peers = Peers()
    peers.publish("dummy", telling(b"mine"))
    assert await peers.ask_all("dummy") == Answers((b"mine",), 0)
    assert await peers.ask_all("other") == Answers((), 1)
    async with members(1) as (only,):
        assert await only.ask("dummy") == Answers((), 0)


async def test_own_and_others_are_put_together() -> None:
    """``ask_all`` returns this process's own answer, then those of the other workers."""
    peers = Peers()
    peers.publish("dummy", telling(b"mine"))

    async def others(name: str, within_s: float) -> Answers:
        return Answers((name.encode(), b"%g" % within_s), 2)

    peers.ask_others = others
    assert await peers.ask_all("dummy", within_s=0.5) == Answers((b"mine", b"dummy", b"0.5"), 2)
