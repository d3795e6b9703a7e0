"""Clients that declare their provider's search of the web, on models whose upstreams have none.

Each leads a conversation of two questions with one model of every dialect. In each question the model
searches; in the second one the client sends back the items or blocks of the first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from provider_models import (
    ANSWER,
    SEARCH,
    ProviderModel,
    RecordedPages,
    serving_models,
    without_numbers,
)
from running_proxy import Proxy

from proxy.tools.contract.capabilities import QueryParams

MODELS = ("gpt-4o-mini", "claude-opus-4-7", "qwen3", "gpt-5-2025-08-07")
"""One of each dialect. The last one speaks Responses, as OpenAI does."""
QUESTIONS = ("Which rivers flow through Berlin?", "Once more.")
PAGES = ["https://en.wikipedia.org/wiki/Spree_(river)", "https://en.wikipedia.org/wiki/Havel"]
CALLS = {"web_search": SEARCH}
TITLES = ["Spree (river)", "Havel"]


def openai_at(proxy: Proxy) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="unused", max_retries=0)


def anthropic_at(proxy: Proxy) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=f"http://127.0.0.1:{proxy.port}", api_key="unused", max_retries=0)


def check_results(model: ProviderModel) -> None:
    """Check that the last request brought the results of both searches, the first as it was recorded."""
    first, second = map(without_numbers, model.results)
    assert first == second
    assert all(page in first for page in PAGES)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_responses(name: str, streamed: bool) -> None:
    """A search is a web_search_call with its sources, events in order, and usage; it returns to the model."""
    items: list[Any] = []
    async with (
        serving_models(CALLS, native=(), hosts_search=True) as (proxy, models),
        openai_at(proxy) as client,
    ):
        for question in QUESTIONS:
            items.append({"role": "user", "content": question})
            options: dict[str, Any] = {
                "model": name,
                "input": items,
                "tools": [{"type": "web_search"}],
                "include": ["web_search_call.action.sources"],
            }
            if streamed:
                async with client.responses.stream(**options) as stream:
                    kinds = [event.type async for event in stream]
                    response = await stream.get_final_response()
                check_events(kinds)
            else:
                response = await client.responses.create(**options)
            search, message = [item for item in response.output if item.type != "reasoning"]
            assert search.type == "web_search_call"
            assert search.status == "completed"
            action = search.action
            assert action.type == "search"
            assert action.query == SEARCH["query"]
            assert [source.url for source in action.sources or ()] == PAGES
            assert message.type == "message"
            assert response.output_text == ANSWER
            assert response.tool_usage is not None
            assert response.tool_usage.web_search.num_requests == 1
            assert response.tools[0].type == "web_search"
            items += [item.model_dump(exclude_none=True) for item in response.output]
    check_results(models[name])


def check_events(kinds: Sequence[str]) -> None:
    """Check that the events of a search come in OpenAI's order, and the message behind them."""
    begin = kinds.index("response.web_search_call.in_progress") - 1
    assert kinds[begin : begin + 5] == [
        "response.output_item.added",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.output_item.done",
    ]
    assert kinds.index("response.output_text.delta") > begin + 5


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_messages(name: str, streamed: bool) -> None:
    """A search is a server_tool_use and its result, with its usage; it returns to the model."""
    messages: list[Any] = []
    async with (
        serving_models(CALLS, native=(), hosts_search=True) as (proxy, models),
        anthropic_at(proxy) as client,
    ):
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            options: dict[str, Any] = {
                "model": name,
                "max_tokens": 1000,
                "messages": messages,
                "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}],
            }
            if streamed:
                async with client.messages.stream(**options) as stream:
                    message = await stream.get_final_message()
            else:
                message = await client.messages.create(**options)
            use, result, text = [block for block in message.content if block.type != "thinking"]
            assert use.type == "server_tool_use"
            assert use.input == SEARCH
            assert result.type == "web_search_tool_result"
            assert result.tool_use_id == use.id
            assert isinstance(result.content, list)
            assert [page.url for page in result.content] == PAGES
            assert [page.title for page in result.content] == TITLES
            assert text.type == "text"
            assert text.text == ANSWER
            assert message.stop_reason == "end_turn"
            assert message.usage.server_tool_use is not None
            assert message.usage.server_tool_use.web_search_requests == 1
            messages.append({"role": "assistant", "content": [b.model_dump() for b in message.content]})
    check_results(models[name])


LINKED = f"\U0001f30a 河 e\u0301: the [Spree]({PAGES[0]}), the [Havel]({PAGES[1]}) and [others](https://x.example/)."


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_citations_of_responses(name: str, streamed: bool) -> None:
    """A link to a page that was found is a url_citation over the link, in characters; others are not."""
    async with (
        serving_models(CALLS, native=(), hosts_search=True) as (proxy, models),
        openai_at(proxy) as client,
    ):
        models[name].answer = LINKED
        options: dict[str, Any] = {"model": name, "input": "Rivers?", "tools": [{"type": "web_search"}]}
        if streamed:
            async with client.responses.stream(**options) as stream:
                kinds = [event.type async for event in stream]
                response = await stream.get_final_response()
            assert kinds.count("response.output_text.annotation.added") == 2
        else:
            response = await client.responses.create(**options)
    assert response.output_text == LINKED
    (part,) = response.model_dump()["output"][-1]["content"]
    links = [LINKED[note["start_index"] : note["end_index"]] for note in part["annotations"]]
    assert links == [f"[Spree]({PAGES[0]})", f"[Havel]({PAGES[1]})"]
    assert [(note["type"], note["url"], note["title"]) for note in part["annotations"]] == [
        ("url_citation", page, title) for page, title in zip(PAGES, TITLES, strict=True)
    ]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_citations_of_messages(name: str, streamed: bool) -> None:
    """A link to a page that was found is a citation of its block of text, and comes back without harm."""
    async with (
        serving_models(CALLS, native=(), hosts_search=True) as (proxy, models),
        anthropic_at(proxy) as client,
    ):
        models[name].answer = LINKED
        messages: list[Any] = []
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            tool = {"type": "web_search_20250305", "name": "web_search"}
            options: dict[str, Any] = {
                "model": name,
                "max_tokens": 1000,
                "messages": messages,
                "tools": [tool],
            }
            if streamed:
                async with client.messages.stream(**options) as stream:
                    message = await stream.get_final_message()
            else:
                message = await client.messages.create(**options)
            texts = [block.model_dump() for block in message.content if block.type == "text"]
            assert "".join(block["text"] for block in texts) == LINKED
            cited = [(note["url"], note["title"]) for block in texts for note in block["citations"] or ()]
            assert cited == list(zip(PAGES, TITLES, strict=True))
            messages.append({"role": "assistant", "content": [b.model_dump() for b in message.content]})
    check_results(models[name])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "declared",
    [{"web_search_options": {"search_context_size": "low"}}, {"tools": [{"type": "web_search"}]}],
    ids=["options", "tool"],
)
async def test_chat(declared: dict[str, Any], name: str, streamed: bool) -> None:
    """Chat shows no search; links to found pages are annotations."""
    async with (
        serving_models(CALLS, native=(), hosts_search=True) as (proxy, models),
        openai_at(proxy) as client,
    ):
        models[name].answer = LINKED
        messages = [{"role": "user", "content": QUESTIONS[0]}]
        options: dict[str, Any] = {"model": name, "messages": messages, "extra_body": declared}
        notes: list[Any] = []
        text = ""
        if streamed:
            async for chunk in await client.chat.completions.create(stream=True, **options):
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    notes += choice.delta.model_dump().get("annotations") or []
        else:
            message = (await client.chat.completions.create(**options)).choices[0].message
            text, notes = message.content or "", message.model_dump().get("annotations") or []
    assert text == LINKED
    cited = [note["url_citation"] for note in notes]
    assert [LINKED[note["start_index"] : note["end_index"]] for note in cited] == [
        f"[Spree]({PAGES[0]})",
        f"[Havel]({PAGES[1]})",
    ]
    (found,) = models[name].results
    assert all(page in found for page in PAGES)


MARKED = "\U0001f30a 河 e\u0301: the Spree【{0}】, the Havel [{1}], `x[{0}]` and 【99】."


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_markers_of_responses(name: str, streamed: bool) -> None:
    """A numbered marker becomes a link and a url_citation over it; a page that the next request finds
    again keeps its number."""
    items: list[Any] = []
    async with (
        serving_models(CALLS, native=(), hosts_search=True) as (proxy, models),
        openai_at(proxy) as client,
    ):
        for numbers in ((1, 2), (1, 2)):
            models[name].answer = MARKED.format(*numbers)
            items.append({"role": "user", "content": "Rivers?"})
            options: dict[str, Any] = {"model": name, "input": items, "tools": [{"type": "web_search"}]}
            if streamed:
                async with client.responses.stream(**options) as stream:
                    response = await stream.get_final_response()
            else:
                response = await client.responses.create(**options)
            links = [f"[[{number}]]({page})" for number, page in zip(numbers, PAGES, strict=True)]
            text = response.output_text
            start = f"\U0001f30a 河 e\u0301: the Spree{links[0]}, the Havel {links[1]}, `x[{numbers[0]}]`"
            assert text == f"{start} and 【99】."
            (part,) = response.model_dump()["output"][-1]["content"]
            notes = part["annotations"]
            assert [text[note["start_index"] : note["end_index"]] for note in notes] == links
            assert [note["url"] for note in notes] == PAGES
            items += [item.model_dump(exclude_none=True) for item in response.output]
    check_results(models[name])


class OtherPages(RecordedPages):
    """An engine that finds two pages nobody has seen before for each further question."""

    async def get_json(
        self, url: str, params: QueryParams | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        asked = str((params or {})["q"])
        if asked == SEARCH["query"]:
            return await super().get_json(url, params)
        return {"results": [{"url": page, "title": page, "content": ""} for page in other_pages(asked)]}


def other_pages(asked: str) -> list[str]:
    """The pages that the engine finds for a question."""
    return [f"https://{asked}.example/{at}" for at in (1, 2)]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_numbers_of_other_pages(name: str, streamed: bool) -> None:
    """Pages that a later request finds have the next numbers, and a marker of an earlier page still means
    that page."""
    items: list[Any] = []
    async with (
        serving_models(CALLS, native=(), hosts_search=True, http=OtherPages({})) as (proxy, models),
        openai_at(proxy) as client,
    ):
        found = [PAGES, other_pages("lakes"), other_pages("seas")]
        for turn, asked in enumerate((SEARCH["query"], "lakes", "seas")):
            models[name]._calls = {"web_search": {"query": asked}}
            items.append({"role": "user", "content": f"What about {asked}?"})
            first = 2 * turn + 1
            models[name].answer = f"【{first}】 and 【{first + 1}】, not 【{first + 2}】"
            options: dict[str, Any] = {"model": name, "input": items, "tools": [{"type": "web_search"}]}
            if streamed:
                async with client.responses.stream(**options) as stream:
                    response = await stream.get_final_response()
            else:
                response = await client.responses.create(**options)
            links = [f"[[{first + at}]]({page})" for at, page in enumerate(found[turn])]
            assert response.output_text == f"{links[0]} and {links[1]}, not 【{first + 2}】"
            (part,) = response.model_dump()["output"][-1]["content"]
            assert [note["url"] for note in part["annotations"]] == found[turn]
            items += [item.model_dump(exclude_none=True) for item in response.output]
        items.append({"role": "user", "content": "And again?"})
        models[name].answer = "【1】, 【4】"
        models[name]._calls = {"web_search": {"query": "more"}}
        last = await client.responses.create(model=name, input=items, tools=[{"type": "web_search"}])
        assert last.output_text == f"[[1]]({PAGES[0]}), [[4]]({found[1][1]})"


@pytest.mark.parametrize("streamed", [False, True])
async def test_markers_of_other_dialects(streamed: bool) -> None:
    """Numbered markers are citations in Messages and annotations in Chat, too."""
    async with (
        serving_models(CALLS, native=(), hosts_search=True) as (proxy, models),
        openai_at(proxy) as client,
        anthropic_at(proxy) as claude,
    ):
        for model in models.values():
            model.answer = MARKED.format(1, 2)
        tools: Any = [{"type": "web_search_20250305", "name": "web_search"}]
        question: Any = [{"role": "user", "content": "Rivers?"}]
        asked: dict[str, Any] = {"model": "gpt-4o-mini", "max_tokens": 1000, "messages": question}
        if streamed:
            async with claude.messages.stream(**asked, tools=tools) as stream:
                message = await stream.get_final_message()
        else:
            message = await claude.messages.create(**asked, tools=tools)
        texts = [block.model_dump() for block in message.content if block.type == "text"]
        cited = [(block["text"], note["url"]) for block in texts for note in block["citations"] or ()]
        assert [url for _, url in cited] == PAGES
        for at, (said, page) in enumerate(cited, start=1):
            # In a stream, text may have left before it is known that a link follows it.
            assert said.endswith(f"[[{at}]]({page})")
        body = {"model": "claude-opus-4-7", "messages": question, "extra_body": {"web_search_options": {}}}
        text, notes = "", list[Any]()
        if streamed:
            async for chunk in await client.chat.completions.create(stream=True, **body):
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    notes += choice.delta.model_dump().get("annotations") or []
        else:
            answer = (await client.chat.completions.create(**body)).choices[0].message
            text, notes = answer.content or "", answer.model_dump().get("annotations") or []
        found = [note["url_citation"] for note in notes]
        assert [text[one["start_index"] : one["end_index"]] for one in found] == [
            f"[[{at}]]({page})" for at, page in enumerate(PAGES, start=1)
        ]


READ: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
MIXED = {"web_search": SEARCH, "read": {"path": "a.txt"}}


@pytest.mark.parametrize("calls", [MIXED, dict(reversed(MIXED.items()))], ids=["ours first", "theirs first"])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_mixed_turns_of_messages(
    name: str, streamed: bool, calls: Mapping[str, Mapping[str, Any]]
) -> None:
    """A search and a call of the client's own tool in one turn: each side answers its own call, the search
    and its result stand before the client's call, and the next answer cites what was found."""
    messages: list[Any] = [{"role": "user", "content": QUESTIONS[0]}]
    async with (
        serving_models(calls, native=(), hosts_search=True) as (proxy, models),
        anthropic_at(proxy) as client,
    ):
        models[name].answer = LINKED
        tools = [
            {"type": "web_search_20250305", "name": "web_search"},
            {"name": "read", "description": "Read a file", "input_schema": READ},
        ]
        options: dict[str, Any] = {"model": name, "max_tokens": 1000, "messages": messages, "tools": tools}
        reasons = []
        for _ in range(2):
            if streamed:
                async with client.messages.stream(**options) as stream:
                    message = await stream.get_final_message()
            else:
                message = await client.messages.create(**options)
            reasons.append(message.stop_reason)
            blocks = [block.model_dump() for block in message.content]
            messages.append({"role": "assistant", "content": blocks})
            results = [
                {"type": "tool_result", "tool_use_id": block["id"], "content": "the file"}
                for block in blocks
                if block["type"] == "tool_use"
            ]
            messages.append({"role": "user", "content": results})
    assert reasons == ["tool_use", "end_turn"]
    answer = [block for block in messages[3]["content"] if block["type"] == "text"]
    assert [note["url"] for block in answer for note in block["citations"] or ()] == PAGES
    kinds = [block["type"] for block in messages[1]["content"] if block["type"] != "thinking"]
    assert kinds == ["server_tool_use", "web_search_tool_result", "tool_use"]
    theirs, ours = sorted(models[name].results)
    assert PAGES[0] in ours
    assert theirs == "the file"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MODELS)
async def test_mixed_turns_of_responses(name: str, streamed: bool) -> None:
    """A search and a call of the client's own function in one turn of Responses; the next answer cites what
    was found, also by its number."""
    items: list[Any] = [{"role": "user", "content": QUESTIONS[0]}]
    async with (
        serving_models(MIXED, native=(), hosts_search=True) as (proxy, models),
        openai_at(proxy) as client,
    ):
        models[name].answer = "See 【2】."
        function = {"type": "function", "name": "read", "parameters": READ, "strict": False}
        options: dict[str, Any] = {"model": name, "input": items, "tools": [{"type": "web_search"}, function]}
        for _ in range(2):
            if streamed:
                async with client.responses.stream(**options) as stream:
                    async for _ in stream:
                        pass
                    response = await stream.get_final_response()
            else:
                response = await client.responses.create(**options)
            items += [item.model_dump(exclude_none=True) for item in response.output]
            for item in response.output:
                if item.type == "function_call":
                    output = {"type": "function_call_output", "call_id": item.call_id, "output": "the file"}
                    items.append(output)
        assert response.output_text == f"See [[2]]({PAGES[1]})."
        (note,) = response.model_dump()["output"][-1]["content"][0]["annotations"]
        assert note["url"] == PAGES[1]
    assert [item.get("type") for item in items].count("web_search_call") == 1
    ours, theirs = models[name].results
    assert PAGES[0] in ours
    assert theirs == "the file"
