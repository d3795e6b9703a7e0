"""What a run's record says of memory: which turns were restored from which run, and why others were not."""

from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
from chat_script import content, finish, payloads_of, role, stream, text_of
from hypothesis import given
from hypothesis import strategies as st
from looping import ANSWER, ASK, CLIENT_TOOL, TIME, called, looping
from prometheus_client.parser import text_string_to_metric_families
from raw_upstream import whole
from running_proxy import Proxy

from proxy.base.errors import StoreError
from proxy.records.rows import RunRecord
from proxy.relay.memory.hidden.outcomes import MEANINGS, MemoryOutcome, PutBack, Recall

UTC = '{"timezone":"UTC"}'
HI = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "It is noon."}
THANKS = {"role": "user", "content": "thanks"}
CALL = called(("call_s", TIME, UTC))
WELCOME = stream(role(), content("Welcome."), finish())
MIXED = called(("call_s", TIME, UTC), ("call_c", "mine", "{}"))
MINE = {"id": "call_c", "type": "function", "function": {"name": "mine", "arguments": "{}"}}
MIXED_ASK: dict[str, Any] = {**ASK, "tools": [CLIENT_TOOL]}
RESULT = {"role": "tool", "tool_call_id": "call_c", "content": "7"}


def ask(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**ASK, "messages": list(messages), **more}


def back(call: dict[str, Any] = MINE) -> dict[str, Any]:
    """A request with the client's results, after the call that the client was shown."""
    return {
        **MIXED_ASK,
        "messages": [HI, {"role": "assistant", "content": None, "tool_calls": [call]}, RESULT],
    }


async def in_order(proxy: Proxy) -> list[RunRecord]:
    """The runs on record, the oldest first."""
    return list(reversed(await proxy.runs()))


def counts(run: RunRecord) -> dict[str, int]:
    return {} if run.memory is None else dict(run.memory["counts"])


async def counted(proxy: Proxy) -> dict[str, float]:
    """The outcomes that ``/metrics`` counts."""
    answer = await proxy.get("/metrics")
    return {
        sample.labels["outcome"]: sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
        if sample.name == "toolrelay_memory_total"
    }


async def test_a_run_says_from_which_run_turns_came_back_and_how_many_bytes() -> None:
    """The record of the later run names the earlier run and the bytes, and each run leads to the other."""
    async with looping(CALL, ANSWER, WELCOME) as (proxy, _):
        await proxy.ask(ask(HI))
        answer = await proxy.ask(ask(HI, SAID, THANKS))
        first, second = await in_order(proxy)
        size = int(str(answer.header("x-toolrelay-restored")).rpartition("=")[2])
        assert first.memory is None
        assert second.memory == {
            "put_back": [{"run": first.id, "kind": "answer", "bytes": size, "loosely": False}],
            "counts": {"put_back": 1},
        }
        assert (first.continues, second.continues) == ("", first.id)
        detail = await proxy.services.store.get_run(first.id)
        assert detail is not None
        assert [run.id for run in detail.continued_by] == [second.id]
        assert await counted(proxy) == {"put_back": 1}


async def test_a_suspended_run_and_the_one_that_goes_on_know_each_other() -> None:
    """A turn that waited for the client's results links both runs, and a third run names them, too."""
    async with looping(MIXED, ANSWER, WELCOME) as (proxy, _):
        await proxy.ask(MIXED_ASK)
        assert text_of(payloads_of((await proxy.ask(back())).body)) == "It is noon."
        await proxy.ask({**MIXED_ASK, "messages": [*back()["messages"], SAID, THANKS]})
        first, second, third = await in_order(proxy)
        assert (first.status, second.continues) == ("suspended", first.id)
        assert second.memory is not None
        assert second.memory["put_back"][0]["kind"] == "calls"
        assert third.memory is not None
        # The answer of the second run follows the turn of the first one.
        assert {one["run"] for one in third.memory["put_back"]} <= {first.id, second.id}
        detail = await proxy.services.store.get_run(first.id)
        assert detail is not None
        assert second.id in [run.id for run in detail.continued_by]


NOT: dict[str, tuple[list[Any], dict[str, Any], list[Any], list[tuple[str, str]], MemoryOutcome]] = {
    "the model used no tool": (
        [ANSWER, WELCOME], {}, [ask(HI), ask(HI, SAID, THANKS)], [], "nothing_hidden",
    ),
    "an edited answer": (
        [CALL, ANSWER, WELCOME],
        {},
        [ask(HI), ask(HI, {"role": "assistant", "content": "It is one."}, THANKS)],
        [],
        "not_found",
    ),
    "two pasts": (
        [CALL, ANSWER, called(("call_s", TIME, '{"timezone":"Europe/Berlin"}')), ANSWER, WELCOME],
        {},
        [ask(HI), ask(HI), ask(HI, SAID, THANKS)],
        [],
        "ambiguous",
    ),
    "another call than it was shown": (
        [MIXED, ANSWER],
        {},
        [MIXED_ASK, back({**MINE, "function": {"name": "mine", "arguments": '{"a":1}'}})],
        [],
        "changed",
    ),
    "results of a call that nobody held": ([WELCOME], {}, [back()], [], "no_held_turn"),
    "the header": (
        [CALL, ANSWER, WELCOME],
        {},
        [ask(HI), ask(HI, SAID, THANKS)],
        [("x-toolrelay-history", "off")],
        "off",
    ),
    "the setting": (
        [CALL, ANSWER, WELCOME],
        {"store": {"url": "memory:", "history": False}},
        [ask(HI), ask(HI, SAID, THANKS)],
        [],
        "off",
    ),
    "nobody is named": (
        [CALL, ANSWER, WELCOME],
        {"auth": {"end_user": "header:x-user"}},
        [ask(HI), ask(HI, SAID, THANKS)],
        [],
        "no_person",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT)
async def test_a_run_says_why_nothing_was_put_back(case: str) -> None:
    """The record of the newest run has the one reason that fits, no restored turn and no earlier run."""
    scripts, config, asked, headers, outcome = NOT[case]
    async with looping(*scripts, **config) as (proxy, _):
        for body in asked:
            await proxy.ask(body, headers)
        *_, newest = await in_order(proxy)
    assert newest.memory == {"put_back": [], "counts": {outcome: 1}}
    assert newest.continues == ""


async def test_what_was_too_long_is_told_as_taken_out_again() -> None:
    """Turns that the upstream found too long count as ``too_long``, and the run names no earlier run."""
    said = b'{"error":{"message":"maximum context length","code":"context_length_exceeded"}}'
    long = whole(said, status="400 Bad Request")
    async with looping(CALL, ANSWER, long, WELCOME) as (proxy, _):
        await proxy.ask(ask(HI))
        answer = await proxy.ask(ask(HI, SAID, THANKS))
        assert (answer.status, answer.header("x-toolrelay-restored")) == (200, None)
        *_, newest = await in_order(proxy)
    assert newest.memory == {"put_back": [], "counts": {"too_long": 1}}
    assert newest.continues == ""


async def test_a_record_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the look-up of hidden turns fails, the run counts it as ``unavailable``."""
    async with looping(CALL, ANSWER, WELCOME) as (proxy, _):
        await proxy.ask(ask(HI))

        async def broken(keys: Any, caller: str) -> Any:
            raise StoreError("gone")

        monkeypatch.setattr(proxy.services.store, "find_hidden", broken)
        await proxy.ask(ask(HI, SAID, THANKS))
        *_, newest = await in_order(proxy)
    assert counts(newest) == {"unavailable": 1}


async def test_a_first_request_has_no_memory_to_tell_of(tmp_path: Path) -> None:
    """A first request has no outcome, neither on record nor in the metrics, also with a database."""
    store = {"url": f"sqlite:///{tmp_path}/r.db"}
    async with looping(CALL, ANSWER, store=store) as (proxy, _):
        await proxy.ask(ask(HI))
        (only,) = await in_order(proxy)
        assert (only.memory, only.continues) == (None, "")
        assert await counted(proxy) == {}


def test_every_outcome_has_a_sentence() -> None:
    """Each outcome has exactly one explanation, in one or two sentences."""
    assert set(MEANINGS) == set(get_args(MemoryOutcome))
    for meaning in MEANINGS.values():
        assert meaning.endswith(".")
        assert len(meaning) < 170


PUT = st.builds(
    PutBack,
    run_id=st.text("abc", min_size=1, max_size=3),
    kind=st.sampled_from(["answer", "calls", "response"]),
    bytes=st.integers(0, 100),
    loosely=st.booleans(),
    position=st.integers(0, 50),
)


@given(st.lists(PUT, max_size=60), st.lists(st.sampled_from(tuple(MEANINGS)[2:]), max_size=20))
def test_counts_stay_true_whatever_was_put_back(put: list[PutBack], missed: list[MemoryOutcome]) -> None:
    """Each look-up is counted once, even after turns are taken out again, and at most 32 turns are listed."""
    recall = Recall()
    for one in put:
        recall.put(one)
    for why in missed:
        recall.miss(why)
    shorter = recall.left_out()
    for said in (recall, shorter):
        written = said.written()
        total = sum(written["counts"].values()) if written is not None else 0
        assert total == len(put) + len(missed)
        assert written is None or len(written["put_back"]) <= 32
    answers = Counter(one.kind for one in put)["answer"]
    assert shorter.counts["too_long"] == recall.counts["too_long"] + answers
    assert all(one.kind != "answer" for one in shorter.put_back)
    assert bool(recall.continues) == bool(put)
