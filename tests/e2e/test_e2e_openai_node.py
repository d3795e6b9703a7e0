"""The ``openai`` package for Node and the Vercel AI SDK read the proxy's answers without a warning."""

import base64
from pathlib import Path

import pytest
from crossed_recordings import comparable, crossed, meant, read, recordings
from e2e_packages import run_node
from e2e_rig import CORE_TOOLS, Proxy, ProxyFor, golden_file, is_orchestrated
from fixture_loader import all_exchanges, exchange
from official_clients import FINISHES, READERS, Heard, parsed
from responses_rules import ANSWERS, CALENDAR, rig
from sse_check import check_chat_stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

# Passed through unchanged, in dialects that our own checker of streams does not accept.
FOREIGN = {"perplexity.chat/cumulative-usage", "mistral.chat/content-parts"}
FAILING = {
    "openai.chat/connection-lost",
    "openai.chat/error-event",
    "openai.chat/second-turn-refused",
    "ollama.chat/truncated",
}
MIXED = exchange("openai.chat/mixed-calls")


async def test_every_stream_is_read(scripts: Path, way: str, shared_proxy: ProxyFor) -> None:
    """The package reads what each golden stream says, chunk by chunk and with its stream helper."""
    proxy = await shared_proxy(way)
    wanted = [e for e in all_exchanges() if e.wire == "chat" and is_orchestrated(e) and e.streams]
    cases = [{"name": e.name, "request": e.client_request} for e in wanted]
    results = await run_node(scripts / "read_streams.mjs", {"baseURL": proxy.base_url, "cases": cases})
    assert [result["name"] for result in results] == [e.name for e in wanted]
    for fixture, result in zip(wanted, results, strict=True):
        if fixture.name in FAILING:
            assert result["raw"]["error"] == result["together"]["error"] == "APIError", fixture.name
            assert result["raw"]["message"], fixture.name
            continue
        assert len(result["raw"]["finishes"]) == 1, fixture.name
        if fixture.name in FOREIGN:
            continue
        golden = check_chat_stream(golden_file(fixture, 0).read_bytes(), wants_usage=True, forwarded=10**6)
        raw, together = result["raw"], result["together"]
        assert raw["text"] == golden.text, fixture.name
        assert raw["finishes"] == [golden.finish], fixture.name
        assert raw["usage"] == golden.usage, fixture.name
        assert len([name for name in raw["ids"] if name]) == 1, fixture.name
        assert together["text"] == golden.text, fixture.name
        assert together["finish"] == golden.finish, fixture.name
        assert together["role"] == "assistant", fixture.name
        assert together["calls"] == [call.id for call in golden.calls], fixture.name


async def test_the_clients_own_tool_loop(scripts: Path, way: str, shared_proxy: ProxyFor) -> None:
    """``runTools`` runs the client's function once, sends its result and gets the model's answer."""
    proxy = await shared_proxy(way)
    question = {"baseURL": proxy.base_url, "request": MIXED.client_request}
    results = await run_node(scripts / "run_tools.mjs", question)
    for result in results.values():
        assert result["text"] == "It is 14:05, and the order has shipped."
        assert result["asked"] == [{"order_id": "A-1001"}]
        assert result["roles"] == ["user", "assistant", "tool", "assistant"]
    assert_both_results_were_told(proxy)


async def test_the_vercel_sdk(scripts: Path, way: str, shared_proxy: ProxyFor) -> None:
    """The AI SDK sees server tools as part of one step, and a call of its own tool as a step of its own."""
    proxy = await shared_proxy(way)
    both = exchange("demo/both")
    question = {
        "baseURL": proxy.base_url,
        "plain": both.client_request,
        "mixed": MIXED.client_request,
    }
    results = await run_node(scripts / "ai_sdk.mjs", question)
    golden = check_chat_stream(golden_file(both, 0).read_bytes(), wants_usage=True, forwarded=10**6)
    plain, mixed = results["plain"], results["mixed"]
    assert plain["faults"] == mixed["faults"] == []
    assert [(step["text"], step["finish"], step["calls"]) for step in plain["steps"]] == [
        (golden.text, "stop", [])
    ]
    assert golden.usage is not None
    assert plain["total"] == golden.usage["total_tokens"]
    assert [(step["text"], step["finish"], step["calls"]) for step in mixed["steps"]] == [
        ("One moment.", "tool-calls", [{"name": "lookup_order", "input": {"order_id": "A-1001"}}]),
        ("It is 14:05, and the order has shipped.", "stop", []),
    ]
    assert_both_results_were_told(proxy)


@pytest.mark.accepts("responses-members", "responses-parts", why="the package sends back what it parsed")
@pytest.mark.parametrize("store", [True, False], ids=["stored", "store false"])
async def test_the_responses_api(scripts: Path, store: bool) -> None:
    """Both SDKs get the right answer with server tools, a tool of the client's, and both at once."""
    # Without storage, the AI SDK warns that it sends no hosted results back.
    for trace in ("silent", "events") if store else ("silent",):
        async with rig(trace=trace) as made:
            question = {
                "baseURL": str(made.client.base_url),
                "tool": CALENDAR,
                "questions": list(ANSWERS),
                "store": store,
            }
            found = await run_node(scripts / "responses.mjs", question)
            for words, wanted in ANSWERS.items():
                asked = ["get_calendar"] if "calendar" in words else []
                helper, sdk = found[words]["helper"], found[words]["sdk"]
                assert (helper["text"], helper["asked"]) == (wanted, asked)
                assert (helper["last"], helper["status"]) == ("response.completed", "completed")
                assert (sdk["faults"], sdk["warnings"]) == ([], [])
                assert (sdk["text"], sdk["asked"]) == (wanted, asked)
                assert sdk["finish"] == [*["tool-calls"] * len(asked), "stop"]
                shown = ["mcp.core__get_current_time"] if "time" in words and trace == "events" else []
                assert sdk["shown"] == shown
            assert made.provider.refused == []


def assert_both_results_were_told(proxy: Proxy) -> None:
    """Check that the model got the hidden server call and both results, in order."""
    told = proxy.upstream_requests[-1]["messages"]
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "tool"]
    assert [call["function"]["name"] for call in told[1]["tool_calls"]] == [CORE_TOOLS[0], "lookup_order"]
    assert [message["tool_call_id"] for message in told[2:]] == [call["id"] for call in told[1]["tool_calls"]]


async def test_every_recording_is_read_in_every_other_dialect(scripts: Path) -> None:
    """Byte by byte, each client package reads an answer recorded in another dialect as the same answer."""
    wanted = [
        (recording, client) for recording in recordings() for client in READERS if client != recording.wire
    ]
    cases = [
        {
            "dialect": client,
            "stream": recording.stream,
            "data": base64.b64encode(crossed(recording, client)).decode(),
        }
        for recording, client in wanted
    ]
    results = await run_node(scripts / "read_crossed.mjs", {"cases": cases})
    for (recording, client), result in zip(wanted, results, strict=True):
        said = meant(read(recording))
        assert said is not None
        assert "error" not in result, f"{recording.name} as {client}: {result}"
        calls = [(call_id, name, parsed(arguments)) for call_id, name, arguments in result["calls"]]
        reason = FINISHES.get(result["finish"], result["finish"])
        finish = "calls" if calls and result["finish"] == "completed" else reason
        used = tuple(result["used"]) if result["used"] else None
        heard = Heard(result["text"], result["refusal"], calls, finish, used)
        assert comparable(heard, recording, client) == comparable(said, recording, client), recording.name
