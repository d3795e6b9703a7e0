"""OpenAI's client uses the WebSocket of ``/v1/responses``, with a provider that knows only Chat.

The cases are those of the compliance suite of Open Responses for WebSockets.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI
from openai.resources.responses.responses import AsyncResponsesConnection
from plain_chat import PlainChat, serving_plain_chat
from running_proxy import make_config, running

ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}


@asynccontextmanager
async def opened(client: AsyncOpenAI) -> AsyncIterator[AsyncResponsesConnection]:
    """Yield a WebSocket connection of the SDK."""
    async with client.responses.connect() as connection:
        yield connection


@asynccontextmanager
async def chatting() -> AsyncIterator[AsyncOpenAI]:
    """Yield a client of a proxy in front of a plain Chat provider."""
    async with serving_plain_chat(PlainChat()) as url:
        config = make_config({"base_url": url, "wires": ("chat",)}, allow=())
        async with (
            running(config) as proxy,
            AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="none") as client,
        ):
            yield client


async def ask(connection: AsyncResponsesConnection, **said: Any) -> Any:
    """Send a message; return the event that ends its answer."""
    request: Any = {"type": "response.create", "model": "m", **said}
    await connection.send(request)
    while True:
        event = await connection.recv()
        if event.type in ENDS:
            return event


def text_of(event: Any) -> str:
    """Return the text of a completed response."""
    assert event.type == "response.completed"
    return "".join(part.text for item in event.response.output for part in item.content)


async def test_one_response_after_another_on_one_connection() -> None:
    """Two requests on one connection get two responses, each with its own id and text."""
    async with chatting() as client, opened(client) as connection:
        first = await ask(connection, store=False, input="first")
        second = await ask(connection, store=False, input="second")
    assert (text_of(first), text_of(second)) == ("You said: first", "You said: second")
    assert first.response.id != second.response.id


async def test_a_chain_without_storage_lives_as_long_as_its_connection() -> None:
    """Without storage, a chain continues by id on its connection; on a new one, the id is unknown."""
    async with chatting() as client:
        async with opened(client) as connection:
            first = await ask(connection, store=False, input="Remember the code word: cobalt.")
            second = await ask(
                connection, store=False, input="Which code word?", previous_response_id=first.response.id
            )
        assert text_of(second) == "cobalt"
        async with opened(client) as connection:
            lost = await ask(connection, store=False, input="hi", previous_response_id=second.response.id)
            fresh = await ask(connection, store=False, input="hi")
    assert (lost.type, lost.error.code) == ("error", "previous_response_not_found")
    assert text_of(fresh) == "You said: hi"


async def test_a_failed_continuation_ends_its_chain() -> None:
    """If a continuation fails, the id of the response before it is unknown from then on."""
    async with chatting() as client, opened(client) as connection:
        first = (await ask(connection, store=False, input="hi")).response.id
        output = {"type": "function_call_output", "call_id": "call_none", "output": "x"}
        failed = await ask(connection, store=False, input=[output], previous_response_id=first)
        again = await ask(connection, store=False, input="hi", previous_response_id=first)
    assert failed.type == "error"
    assert again.error.code == "previous_response_not_found"


async def test_a_compacted_conversation_begins_a_new_chain() -> None:
    """Compacted items are the first input of a new chain, without a response's id."""
    async with chatting() as client:
        said: Any = [{"role": "user", "content": "Remember the code word: slate."}]
        compacted = await client.responses.compact(model="m", input=said)
        items = [item.model_dump(exclude_unset=True) for item in compacted.output]
        asked = {"role": "user", "content": "Which code word?"}
        async with opened(client) as connection:
            event = await ask(connection, store=False, input=[*items, asked])
    assert text_of(event) == "slate"


async def test_what_is_stored_is_there_over_http() -> None:
    """A stored response of the WebSocket can be read over HTTP."""
    async with chatting() as client:
        async with opened(client) as connection:
            event = await ask(connection, input="hi")
        assert (await client.responses.retrieve(event.response.id)).output_text == "You said: hi"
