"""With trace events, a client sees a call when it starts and its result when it has ended."""

import json
from typing import Any

from chat_script import call, content, finish, payloads_of, role, stream
from probe_tools import Watch
from raw_upstream import RawUpstream
from running_proxy import make_config, running

ASK: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
ANSWER = stream(role(id="chatcmpl-2"), content("Done.", id="chatcmpl-2"), finish(id="chatcmpl-2"))


def traces_of(seen: bytes) -> list[tuple[str, str]]:
    """Return type and call id of each trace event so far, in order, even if the stream goes on."""
    found: list[tuple[str, str]] = []
    for line in seen[: seen.rfind(b"\n\n") + 2].splitlines():
        if line.startswith(b"data: {"):
            trace = json.loads(line.removeprefix(b"data: ")).get("x_toolrelay")
            found += [(trace["type"], trace["call_id"])] if trace else []
    return found


async def test_a_call_shows_while_it_runs(watch: Watch) -> None:
    """Rule W8: the client sees a call before its tool has ended, and a refused call with its result."""
    calls = [
        call("call_1", "probe_tools__slow", "{}", 0),
        call("call_2", "probe_tools__echo", '{"text":1}', 1),
    ]
    first = stream(role(), *calls, finish("tool_calls"))
    async with RawUpstream(first, ANSWER) as upstream:
        config = make_config(
            {"base_url": upstream.url}, modules=("probe_tools",), tools={"trace_max": "events"}
        )
        async with (
            running(config) as proxy,
            proxy.sent(ASK, {"x-toolrelay-trace": "events"}) as conversation,
        ):
            answer = await conversation.head()
            seen = b""
            async for piece in conversation.pieces(answer):
                seen += piece
                if b'"tool_call"' in piece and b'"call_1"' in piece:
                    assert watch.finished == [], "the tool still waits for this test"
                if len(traces_of(seen)) == 3:
                    watch.go_on.set()
    assert watch.finished == ["slow"]
    payloads_of(seen)  # This checks the rules of every composed stream.
    traces = traces_of(seen)
    assert sorted(traces) == sorted(
        (kind, one) for kind in ("tool_call", "tool_result") for one in ("call_1", "call_2")
    )
    assert traces.index(("tool_call", "call_1")) < traces.index(("tool_result", "call_2"))
    assert traces[-1] == ("tool_result", "call_1")
