"""Edited conversations: the proxy restores turns behind unchanged answers, and nothing else.

The test has a conversation through a whole proxy, with a hidden call behind each answer. Then it edits the
conversation at random, sends it, and compares byte by byte what goes upstream with what has to.
"""

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from chat_script import content, finish, role, stream
from hypothesis import given, settings
from hypothesis import strategies as st
from looping import ASK, TIME, called, looping
from raw_upstream import RawUpstream
from responses_script import function_call, message
from responses_script import stream as response
from running_proxy import Proxy

from proxy.json.splice import elements, members

Body = dict[str, Any]
ZONES = ("UTC", "Europe/Berlin", "UTC")
SAID = ("It is noon.", "It is one.", "It is noon.")
ASKED = ("hi", "and there?", "hi")


def unnamed(elements: list[bytes]) -> list[bytes]:
    """Return elements without their call ids, because the proxy changes ids that a model repeats."""
    return [re.sub(rb'"call_id":"[^"]*"', b"", each) for each in elements]


class Had:
    """A conversation through a proxy, which can be sent to it again after edits.

    ``hidden`` maps the position of each answer to the elements that belong there.
    """

    def __init__(self, proxy: Proxy, upstream: RawUpstream, field: str, path: str) -> None:
        self.proxy = proxy
        self.upstream = upstream
        self.field = field
        self.path = path
        self.base: Body = {}
        self.hidden: dict[int, list[bytes]] = {}
        self.tools: set[bytes] = set()

    async def ask(self, body: Body) -> list[bytes]:
        """Send a body; return the elements that the upstream got last."""
        answer = await self.proxy.ask(body, path=self.path)
        assert answer.status == 200, answer.body
        sent = members(self.upstream.requests[-1].body)
        self.tools.add(sent["tools"])
        return elements(sent[self.field])

    async def have(self, base: Body, first: list[Body]) -> None:
        """Ask three questions, each together with everything said before."""
        spoken = list(first)
        before: list[bytes] = []
        for asked, said in zip(ASKED, SAID, strict=True):
            spoken.append({"role": "user", "content": asked})
            # The last request of a run has everything but the answer itself.
            whole = await self.ask({**base, self.field: spoken})
            assert whole[: len(before)] == before, "a turn does not begin with the bytes of the last"
            before = whole
            spoken.append({"role": "assistant", "content": said})
        self.base = {**base, self.field: [*spoken, {"role": "user", "content": "thanks"}]}
        back = await self.ask(self.base)
        assert back[: len(before)] == before
        place = 0
        for position, one in enumerate(self.base[self.field]):
            size = 3 if one["role"] == "assistant" else 1
            if size == 3:
                self.hidden[position] = back[place : place + 3]
            place += size
        assert place == len(back)
        assert len(self.tools) == 1

    def check(self, body: Body, sent: list[bytes]) -> None:
        """Check what went upstream. Before the first edit, all hidden turns must be there. After it, hidden
        turns may only stand before an answer to which they belong."""
        mine: list[Body] = body[self.field]
        had: list[Body] = self.base[self.field]
        same = {key: value for key, value in body.items() if key != self.field}
        is_theirs = same != {key: value for key, value in self.base.items() if key != self.field}
        place = 0
        intact = not is_theirs
        for position, one in enumerate(mine):
            intact = intact and position < len(had) and one == had[position]
            # On Responses, adjacent items of the model form one turn.
            follows = mine[position + 1]["role"] if position + 1 < len(mine) else "user"
            alone = self.field == "messages" or follows != "assistant"
            known = [] if is_theirs else [unnamed(self.hidden[at]) for at in self.hidden if had[at] == one]
            stretch = sent[place : place + 3]
            if unnamed(stretch) in known and (not intact or stretch == self.hidden[position]):
                place += 3
                continue
            assert not (intact and alone and position in self.hidden), f"nothing is put back at {position}"
            assert sent[place] == json.dumps(one).encode()
            place += 1
        assert place == len(sent)


def call_of(zone: str) -> str:
    return json.dumps({"timezone": zone}, separators=(",", ":"))


@asynccontextmanager
async def had_on_chat() -> AsyncIterator[Had]:
    turns = []
    for zone, said in zip(ZONES, SAID, strict=True):
        turns += [called(("call_s", TIME, call_of(zone))), stream(role(), content(said), finish())]
    async with looping(*turns, stream(role(), content("Welcome."), finish())) as (proxy, upstream):
        had = Had(proxy, upstream, "messages", "/v1/chat/completions")
        base = {"model": ASK["model"], "stream": True, "user": "ann"}
        await had.have(base, [{"role": "system", "content": "Be brief."}])
        yield had


@asynccontextmanager
async def had_on_responses() -> AsyncIterator[Had]:
    turns = []
    for number, (zone, said) in enumerate(zip(ZONES, SAID, strict=True)):
        # Some models give each call the same id.
        turns.append(response(function_call("call_s", TIME, call_of(zone)), id=f"resp_{number}"))
        turns.append(response(message(said), id=f"resp_{number}b"))
    async with looping(*turns, response(message("Welcome."))) as (proxy, upstream):
        had = Had(proxy, upstream, "input", "/v1/responses")
        base = {"model": "m", "stream": True, "user": "ann", "store": True, "instructions": "Be brief."}
        await had.have(base, [])
        yield had


@contextmanager
def running(had: Callable[[], Any]) -> Iterator[tuple[asyncio.Runner, Had]]:
    """Keep one conversation and its event loop for all examples of a property."""
    with asyncio.Runner() as runner:
        context = had()
        one = runner.run(context.__aenter__())
        try:
            yield runner, one
        finally:
            runner.run(context.__aexit__(None, None, None))


WORDS = st.sampled_from(["hi", "It is noon.", "It is one.", "thanks", "", "é", "é", "x"])
ROLES = st.sampled_from(["user", "assistant", "system", "developer"])
MESSAGES = st.fixed_dictionaries({"role": ROLES, "content": WORDS})
CHARACTERS = st.characters(exclude_categories=["Cs"])


def change_character(body: Body, spoken: list[Body], at: int, draw: Any) -> None:
    text = spoken[at]["content"]
    place = draw(st.integers(0, len(text)))
    gone = draw(st.integers(0, 1))
    spoken[at]["content"] = text[:place] + draw(st.one_of(CHARACTERS, st.just(""))) + text[place + gone :]


def drop(body: Body, spoken: list[Body], at: int, draw: Any) -> None:
    del spoken[at]


def swap(body: Body, spoken: list[Body], at: int, draw: Any) -> None:
    other = draw(st.integers(0, len(spoken) - 1))
    spoken[at], spoken[other] = spoken[other], spoken[at]


def duplicate(body: Body, spoken: list[Body], at: int, draw: Any) -> None:
    spoken.insert(draw(st.integers(0, len(spoken))), copy.deepcopy(spoken[at]))


def insert(body: Body, spoken: list[Body], at: int, draw: Any) -> None:
    spoken.insert(at, draw(MESSAGES))


def change_role(body: Body, spoken: list[Body], at: int, draw: Any) -> None:
    spoken[at]["role"] = draw(ROLES)


def cut(body: Body, spoken: list[Body], at: int, draw: Any) -> None:
    del spoken[at:]


def change_model(body: Body, spoken: list[Body], at: int, draw: Any) -> None:
    body["model"] = draw(st.sampled_from(["m", "M", "other"]))


def change_user(body: Body, spoken: list[Body], at: int, draw: Any) -> None:
    body["user"] = draw(st.sampled_from(["ann", "bob"]))


EDITS = st.sampled_from(
    [change_character, drop, swap, duplicate, insert, change_role, cut, change_model, change_user]
)


@st.composite
def edited(draw: Any, base: Body) -> Body:
    """Return the conversation after up to three edits."""
    body = copy.deepcopy(base)
    spoken = body["messages"] if "messages" in body else body["input"]
    for edit in draw(st.lists(EDITS, max_size=3)):
        if spoken:
            edit(body, spoken, draw(st.integers(0, len(spoken) - 1)), draw)
    return body


@pytest.mark.parametrize("wire", [had_on_chat, had_on_responses], ids=["chat", "responses"])
def test_an_edited_conversation_gets_back_only_what_was_behind_its_answers(wire: Callable[[], Any]) -> None:
    """Rule R4: the proxy restores every hidden turn before the first edit byte for byte, and after it only
    turns that belong to the same answer."""
    with running(wire) as (runner, had):

        @settings(deadline=None, max_examples=120)
        @given(data=st.data())
        def holds(data: st.DataObject) -> None:
            body = data.draw(edited(had.base))
            if not body[had.field]:
                return
            had.check(body, runner.run(had.ask(body)))

        holds()
