"""``/mcp`` while the server shuts down: what a call that it cuts gets, and what becomes of its tool."""

import pytest
from mcp_client import headers_of, message
from probe_tools import WATCH
from running_proxy import make_config, running
from waiting import LATE_S, until


@pytest.mark.parametrize("tool", ["slow", "slow_buy"])
async def test_a_server_that_stops_says_so(tool: str) -> None:
    """Rule E3: a call cut at the shutdown gets a 503; the proxy ends its tool, but finishes an effect."""
    WATCH.reset()
    config = make_config(
        "http://127.0.0.1:9",
        allow=("probe_tools__*",),
        modules=("probe_tools",),
        mcp={"serve": True},
        tools={"keepalive_s": LATE_S, "timeout_s": LATE_S},
        server={"drain_s": LATE_S},
    )
    async with running(config) as proxy:
        body = message("tools/call", {"name": f"probe_tools__{tool}", "arguments": {}})
        async with proxy.sent(body, headers_of(body), path="/mcp") as conversation:
            await WATCH.has_started.wait()
            proxy.draining.cut()
            answer = await conversation.answer()
        assert answer.status == 503
        assert answer.header("x-should-retry") == (None if tool == "slow" else "false")
        assert "shutting down" in answer.json["error"]["message"]
        assert (await proxy.run_reaches("failed")).run.error_code == "draining"
        if tool == "slow":
            await until(lambda: WATCH.cancelled == ["slow"])
        else:
            assert (WATCH.cancelled, WATCH.finished) == ([], [])
            WATCH.go_on.set()
            await until(lambda: WATCH.finished == ["slow_buy"])

            async def is_success() -> bool:
                return [one.status for one in (await proxy.only_run()).invocations] == ["success"]

            await until(is_success)
