"""``python -m bench.prompt_cache``: the share of a conversation that Anthropic's prompt cache serves.

The upstream speaks Messages and counts as Anthropic's API does. A request reads the longest prefix that an
earlier request marked with a breakpoint, at most 20 blocks before one of its own. It writes the rest up to
its last breakpoint. Four characters count as a token. A Chat client, which cannot set breakpoints, has a
conversation in which each answer takes one call of a server tool. For comparison, a Messages client sets no
breakpoints.

Source: Anthropic's documentation, "Prompt caching".
"""

import argparse
import asyncio
import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from bench.contestants import toolrelay
from bench.wire import KEY

SYSTEM = "You answer questions about a catalogue of parts. " * 120
BACK = 20
"""The number of blocks before a breakpoint in which an earlier prefix is found."""
_CHARACTERS = 4


def _blocks(body: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the blocks of a request in their order in the cache, each with whether it is marked."""
    system = body.get("system") or []
    told = [{"type": "text", "text": system}] if isinstance(system, str) else system
    said = [
        {"role": message["role"], **block}
        for message in body["messages"]
        for block in (
            [{"type": "text", "text": message["content"]}]
            if isinstance(message["content"], str)
            else message["content"]
        )
    ]
    for block in (*(body.get("tools") or ()), *told, *said):
        plain = {key: value for key, value in block.items() if key != "cache_control"}
        yield json.dumps(plain, sort_keys=True), "cache_control" in block


@dataclass
class CachingUpstream:
    """A Messages upstream with a prompt cache. ``usages`` are the counts of each request, in order."""

    usages: list[dict[str, int]] = field(default_factory=list)
    cached: set[bytes] = field(default_factory=set)

    def count(self, body: dict[str, Any]) -> dict[str, int]:
        """Count the tokens that a request reads from the cache, writes into it, and sends uncached."""
        digest, sizes, digests, marks = hashlib.sha256(), [0], [b""], []
        for at, (text, is_marked) in enumerate(_blocks(body), 1):
            digest.update(text.encode() + b"\0")
            sizes.append(sizes[-1] + len(text))
            digests.append(digest.digest())
            if is_marked:
                marks.append(at)
        found = [
            at for mark in marks for at in range(max(1, mark - BACK), mark + 1) if digests[at] in self.cached
        ]
        read = sizes[max(found, default=0)]
        until = max(sizes[max(marks, default=0)], read)
        self.cached.update(digests[mark] for mark in marks)
        counts = {
            "cache_read_input_tokens": read // _CHARACTERS,
            "cache_creation_input_tokens": (until - read) // _CHARACTERS,
            "input_tokens": (sizes[-1] - until) // _CHARACTERS,
            "output_tokens": 10,
        }
        self.usages.append(counts)
        return counts

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a question with a call of a server tool if one is offered, any other request with a text."""
        body = await request.json()
        last = body["messages"][-1]["content"]
        has_result = isinstance(last, list) and any(block["type"] == "tool_result" for block in last)
        names = [tool["name"] for tool in body.get("tools") or () if tool["name"].startswith("bench_tools")]
        number = len(self.usages)
        content: dict[str, Any] = {"type": "text", "text": f"Answer {number}."}
        if not has_result and names:
            content = {"type": "tool_use", "id": f"toolu_{number}", "name": names[0], "input": {"text": "x"}}
        return web.json_response(
            {
                "id": f"msg_{number}",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [content],
                "stop_reason": content["type"] if content["type"] == "tool_use" else "end_turn",
                "stop_sequence": None,
                "usage": self.count(body),
            }
        )


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(url, json=body, headers={"Authorization": f"Bearer {KEY}"}) as response:
        answer: dict[str, Any] = await response.json()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {answer}")
        return answer


async def _converse(port: int, questions: int, *, chat: bool) -> None:
    """Have a conversation through the proxy."""
    url = f"http://127.0.0.1:{port}/v1/{'chat/completions' if chat else 'messages'}"
    said: list[dict[str, Any]] = []
    async with aiohttp.ClientSession() as session:
        for number in range(questions):
            said.append({"role": "user", "content": f"Question {number}: " + "which part fits? " * 20})
            if chat:
                body: dict[str, Any] = {
                    "model": "m",
                    "messages": [{"role": "system", "content": SYSTEM}, *said],
                }
                text = (await _ask(session, url, body))["choices"][0]["message"]["content"]
            else:
                body = {"model": "m", "max_tokens": 100, "system": SYSTEM, "messages": said}
                text = (await _ask(session, url, body))["content"][0]["text"]
            said.append({"role": "assistant", "content": text})


async def measure(questions: int) -> dict[str, list[dict[str, int]]]:
    """Return the counts of each request upstream, by the client's dialect."""
    found = {}
    for name in ("chat", "anthropic"):
        upstream = CachingUpstream()
        app = web.Application()
        app.router.add_post("/v1/messages", upstream.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            started = toolrelay(name, folder, port, tools=name == "chat", core=None, wires=("anthropic",))
            proxy = await asyncio.to_thread(stack.enter_context, started)
            await _converse(proxy.port, questions, chat=name == "chat")
        await runner.cleanup()
        found[name] = upstream.usages
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the share of the input tokens that the cache serves."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.prompt_cache", description="Input tokens that Anthropic's prompt cache serves."
    )
    parser.add_argument("--questions", type=int, default=10, help="how many questions are asked (10)")
    asked = parser.parse_args(arguments)
    for name, usages in asyncio.run(measure(asked.questions)).items():
        read, written, new = (
            sum(usage[f"{kind}input_tokens"] for usage in usages)
            for kind in ("cache_read_", "cache_creation_", "")
        )
        print(
            f"{name} client, {len(usages)} requests upstream: {read / (read + written + new):.0%} of the "
            f"input tokens read from the cache ({read} read, {written} written, {new} neither)"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
