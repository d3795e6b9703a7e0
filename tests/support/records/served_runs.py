"""Runs that a server leaves in a record, for tests of the commands that read it."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from chat_script import call, content, finish, role, stream
from probe_tools import WATCH
from raw_upstream import RawUpstream, Step
from running_proxy import make_config, running


def called(*calls: tuple[str, str, str]) -> list[Step]:
    """A streamed turn that makes calls: (id, name, arguments)."""
    return stream(role(), *[call(i, n, a, at) for at, (i, n, a) in enumerate(calls)], finish("tool_calls"))


ASK: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
ANSWER = stream(role(id="chatcmpl-2"), content("It ", "is noon.", id="chatcmpl-2"), finish(id="chatcmpl-2"))
CLIENT_TOOL = {
    "type": "function",
    "function": {
        "name": "mine",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
TIME = "core__get_current_time"
ECHO = "probe_tools__echo"
TURN = called(("call_1", TIME, '{"timezone":"UTC"}'), ("call_2", ECHO, '{"text":"word"}'))
BUY = "probe_tools__buy"
CONFIG = """
[tools]
modules = ["probe_tools"]
[policy]
allow = ["core__*", "probe_tools__*"]
"""


def recorded(
    folder: Path,
    *scripts: Sequence[Step],
    ask: Any = None,
    path: str = "/v1/chat/completions",
    content: str = "all",
    seal: bool = True,
    tools: Any = None,
    wires: Sequence[str] = (),
    wire_bytes: bool = True,
    headers: Mapping[str, str] = MappingProxyType({}),
    retries: int | None = None,
    approve: Sequence[str] = (),
) -> str:
    """Serve one request with a record in ``folder``; return the run's id."""

    async def serve() -> str:
        store = {"url": f"sqlite:///{folder / 'toolrelay.db'}", "content": content, "seal": seal}
        store |= {"wire_bytes": wire_bytes}
        async with RawUpstream(*scripts) as scripted:
            served: dict[str, Any] = {"base_url": scripted.url, **({"wires": wires} if wires else {})}
            served |= {} if retries is None else {"retries": retries}
            asks: dict[str, Any] = {"policy": {"approve": approve}, "approvals": {}} if approve else {}
            config = make_config(served, modules=("probe_tools",), store=store, tools=tools, **asks)
            async with running(config) as proxy:
                answer = await proxy.ask(ask or ASK, headers, path=path)
                return answer.header("x-toolrelay-run") or ""

    (folder / "toolrelay.toml").write_text(CONFIG)
    run_id = asyncio.run(serve())
    WATCH.reset()
    return run_id
