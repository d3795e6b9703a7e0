"""Call ids of any length come back from the client and go back to the model; only the record shortens them.

LiteLLM puts Gemini's thought signatures into call ids (https://github.com/BerriAI/litellm/pull/16895).
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from looping import ECHO
from pair_kits import PAIRS, Call, Message, Turn
from pair_runs import ANSWER, QUESTION, SAY, pair_of, scripts

from proxy.records.rows import recorded_call_id

SIGNATURE = "CiQB+/jz9A0=" * 300
OURS = f"call_1__thought__{SIGNATURE}"
THEIRS = f"call_2__thought__{SIGNATURE}"
MIXED = Turn("", (Call(OURS, ECHO, SAY), Call(THEIRS, "mine", {"a": 1})))
gateways = pytest.mark.accepts(
    "chat-calls",
    "responses-ids",
    "messages-members",
    "messages-answers",
    why="gateways take their own ids back",
)
each_pair = pytest.mark.parametrize(("client", "upstream"), PAIRS, ids=[f"{c}-{u}" for c, u in PAIRS])


@gateways
@each_pair
async def test_a_long_id_is_accepted_back(client: str, upstream: str, tmp_path: Path) -> None:
    """Rules W8, R4: a mixed turn with ids of 3,600 characters is put back whole; its record has short ids."""
    url = f"sqlite:///{tmp_path / 'record.db'}"
    config: dict[str, Any] = {"store": {"url": url}}
    async with pair_of(client, upstream, *scripts(upstream, MIXED, ANSWER), **config) as pair:
        seen = pair.client.seen(await pair.ask([QUESTION], tools=["mine"]), hidden=(ECHO,))
        returned = [QUESTION, *seen.returned, Message("tool", "mine too", call_id=seen.calls[0].id)]
        last = pair.client.seen(await pair.ask(returned, tools=["mine"]), hidden=(ECHO,))
        assert (last.text, last.error) == ("It is noon.", "")
        _, second = pair.got()
    assert [call[1:] for call in second.calls] == [call[1:] for call in MIXED.calls]
    theirs, ours = (second.results[call.id] for call in reversed(second.calls))
    assert (theirs, "noon" in ours) == ("mine too", True)
    if "ollama" not in (client, upstream) and upstream in (client, "chat"):
        assert second.calls == list(MIXED.calls), "gateways keep data in the ids"
    with closing(sqlite3.connect(tmp_path / "record.db")) as record:
        (recorded,) = [row[0] for row in record.execute("SELECT call_id FROM tool_invocations")]
    assert len(recorded) <= 128
    if upstream != "ollama":
        assert recorded == recorded_call_id(OURS)


def test_recorded_ids_stay_short_and_different() -> None:
    """A usual id is recorded as it is; others are cut, and a digest keeps them apart."""
    assert recorded_call_id("call_1") == "call_1"
    assert recorded_call_id("c" * 128) == "c" * 128
    long = [recorded_call_id(one) for one in ("c" * 129, "c" * 130, "c\n", "c\t", "c\ud800")]
    assert len(set(long)) == 5
    assert all(len(one) <= 128 and one.isascii() and one.isprintable() for one in long)
    assert [recorded_call_id(one) for one in long] == long
