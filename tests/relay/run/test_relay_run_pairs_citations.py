"""Citations of an answer are translated between dialects, over real sockets."""

from typing import Any

import chat_script
import messages_script
import official_clients
import pytest
import responses_script
from looping import ECHO
from pair_kits import SPEAKERS, Call, Message, Turn
from raw_upstream import RawUpstream, Step, chunked
from running_proxy import make_config, running

CITING = ("chat", "responses", "anthropic")
QUESTION = Message("user", "What rises?")
CALLS = Turn("Wait.", (Call("call_1", ECHO, {"text": "noon"}),), (3, 2))
SAID = (
    ("Well. ", ""),
    ("Éclairs 🎂 rise.", "https://example.com/a"),
    (" Bread falls.", "https://example.com/b"),
)
TEXT = "".join(text for text, _ in SAID)
SOURCES = [(url, text) for text, url in SAID if url]
PAIRS = [(client, upstream) for client in SPEAKERS for upstream in CITING if client != upstream]
each_pair = pytest.mark.parametrize(("client", "upstream"), PAIRS, ids=[f"{c}-{u}" for c, u in PAIRS])
streamed_or_not = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


def citation(text: str, url: str) -> dict[str, Any]:
    """Return the fields of a citation in OpenAI's dialects."""
    start = TEXT.index(text)
    return {"url": url, "title": "A page", "start_index": start, "end_index": start + len(text)}


def chat(stream: bool) -> list[Step]:
    """Return the answer of a Chat upstream."""
    if not stream:
        noted = [{"type": "url_citation", "url_citation": citation(text, url)} for text, url in SAID if url]
        return chat_script.reply(TEXT, annotations=noted, used=(5, 6))
    events = [chat_script.role()]
    for text, url in SAID:
        events += [chat_script.content(letter) for letter in text]
        if url:
            noted = [{"type": "url_citation", "url_citation": citation(text, url)}]
            events.append(chat_script.chunk_of({"annotations": noted}))
    return chat_script.stream(*events, chat_script.finish(), chat_script.usage(5, 6))


def responses(stream: bool) -> list[Step]:
    """Return the answer of a Responses upstream."""
    noted = [{"type": "url_citation", **citation(text, url)} for text, url in SAID if url]
    item = responses_script.message(TEXT)
    item["content"][0]["annotations"] = noted
    if not stream:
        return responses_script.reply(item)
    life = responses_script.item_events(item, 0)
    added, opened, *_ = life
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    events = [added, opened]
    index = 0
    for text, url in SAID:
        for letter in text:
            delta = {**place, "delta": letter, "logprobs": []}
            events.append(responses_script.event("response.output_text.delta", **delta))
        if url:
            more = {"annotation_index": index, "annotation": noted[index]}
            events.append(responses_script.event("response.output_text.annotation.added", **place, **more))
            index += 1
    done = [event for event in life if event["type"].endswith(".done")]
    return chunked(responses_script.turn(item, events=[*events, *done]))


def anthropic(stream: bool) -> list[Step]:
    """Return the answer of a Messages upstream."""
    blocks = []
    for text, url in SAID:
        more = {"type": "web_search_result_location", "title": "A page", "cited_text": "words"}
        found = [{**more, "url": url, "encrypted_index": "c2VjcmV0"}] if url else []
        blocks.append({"type": "text", "text": text, **({"citations": found} if found else {})})
    if not stream:
        return messages_script.reply(*blocks)
    events = [messages_script.start()]
    for index, block in enumerate(blocks):
        begin, *deltas, stop = messages_script.block_events(index, {"type": "text", "text": block["text"]})
        for one in block.get("citations", ()):
            delta = {"type": "citations_delta", "citation": one}
            said = {"type": "content_block_delta", "index": index, "delta": delta}
            # The citation comes after the first delta of its block and before the rest, as from the API.
            deltas.insert(1, messages_script.event(said))
        events += [begin, *deltas, stop]
    return chunked(*events, messages_script.ending())


ANSWERS = {"chat": chat, "responses": responses, "anthropic": anthropic}
CLIENTS: dict[str, Any] = {
    "chat": official_clients.chat,
    "responses": official_clients.responses,
    "anthropic": official_clients.messages,
    "ollama": official_clients.ollama,
}


@each_pair
@streamed_or_not
async def test_citations_cross(client: str, upstream: str, stream: bool) -> None:
    """The client's official library reads each source together with the text that cites it."""
    scripts = [SPEAKERS[upstream].script(CALLS, stream=stream), ANSWERS[upstream](stream)]
    async with RawUpstream(*scripts) as server:
        table = {"base_url": server.url, "wires": (upstream,), "retries": 0}
        async with running(make_config(table, modules=("probe_tools",))) as proxy:
            speaker = SPEAKERS[client]
            body = speaker.ask([QUESTION], stream=stream, tools=["mine"])
            answer = await proxy.ask(body, {}, path=speaker.path)
            assert answer.status == 200
            run = (await proxy.run_reaches("completed")).run
    heard = CLIENTS[client]([answer.body], stream=stream)
    assert heard.text.replace("\n\n", "") == "Wait." + TEXT
    if client == "ollama":
        # Ollama's dialect has no citations; the record says that they were left out.
        assert run.left_out == ("answer.citations",)
        assert answer.header("x-toolrelay-left-out") == (None if stream else "answer.citations")
        return
    assert run.left_out == ()
    if client == "anthropic" and stream:
        # The text before a citation in its block has already been sent.
        blocks = ["Well. Éclairs 🎂 rise. ", "Bread falls."]
        assert heard.sources == [(url, text) for (url, _), text in zip(SOURCES, blocks, strict=True)]
        return
    assert heard.sources == SOURCES
