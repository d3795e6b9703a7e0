"""The provider's fetch of pages, run by a server tool: its blocks and items, its limits, and its errors."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from provider_models import FETCHING, SEARCH, RecordedPages, serving_models

from proxy.base.events import ToolCall, ToolResult
from proxy.relay.run.hosted.limits import bound_arguments, limited_later
from proxy.tools.contract.capabilities import TextPage
from proxy.tools.contract.spec import ToolEffect, ToolSpec
from proxy.wires.anthropic.hosted.tools import FetchForm
from proxy.wires.hosted.tools import web_fetch

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
HEADERS = {"anthropic-version": "2023-06-01"}
FETCH = {"type": "web_fetch_20250910", "name": "web_fetch"}
PAGE = "https://notes.example/rivers"
PAGES = {
    PAGE: "The Spree flows through Berlin.",
    "https://en.wikipedia.org/wiki/Spree_(river)": "The Spree is a river.",
}
QUESTION = f"What does {PAGE} say?"
APPROVAL = re.compile(r"appr_[0-9a-f]+")
MODELS = ["gpt-4o-mini", "claude-3-5-haiku-20241022", "qwen3", "gpt-5-2025-08-07"]


def asked(*tools: Mapping[str, Any], said: Any = QUESTION, **more: Any) -> dict[str, Any]:
    """A request of Messages that declares these tools."""
    messages = said if isinstance(said, list) else [{"role": "user", "content": said}]
    return {"model": "gpt-4o-mini", "max_tokens": 100, "messages": messages, "tools": tools, **more}


def error_of(answer: Any) -> list[str]:
    """Return the codes of the fetches that failed in an answer."""
    blocks = [one for one in answer.json["content"] if one["type"] == "web_fetch_tool_result"]
    return [block["content"].get("error_code", "") for block in blocks]


@pytest.mark.parametrize("model", MODELS)
async def test_a_fetch_of_messages(model: str) -> None:
    """The client sees the call, the document and the count; the model reads the page, now and later."""
    async with serving_models({"web_fetch": {"url": PAGE}}, native=(), hosts_search=True, pages=PAGES) as (
        proxy,
        models,
    ):
        tool = {**FETCH, "citations": {"enabled": True}}
        answer = await proxy.ask(asked(tool, model=model), HEADERS, path=MESSAGES)
        content = answer.json["content"]
        again = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": content}]
        again.append({"role": "user", "content": "Sure?"})
        models[model]._calls = {}
        second = await proxy.ask(asked(tool, said=again, model=model), HEADERS, path=MESSAGES)
        results = models[model].results
    use, result = (one for one in content if one["type"] in ("server_tool_use", "web_fetch_tool_result"))
    assert (use["name"], use["input"]) == ("web_fetch", {"url": PAGE})
    document = result["content"].pop("content")
    assert result["content"].pop("retrieved_at").endswith("+00:00")
    assert result["content"] == {"type": "web_fetch_result", "url": PAGE}
    assert result["tool_use_id"] == use["id"]
    assert document == {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": PAGES[PAGE]},
        "title": PAGE,
        "citations": {"enabled": True},
    }
    assert answer.json["usage"]["server_tool_use"] == {"web_fetch_requests": 1}
    assert second.status == 200
    (found,) = results
    assert PAGES[PAGE] in found


async def test_a_stream_of_messages() -> None:
    """On a stream the blocks come whole, and each error is a block of a 200."""
    calls = {"web_fetch": {"url": "https://invented.example/"}}
    async with serving_models(calls, native=(), hosts_search=True, pages=PAGES) as (proxy, _):
        answer = await proxy.ask(asked(FETCH, stream=True), HEADERS, path=MESSAGES)
    assert answer.status == 200
    assert b'"error_code":"url_not_in_prior_context"' in answer.body
    assert answer.body.count(b"web_fetch_tool_result_error") == 1


@pytest.mark.parametrize("model", MODELS)
async def test_a_page_that_is_opened_on_responses(model: str) -> None:
    """A client of Responses that declares a search sees a page that the model opens as open_page."""
    async with serving_models({"web_search": SEARCH}, native=(), hosts_search=True, pages=PAGES) as (
        proxy,
        models,
    ):
        models[model].then = [{"web_fetch": {"url": "https://en.wikipedia.org/wiki/Spree_(river)"}}]
        body = {"model": model, "input": "Rivers?", "tools": [{"type": "web_search"}]}
        answer = await proxy.ask(body, path=RESPONSES)
    items = [item for item in answer.json["output"] if item["type"] == "web_search_call"]
    assert [item["action"]["type"] for item in items] == ["search", "open_page"]
    assert items[1]["action"] == {"type": "open_page", "url": "https://en.wikipedia.org/wiki/Spree_(river)"}
    assert [item["status"] for item in items] == ["completed", "completed"]


async def test_the_domains_of_a_search_hold_for_pages() -> None:
    """The domains that a search of Responses allows limit the pages that the model opens."""
    async with serving_models({"web_fetch": {"url": PAGE}}, native=(), hosts_search=True, pages=PAGES) as (
        proxy,
        models,
    ):
        tool = {"type": "web_search", "filters": {"allowed_domains": ["en.wikipedia.org"]}}
        body = {"model": "gpt-4o-mini", "input": QUESTION, "tools": [tool]}
        answer = await proxy.ask(body, path=RESPONSES)
        (result,) = models["gpt-4o-mini"].results
    (item, _) = answer.json["output"]
    assert (item["status"], item["action"]["url"]) == ("failed", PAGE)
    assert "does not allow pages of this domain" in result


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ({"allowed_domains": ["example"]}, ""),
        ({"allowed_domains": ["other.example"]}, "url_not_allowed"),
        ({"blocked_domains": ["notes.example"]}, "url_not_allowed"),
        ({"blocked_domains": ["notes.example/lakes"]}, ""),
    ],
)
async def test_domains(tool: Mapping[str, Any], code: str) -> None:
    """The domains of a declaration limit the pages, whatever server tool fetches them."""
    async with serving_models({"web_fetch": {"url": PAGE}}, native=(), hosts_search=True, pages=PAGES) as (
        proxy,
        _,
    ):
        answer = await proxy.ask(asked({**FETCH, **tool}), HEADERS, path=MESSAGES)
        (row,) = (await proxy.only_run()).invocations
    assert error_of(answer) == [code]
    if code:
        assert row.decision == "refused: url_not_allowed (tools.hosted.web_fetch)"


async def test_the_most_of_a_page() -> None:
    """max_content_tokens cuts the page for the model and for the client alike."""
    pages = {PAGE: "x" * 5000}
    async with serving_models({"web_fetch": {"url": PAGE}}, native=(), hosts_search=True, pages=pages) as (
        proxy,
        models,
    ):
        answer = await proxy.ask(asked({**FETCH, "max_content_tokens": 250}), HEADERS, path=MESSAGES)
        (read,) = models["gpt-4o-mini"].results
    assert json.loads(read)["text"] == "x" * 1000
    block = next(one for one in answer.json["content"] if one["type"] == "web_fetch_tool_result")
    assert block["content"]["content"]["source"]["data"] == "x" * 1000


async def test_the_most_of_a_page_that_is_read_on() -> None:
    """What the model reads on of a page is bounded by max_content_tokens, too."""
    pages = {PAGE: "".join(f"{number:07} " for number in range(50_000))}
    calls = {"web_fetch": {"url": PAGE, "max_characters": 400_000}}
    async with serving_models(calls, native=(), hosts_search=True, pages=pages) as (proxy, models):
        model = models["gpt-4o-mini"]
        question = asked({**FETCH, "max_content_tokens": 20_000})
        await proxy.ask(question, HEADERS, path=MESSAGES)
        (handle,) = re.findall(r"res_[0-9a-f]{32}", model.results[0])
        model.then = [{"core__read_result": {"handle": handle, "offset": 79_000}}]
        await proxy.ask(question, HEADERS, path=MESSAGES)
        last = model.results[-1]
    assert "this is the end" in last
    assert "0009999" in last
    assert "0010000" not in last


def test_a_page_of_another_tool_that_could_be_read_on() -> None:
    """Where the tool cannot bound a page, its beginning alone is given, without words on how to read on."""
    tool = web_fetch("tools[0]", {}, FetchForm(cites=False), most_tokens=5)
    note = '\n[toolrelay: the result was 9 bytes; To read on call core__read_result with handle "res_1"]\n'
    for given, left in (({"url": PAGE}, "The beginning"), ({"url": PAGE, "max_characters": 20}, None)):
        content = f"The beginning{note}the end"
        result = ToolResult("c", True, content, truncated=True, arguments_redacted=given)
        limited = limited_later([(tool, "mcp__s__x")], "mcp__s__x", result).content
        assert limited == (content[:20] if left is None else left)


@pytest.mark.parametrize(
    ("schema", "most"), [({"maximum": 8}, 8), ({"maximum": 80}, 20), ({}, 20), (True, 20)]
)
def test_the_most_that_a_tool_takes(schema: Any, most: int) -> None:
    """A tool gets the bound of a page within its own, also where the schema of the argument is ``true``."""
    tool = web_fetch("tools[0]", {}, FetchForm(cites=False), most_tokens=5)
    shape = {"type": "object", "properties": {"url": {"type": "string"}, "max_characters": schema}}
    spec = ToolSpec("mcp__s__x", "", shape, ToolEffect.READ_ONLY, "s", lambda given: given, "")
    call = ToolCall("c", "web_fetch", json.dumps({"url": PAGE}), 0)
    assert json.loads(bound_arguments(tool, call, spec)) == {"url": PAGE, "max_characters": most}


class Redirected(RecordedPages):
    """Pages that all redirect to one of another host, with a text of this length."""

    def __init__(self, characters: int) -> None:
        super().__init__({})
        self._characters = characters

    async def get_text(self, url: str) -> TextPage:
        return TextPage("https://elsewhere.example/", "text/plain", "x" * self._characters)


@pytest.mark.parametrize("characters", [10, 500_000])
async def test_a_redirect_out_of_the_domains(characters: int) -> None:
    """A page of a domain that is not allowed is not given, also if it is so large that its middle is left
    out."""
    pages = Redirected(characters)
    calls = {"web_fetch": {"url": PAGE}}
    async with serving_models(calls, native=(), hosts_search=True, pages={}, http=pages) as (proxy, models):
        tool = {**FETCH, "allowed_domains": ["notes.example"]}
        answer = await proxy.ask(asked(tool), HEADERS, path=MESSAGES)
        (result,) = models["gpt-4o-mini"].results
    assert error_of(answer) == ["url_not_allowed"]
    assert "xxx" not in result


@pytest.mark.parametrize("limit", [{"max_content_tokens": 2}, {"blocked_domains": ["elsewhere.example"]}])
async def test_limits_of_a_fetch_that_was_approved(limit: Mapping[str, Any]) -> None:
    """What a declaration limits stays so where a person approved the call before; then it has its price."""
    needed: dict[str, Any] = {
        "policy": {"approve": ("web__fetch_page",)},
        "approvals": {"enabled": True, "by": "caller"},
    }
    calls = {"web_fetch": {"url": PAGE}}
    tools = {**FETCHING, "prices": {"web__fetch_page": 0.01}}
    async with serving_models(
        calls, native=(), hosts_search=True, pages={}, http=Redirected(1000), tools=tools, **needed
    ) as (proxy, models):
        question = asked({**FETCH, **limit})
        waiting = await proxy.ask(question, HEADERS, path=MESSAGES)
        (id_,) = APPROVAL.findall(waiting.json["content"][-1]["text"])[:1]
        messages = [
            *question["messages"],
            {"role": "assistant", "content": waiting.json["content"]},
            {"role": "user", "content": "Go on."},
        ]
        approved = {**HEADERS, "x-toolrelay-approve": id_}
        answer = await proxy.ask({**question, "messages": messages}, approved, path=MESSAGES)
        result = models["gpt-4o-mini"].results[-1]
        costs = [run.cost for run in await proxy.runs()]
    assert answer.status == 200
    assert costs == [10_000_000, None]
    assert "x" * 9 not in result
    assert ("does not allow" in result) is ("blocked_domains" in limit)


async def test_max_uses_of_fetches() -> None:
    """Fetches beyond max_uses do not run; the client sees the address that was asked for."""
    async with serving_models({"web_fetch": {"url": PAGE}}, native=(), hosts_search=True, pages=PAGES) as (
        proxy,
        models,
    ):
        models["gpt-4o-mini"].repeats = 2
        answer = await proxy.ask(asked({**FETCH, "max_uses": 1}), HEADERS, path=MESSAGES)
    assert sorted(error_of(answer)) == ["", "max_uses_exceeded"]
    uses = [one["input"] for one in answer.json["content"] if one["type"] == "server_tool_use"]
    assert uses == [{"url": PAGE}] * 2


async def test_a_page_that_is_not_there() -> None:
    """A page that cannot be reached has its code, and is not counted."""
    async with serving_models({"web_fetch": {"url": PAGE}}, native=(), hosts_search=True, pages={}) as (
        proxy,
        _,
    ):
        answer = await proxy.ask(asked(FETCH), HEADERS, path=MESSAGES)
    assert error_of(answer) == ["url_not_accessible"]
    assert "server_tool_use" not in answer.json["usage"]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"max_content_tokens": "many"}, "tools[0].max_content_tokens"),
        ({"max_uses": 0}, "tools[0].max_uses"),
        ({"allowed_domains": [""]}, "tools[0].allowed_domains"),
        ({"url_sources": {"user_input": {"type": "none"}}}, "tools[0].url_sources"),
    ],
)
async def test_odd_declarations(tool: Mapping[str, Any], param: str) -> None:
    """A declaration that cannot be read, or not be obeyed, is a 400 that names the field."""
    async with serving_models({}, native=(), hosts_search=True, pages=PAGES) as (proxy, _):
        answer = await proxy.ask(asked({**FETCH, **tool}), HEADERS, path=MESSAGES)
    assert answer.status == 400
    assert param in answer.json["error"]["message"]


async def test_no_tools_and_a_declared_tool() -> None:
    """A request that wants no server tool and declares one that needs it is refused, not served half."""
    async with serving_models({}, native=(), hosts_search=True, pages=PAGES) as (proxy, _):
        answer = await proxy.ask(asked(FETCH), {**HEADERS, "x-toolrelay-tools": "none"}, path=MESSAGES)
    assert answer.status == 400
    assert "the body declares web_fetch" in answer.json["error"]["message"]


async def test_tokens_are_counted_with_the_tools() -> None:
    """The provider counts the server tools that it gets with the question itself."""
    model = "claude-3-5-haiku-20241022"
    async with serving_models({}, native=(), hosts_search=True, pages=PAGES) as (proxy, models):
        question = asked(FETCH, model=model)
        await proxy.ask(question, HEADERS, path=MESSAGES)
        question.pop("max_tokens")
        await proxy.ask(question, HEADERS, path=f"{MESSAGES}/count_tokens")
        sent, counted = (one.payload["tools"] for one in models[model].asked)
    assert counted == sent
    assert {tool["name"] for tool in counted} >= {"web_fetch"}
