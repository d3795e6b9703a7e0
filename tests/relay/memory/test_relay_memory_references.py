"""Items of the proxy's own responses that a request names by id, on an upstream of another dialect."""

import json
from typing import Any

import pytest
import responses_script as responses
from chat_script import call, content, finish, role, stream
from looping import ANSWER, ECHO, looping, messages_of
from raw_upstream import Step
from responses_check import check_response_stream
from running_proxy import Proxy

from proxy.base.errors import StoreError
from proxy.wires.responses.items import is_reference, mint_item_id, response_of

ASK: dict[str, Any] = {"model": "m", "stream": True, "input": [responses.user("hi")]}
PATH = "/v1/responses"
CHAT = {"served": {"wires": ["chat"]}}
CALLS: list[Step] = stream(
    role(), content("Wait. "), call("call_1", ECHO, '{"text":"noon"}'), finish("tool_calls")
)


async def first_items(proxy: Proxy, **more: Any) -> list[dict[str, Any]]:
    """Ask with a server tool, and return the items of the response."""
    read = check_response_stream((await proxy.ask({**ASK, **more}, path=PATH)).body, hidden=(ECHO,))
    return list(read.response["output"])


def naming(items: list[dict[str, Any]], *, typed: bool = True) -> dict[str, Any]:
    """A request that names these items."""
    named = [{"id": item["id"], **({"type": "item_reference"} if typed else {})} for item in items]
    return {**ASK, "input": [*ASK["input"], *named, responses.user("and?")]}


@pytest.mark.parametrize("typed", [True, False])
async def test_hidden_turns_behind_named_items_are_restored(typed: bool) -> None:
    """Rule R4: hidden turns behind referenced items are restored as if the client had sent the items."""
    async with looping(CALLS, ANSWER, ANSWER, **CHAT) as (proxy, upstream):
        items = await first_items(proxy)
        assert [item["type"] for item in items] == ["message", "message"]
        again = await proxy.ask(naming(items, typed=typed), path=PATH)
        assert check_response_stream(again.body).response["status"] == "completed"
        assert again.header("x-toolrelay-restored")
    sent = messages_of(upstream.requests[2])
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert sent[1]["content"] == "Wait. "
    assert sent[3]["content"] == "It is noon."


async def test_items_of_one_response_share_its_id() -> None:
    """An item's id contains that of its response, so no index is needed, and has at most 64 characters."""
    async with looping(CALLS, ANSWER, **CHAT) as (proxy, _):
        read = check_response_stream((await proxy.ask(ASK, path=PATH)).body, hidden=(ECHO,))
    items = read.response["output"]
    assert {response_of(item["id"]) for item in items} == {read.id}
    assert all(len(item["id"]) <= 64 for item in items)
    assert len({item["id"] for item in items}) == len(items)


async def test_an_untrusted_result_behind_a_named_item_counts() -> None:
    """Rule T2: an untrusted result behind a referenced item withholds tools in the next request."""
    page = stream(role(), call("call_1", "probe_tools__page", "{}"), finish("tool_calls"))
    async with looping(page, ANSWER, ANSWER, **CHAT) as (proxy, upstream):
        items = await first_items(proxy)
        await proxy.ask(naming(items), {"x-toolrelay-history": "off"}, path=PATH)
    first, last = (json.loads(upstream.requests[at].body)["tools"] for at in (0, 2))
    names = [{tool["function"]["name"] for tool in tools} for tools in (first, last)]
    assert "probe_tools__buy" in names[0] - names[1]


async def test_a_record_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store cannot say what an item is, the client gets a 503 and the upstream gets no request."""
    async with looping(CALLS, ANSWER, **CHAT) as (proxy, upstream):
        items = await first_items(proxy)

        async def fail(response_id: str, caller: str) -> None:
            raise StoreError("away")

        monkeypatch.setattr(proxy.services.store, "find_response", fail)
        answer = await proxy.ask(naming(items), path=PATH)
        assert (answer.status, answer.error["code"]) == (503, "store_unavailable")
        assert len(upstream.requests) == 2


@pytest.mark.parametrize(
    ("item", "is_one"),
    [
        ({"type": "item_reference", "id": "msg_1"}, True),
        ({"id": "msg_1"}, True),
        ({"id": "msg_1", "type": None}, True),
        ({"role": "user", "content": "x", "id": "msg_1"}, False),
        ({"content": "x"}, False),
        ({"type": "message", "id": "msg_1"}, False),
    ],
)
def test_a_reference_may_have_no_type(item: dict[str, Any], is_one: bool) -> None:
    """An object with an id and without a type is a reference, too, as the API reference says."""
    assert is_reference(item) is is_one


def test_only_ids_of_ours_name_a_response() -> None:
    """Only item ids that the proxy made contain the id of a response."""
    response = mint_item_id("response")
    assert response_of(mint_item_id("function_call", response)) == response
    for other in (mint_item_id("message"), "msg_1", "", f"msg_{'G' * 56}", f"msg_{'a' * 57}"):
        assert response_of(other) == ""
