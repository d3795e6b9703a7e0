"""The results of searches that clients carry: read again for their caller, and for nobody else."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.wires.anthropic.blocks import OUR_CALL
from proxy.wires.anthropic.hosted.sealed_results import SealedResults
from proxy.wires.hosted.tools import FoundPage

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
PAGE = FoundPage("https://a.example/", "A", "The text of the page.", "2026-11-29")
CALL = f"{OUR_CALL}1"


USE = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}


def message(
    sealed: str, call_id: str = CALL, *, before: Sequence[Any] = (), after: Sequence[Any] = ()
) -> dict[str, Any]:
    """The message that shows a search, with more blocks before it and at the end."""
    found = {"type": "web_search_result", "url": PAGE.url, "title": "A", "encrypted_content": sealed}
    return {
        "role": "assistant",
        "content": [
            *before,
            {"type": "text", "text": "I search."},
            {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": call_id, "content": [found]},
            {"type": "text", "text": "Found."},
            *after,
        ],
    }


def turns(caller: str, said: dict[str, Any], *keys: bytes) -> list[tuple[int, Any]]:
    """Return the turns that a caller carries, behind a question."""
    results = SealedResults(keys or (KEY,), caller)
    return [
        (position, [json.loads(one) for one in json.loads(turn)["messages"]])
        for position, turn in results.turns([{"role": "user", "content": "?"}, said])
    ]


def test_a_search_comes_back() -> None:
    """What the caller sends back becomes the call, its result and the answer; old keys still decrypt."""
    sealed = SealedResults((OTHER_KEY,), "me").close(CALL, PAGE)
    ((position, messages),) = turns("me", message(sealed), KEY, OTHER_KEY)
    assert position == 1
    asked, answered, said = messages
    use = asked["content"][1]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "web_search", {"query": "q"})
    (result,) = answered["content"]
    assert result["tool_use_id"] == use["id"]
    page = {"url": PAGE.url, "title": "A", "text": PAGE.text, "date": PAGE.date}
    assert json.loads(result["content"]) == {"results": [page]}
    assert said == {"role": "assistant", "content": [{"type": "text", "text": "Found."}]}


def test_a_long_page_is_cut() -> None:
    """A client carries the beginning of a page: all of it comes with each later request."""
    sealed = SealedResults((KEY,), "me").close(CALL, FoundPage(PAGE.url, "A", "x" * 100_000))
    assert len(sealed) < 3000
    ((_, messages),) = turns("me", message(sealed))
    assert json.loads(messages[1]["content"][0]["content"])["results"][0]["text"] == "x" * 2000


@pytest.mark.parametrize("case", ["another caller", "another call", "changed", "plain", "key", "no text"])
def test_what_is_forged_is_left_out(case: str) -> None:
    """A result of another caller, call or key, or one that was changed or made up, is no result."""
    results = SealedResults(
        (OTHER_KEY if case == "key" else KEY,), "you" if case == "another caller" else "me"
    )
    sealed: Any = results.close(f"{OUR_CALL}2" if case == "another call" else CALL, PAGE)
    if case == "changed":
        sealed = sealed[:-8] + ("A" if sealed[-8] != "A" else "B") + sealed[-7:]
    if case in ("plain", "no text"):
        sealed = "toolrelay" if case == "plain" else 7
    assert turns("me", message(sealed)) == []


def test_what_only_the_record_has() -> None:
    """A message with a client's call before a search is none of the proxy's, nor is one with others' ids."""
    sealed = SealedResults((KEY,), "me").close(CALL, PAGE)
    assert turns("me", message(sealed, before=[USE])) == []
    assert turns("me", message(sealed, "srvtoolu_theirs")) == []


def test_a_mixed_turn_comes_back() -> None:
    """A client's calls behind a search are a turn of their own, whose results are in the next message."""
    sealed = SealedResults((KEY,), "me").close(CALL, PAGE)
    ((_, messages),) = turns("me", message(sealed, after=[USE]))
    assert [block["type"] for one in messages for block in one["content"]] == [
        *("text", "tool_use"),
        "tool_result",
        *("text", "tool_use"),
    ]
    assert messages[-1]["content"][-1] == USE
