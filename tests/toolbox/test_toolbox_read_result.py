"""``core__read_result``, called through the runner: reading the rest of results that were too large."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Any

import pytest

from proxy.base.events import ToolCall, ToolResult
from proxy.records.rows import NativeCall, ToolInvocationRecord
from proxy.toolbox.read_result import read_result_tool
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.declaration import tool
from proxy.tools.contract.results.paging import READ_RESULT, PagedResults
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.tools.running.runner import Runner

LONG = "".join(f"{number:04d}ü" for number in range(1000))


class Clock:
    """A clock that stands still."""

    def now(self, tz: tzinfo) -> datetime:
        """Return always the same time."""
        return datetime(2026, 11, 21, tzinfo=UTC).astimezone(tz)


class Rows:
    """An invocation log that keeps the closed rows only."""

    def __init__(self) -> None:
        self.closed: list[ToolInvocationRecord] = []

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        """Do nothing."""

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        """Keep a row."""
        self.closed.append(record)

    def put_native_call(self, record: NativeCall) -> None:
        """Do nothing."""


@tool(effect="read_only", redaction=Redaction())
async def long_text() -> str:
    """Return a text that is too large for one result."""
    return LONG


@tool(effect="read_only", redaction=Redaction(), untrusted_output=True)
async def long_page() -> str:
    """Return the same text as untrusted output."""
    return LONG


@tool(effect="state_change", redaction=Redaction())
async def act() -> str:
    """Change something."""
    return "done"


Make = Callable[..., Any]


@pytest.fixture
def rows() -> Rows:
    """An empty invocation log."""
    return Rows()


@pytest.fixture
def make_runner(rows: Rows) -> Make:
    """A function that makes a runner with a limit of 1000 bytes per result."""

    async def make(*allow: str) -> Runner:
        paged_results = PagedResults()
        providers = [
            FunctionProvider("t", [long_text, long_page, act]),
            FunctionProvider("core", [read_result_tool(paged_results)]),
        ]
        policy = Policy(allow=allow or ("*",), max_result_bytes=1000)
        return Runner(
            await Registry.load(providers), policy, rows, None, Clock(), paged_results=paged_results
        )

    return make


def run_of(caller: str = "ada") -> RunContext:
    """The context of a new run."""
    return RunContext("run_1", 1, caller, ledger=RunLedger())


def handle_in(result: ToolResult) -> tuple[str, int]:
    """The handle and the offset in the note of a truncated result."""
    note = result.content.partition("[toolrelay: ")[2].partition("]")[0]
    return note.partition('handle "')[2].partition('"')[0], int(note.rpartition("offset ")[2])


def page_call(handle: str, offset: int, seq: int = 1) -> ToolCall:
    """A call of ``core__read_result`` for the page at ``offset``."""
    return ToolCall(f"call_{seq}", READ_RESULT, json.dumps({"handle": handle, "offset": offset}), seq)


async def test_the_pages_make_up_the_result(make_runner: Make, rows: Rows) -> None:
    """The pages after a truncated result, each within the size limit, make up the rest of the text."""
    runner = await make_runner()
    context = run_of()
    result = await runner.run(ToolCall("call_0", "t__long_text", "{}", 0), context)
    assert result.truncated
    assert len(result.content.encode()) <= 1000
    handle, offset = handle_in(result)
    text = result.content.partition("\n[toolrelay")[0]
    assert (len(handle), len(text)) == (36, offset)
    for seq in range(1, 30):
        page = await runner.run(page_call(handle, offset, seq), context)
        assert (page.ok, page.truncated) == (True, False)
        assert len(page.content.encode()) <= 1000
        piece, _, note = page.content.rpartition("\n[toolrelay: ")
        text += piece
        if note.startswith("this is the end"):
            break
        offset = int(note.split()[4])
        assert offset == len(text)
    assert text == LONG
    assert handle not in repr(rows.closed)
    shown = [(row.arguments_redacted, row.result_redacted) for row in rows.closed]
    assert "0001" not in repr(shown), "pages are content and stay out of the record"


async def test_another_callers_handle_is_unknown(make_runner: Make) -> None:
    """Rule R3: only the caller that got a handle can use it; for others it is like an invented one."""
    runner = await make_runner()
    handle, offset = handle_in(await runner.run(ToolCall("c", "t__long_text", "{}", 0), run_of("ada")))
    foreign = await runner.run(page_call(handle, offset), run_of("bob"))
    made_up = await runner.run(page_call("res_" + "0" * 32, offset), run_of("ada"))
    assert (foreign.ok, foreign.content) == (False, made_up.content)
    assert "no such result" in foreign.safe_message


async def test_no_handle_where_no_page_can_be_read(make_runner: Make) -> None:
    """Rule T2: if core__read_result is not allowed, a truncated result names no handle."""
    runner = await make_runner("t__*")
    result = await runner.run(ToolCall("c", "t__long_text", "{}", 0), run_of())
    assert result.truncated
    assert "left out" in result.content
    assert "handle" not in result.content


async def test_a_page_of_a_strangers_text_is_one(make_runner: Make) -> None:
    """Rule T2: a page of an untrusted result counts as untrusted; later state changes need an approval."""
    runner = await make_runner()
    handle, offset = handle_in(await runner.run(ToolCall("c", "t__long_page", "{}", 0), run_of()))
    trusted, offset_2 = handle_in(await runner.run(ToolCall("c", "t__long_text", "{}", 0), run_of()))
    assert trusted != handle
    for one, at, code in ((handle, offset, "approval_required"), (trusted, offset_2, None)):
        later = run_of()
        assert (await runner.run(page_call(one, at), later)).ok
        assert (await runner.run(ToolCall("c", "t__act", "{}", 0), later.at_turn(2))).error_code == code


@pytest.mark.parametrize("offset", [4999, 5000, 10**9])
async def test_past_the_end_is_the_end(make_runner: Make, offset: int) -> None:
    """A page at or beyond the end of the text says that this is the end."""
    runner = await make_runner()
    handle, _ = handle_in(await runner.run(ToolCall("c", "t__long_text", "{}", 0), run_of()))
    page = await runner.run(page_call(handle, offset), run_of())
    assert page.ok
    assert page.content.endswith("[toolrelay: this is the end, 5000 characters in all]")
