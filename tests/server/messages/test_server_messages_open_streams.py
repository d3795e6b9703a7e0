"""The memory of an open stream: it does not keep the conversation that it answers."""

import gc
import json
from pathlib import Path
from types import FrameType

from aiohttp.streams import StreamReader
from stepping import EVENT, stepping

MARK = "a conversation that nobody needs any more " * 3000


def readers() -> list[StreamReader]:
    """Return the readers of bodies that this process holds."""
    return [one for one in gc.get_objects() if type(one) is StreamReader]


def keepers() -> list[str]:
    """Return the types of the objects that hold the conversation as text or bytes."""
    own = MARK.encode()
    found = []
    for holder in gc.get_objects():
        if isinstance(holder, FrameType) or holder is globals():
            continue
        for held in gc.get_referents(holder):
            if held is MARK or held is own:
                continue
            if (isinstance(held, str) and MARK in held) or (isinstance(held, bytes) and own in held):
                found.append(f"{type(holder)}: {type(held)}")
    return found


async def test_an_open_stream_lets_go_of_the_conversation(tmp_path: Path) -> None:
    """Once the client has a stream's first bytes, nothing holds the request's body or the body's reader."""
    async with stepping(tools=False, path=tmp_path) as (proxy, steps), proxy.connect() as conversation:
        ask = {"model": "m", "stream": True, "messages": [{"role": "user", "content": MARK}]}
        of_others = readers()  # Those of a test before, whose last tasks have not ended yet.
        conversation.writer.write(proxy.request(json.dumps(ask).encode()))
        del ask
        steps.queue.put_nowait(EVENT)
        assert b"word" in await conversation.reader.readuntil(b"word")
        assert keepers() == []
        assert not [one for one in readers() if one not in of_others]
        steps.queue.put_nowait(None)
