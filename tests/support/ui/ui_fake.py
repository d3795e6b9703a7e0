"""A fake server for the pages of the UI: the real static files and policy, and invented answers.

Other tests check the answers of the real server. This one has what the real server cannot easily have:
thousands of runs, hostile texts in every field, and rare states.
"""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from in_process import serving_app
from ui_conversation import conversation

import proxy

STATIC = Path(proxy.__file__).parent / "ui" / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_MODELS = ("gpt-4o-mini", "claude-sonnet-5", "qwen3-coder-30b", "fast")
_TOOLS = (
    "core__get_weather",
    "core__get_current_time",
    "mcp__files__read_text",
    "mcp__github__search_issues",
)
_HOUR_S = 3600.0
TEXTS = {"question": "What is the weather in Berlin?", "answer": "It is 7 °C in Berlin."}
"""The question and the answer of a run of the list."""
LED_TO = {
    "object": "ui.context",
    "question": TEXTS["question"],
    "turns": [{"text": "Let me look.", "calls": ["core__get_weather", "mcp__files__read_text"]}],
}
"""What led to a call that waits."""


class FakeUi:
    """The data of the answers, and the requests of the page."""

    def __init__(self) -> None:
        self.now = time.time()
        self.session: dict[str, Any] | None = {
            "object": "ui.session",
            "name": "ops",
            "key_id": "key_1",
            "role": "admin",
            "via": "key",
            "version": "0.3.0",
            "capture": {"allowed": True, "reason": None, "keeps": False, "not_kept": None},
            "playground": {"allowed": True, "reason": None},
            "content": "tools",
            "demo": None,
            "currency": "USD",
        }
        self.runs = [self.run(number) for number in range(40)]
        self.answers: dict[str, Any] = {}
        self.posted: list[tuple[str, Any]] = []
        self.streams: list[asyncio.Queue[tuple[str, Any]]] = []
        self.play: list[bytes] = []
        self.texts: dict[str, dict[str, Any]] = {}
        self.port = 0

    @property
    def url(self) -> str:
        """The address of the pages."""
        return f"http://127.0.0.1:{self.port}/ui"

    def run(self, number: int, **changes: Any) -> dict[str, Any]:
        """Return a row of the list of runs; a run with a higher number began earlier."""
        status = {0: "running", 5: "failed", 9: "suspended", 17: "cancelled"}.get(number % 23, "completed")
        calls = [
            {"tool": _TOOLS[(number + at) % 4], "status": "success", "error_code": None}
            for at in range(number % 4)
        ]
        if calls and number % 7 == 3:
            calls[-1] = {**calls[-1], "status": "error", "error_code": "timeout"}
        seconds = 0.4 + (number * 37 % 50) / 10
        began = self.now - number * 41.0 - 3
        tokens = 400 + number * 173 % 4000
        return {
            "id": f"run_{number:08x}{number * 7919 % 65536:04x}",
            "request_id": f"req_{number:08x}",
            "caller": "key_1f",
            "caller_name": ("webui", "backend", "ci")[number % 3],
            "wire": ("chat", "responses", "anthropic", "ollama")[number % 4],
            "model": _MODELS[number % 4],
            "upstream": ("openai", "anthropic", "local", "openrouter")[number % 4],
            "stream": True,
            "status": status,
            "started_at": began,
            "ended_at": None if status == "running" else began + seconds,
            "duration_s": None if status == "running" else seconds,
            "error_code": "upstream_error" if status == "failed" else None,
            "finish_reason": "stop",
            "turns": 1 + len(calls),
            "tool_calls": len(calls),
            "input_tokens": tokens - 90,
            "output_tokens": 90,
            "total_tokens": tokens,
            "cost": tokens / 1_000_000,
            "offered": list(_TOOLS),
            "withheld": {"mcp__pay__send": "policy.approve"},
            "trace": "silent",
            "prompt_hash": "5f2c" * 8,
            "spent": None,
            "unreported": 0,
            "left_out": [],
            "parent_id": None,
            "calls": calls,
            **changes,
        }

    def detail(self, run: dict[str, Any]) -> dict[str, Any]:
        """Return a run with two turns and with two calls that ran at the same time."""
        began = run["started_at"]
        run = {**run, "ended_at": began + 1.2, "duration_s": 1.2, "status": "completed"}

        def turn(number: int, offset: float, first: float, took: float, reason: str) -> dict[str, Any]:
            return {
                "number": number,
                "upstream_id": f"chatcmpl-{number}",
                "finish_reason": reason,
                "started_at": began + offset / 1000,
                "ended_at": began + (offset + took) / 1000,
                "duration_s": took / 1000,
                "offset_ms": offset,
                "first_ms": first,
                "input_tokens": 610,
                "output_tokens": 88,
                "total_tokens": 698,
                "tool_calls": 2 if number == 1 else 0,
                "error_code": None,
                "cost": 0.0011,
                "withheld": {},
            }

        def call(seq: int, tool: str, offset: float, took: float, **changes: Any) -> dict[str, Any]:
            return {
                "id": f"inv_{seq}",
                "turn": 1,
                "seq": seq,
                "call_id": f"call_{seq}",
                "tool": tool,
                "provider": "core",
                "spec_digest": "7c41e2aa90bb",
                "effect": "read_only",
                "decision": 'allowed by policy.allow "core__*"',
                "status": "success",
                "started_at": began + offset / 1000,
                "ended_at": began + (offset + took) / 1000,
                "duration_s": took / 1000,
                "offset_ms": offset,
                "error_code": None,
                "arguments_redacted": {"city": "Berlin", "unit": "celsius"},
                "result_redacted": {"temperature_c": 7.4, "conditions": "light rain", "wind_kmh": 14},
                "result_bytes": 214,
                "operation_id": f"{run['id']}.1.{seq}",
                **changes,
            }

        return {
            "run": run,
            "turns": [turn(1, 0, 180, 412, "tool_calls"), turn(2, 590, 240, 610, "stop")],
            "invocations": [
                call(1, "core__get_weather", 420, 84),
                call(2, "mcp__files__read_text", 422, 160, status="error", error_code="timeout"),
            ],
            "kept_from_client": [
                {"what": "2 tool calls, arguments and results", "why": "the proxy ran these tools"}
            ],
            "meaning": "The run came to its answer.",
            "message_count": 3,
            "approvals": [],
            "errors": {
                "timeout": {
                    "when": "The call took longer than the tool's `timeout_s`.",
                    "remedy": "Raise the tool's timeout_s if it may take longer.",
                    "page": "/docs/errors",
                }
            },
            "messages": [],
            "offer": [
                {"tool": "core__get_weather", "outcome": "offered", "rule": 'policy.allow "core__*"'},
                {
                    "tool": "mcp__pay__send",
                    "outcome": "withheld",
                    "rule": "policy.approve",
                    "reason": "A person has to approve each call of it, and this client cannot ask.",
                    "change": {
                        "setting": "policy.allow",
                        "toml": '[policy]\nallow = ["core__*", "mcp__pay__send"]',
                        "note": None,
                    },
                },
            ],
            "budgets": [
                {"name": "turns", "used": 2, "max": 8, "setting": "tools.max_turns", "spent": False},
                {"name": "calls", "used": 2, "max": 32, "setting": "tools.max_calls", "spent": False},
                {"name": "time", "used": 1.2, "max": 300, "unit": "s", "setting": "tools.request_timeout_s"},
            ],
            "memory": {
                "given_bytes": 0,
                "put_back": [{"run": "run_before", "kind": "answer", "bytes": 263, "loosely": True}],
                "outcomes": [
                    {
                        "outcome": "put_back_loosely",
                        "count": 1,
                        "put_back": True,
                        "meaning": "Only one past fits.",
                    },
                    {
                        "outcome": "not_found",
                        "count": 2,
                        "put_back": False,
                        "meaning": "The store has nothing for this answer.",
                    },
                ],
                "continues": "run_before",
                "continued_by": [{"run": "run_after", "status": "suspended", "started_at": began}],
            },
            "agent_runs": [self.run(1, id="run_of_an_agent", model="researcher", parent_run=run["id"])],
            "wire": {"captured": True, "bytes": 9120},
        }

    def tell(self, event: str, data: Any) -> None:
        """Send an event to each page that listens."""
        for stream in self.streams:
            stream.put_nowait((event, data))

    async def _api(self, request: web.Request, path: str) -> web.StreamResponse:
        if request.method != "GET":
            body = await request.read()
            if path != "runs/texts":
                self.posted.append((path, json.loads(body) if body else None))
            if request.headers.get("x-toolrelay-ui") != "1":
                return _error(403, "csrf_refused", "The header is missing.")
        if self.session is None and path != "session":
            return _error(401, "not_signed_in", "Sign in first.")
        if path == "events":
            return await self._events(request)
        if path.startswith("play/") and request.method == "POST":
            return await self._play(request)
        key = f"{request.method} {path}"
        if key in self.answers:
            found = self.answers[key]
            found = found(request) if callable(found) else found
            if isinstance(found, tuple):
                status, body = found
                return web.json_response(body, status=status)
            return web.json_response(found)
        if path == "session":
            if self.session is None:
                return _error(401, "not_signed_in", "Sign in first.")
            return web.Response(status=204) if request.method == "DELETE" else web.json_response(self.session)
        if path == "runs":
            return web.json_response(self._page(request))
        if path == "runs/texts":
            ids = (await request.json())["runs"]
            return web.json_response({"data": [{"id": one, **self.texts.get(one, TEXTS)} for one in ids]})
        if path == "login":
            return web.json_response({"object": "ui.login", "provider": None, "address": None})
        if path.startswith("approvals/") and path.endswith("/context"):
            return web.json_response(LED_TO)
        if path.startswith("runs/"):
            run = next((one for one in self.runs if one["id"] == path.split("/")[1]), None)
            if run is not None and path.count("/") == 1:
                return web.json_response(self.detail(run))
            if run is not None and path.endswith("/conversation"):
                return web.json_response(conversation(run["id"]))
        return _error(404, "not_found", "There is nothing here.")

    def _page(self, request: web.Request) -> dict[str, Any]:
        limit, before = int(request.query.get("limit", "50")), request.query.get("before")
        status, model, words = (request.query.get(name) for name in ("status", "model", "q"))
        rows = [
            row
            for row in self.runs
            if (status is None or row["status"] == status)
            and (model is None or row["model"] == model)
            and (words is None or words in json.dumps(self.texts.get(row["id"], TEXTS)))
        ]
        at = next((index + 1 for index, row in enumerate(rows) if row["id"] == before), 0)
        data = rows[at : at + limit]
        answer = {"object": "list", "data": data, "has_more": len(rows) > at + limit}
        answer["last_id"] = data[-1]["id"] if data else None
        return answer if words is None else answer | {"searched": len(self.runs), "searched_until": self.now}

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        mine: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.streams.append(mine)
        mine.put_nowait(("hello", {"cursor": "1", "poll_s": 1.0}))
        try:
            while True:
                event, data = await mine.get()
                await response.write(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())
        except ConnectionError:
            return response  # The page has closed the stream.
        finally:
            self.streams.remove(mine)

    async def _play(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "x-toolrelay-run": self.runs[0]["id"]}
        )
        await response.prepare(request)
        for part in self.play:
            await response.write(part)
        return response

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request for any path."""
        path = request.path
        if path.startswith("/ui/api/"):
            return await self._api(request, path.removeprefix("/ui/api/"))
        name = path.removeprefix("/ui/static/") if path.startswith("/ui/static/") else "index.html"
        file = STATIC / name
        if not file.is_file():
            return web.Response(status=404)
        headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
        return web.Response(body=file.read_bytes(), content_type=_TYPES[file.suffix], headers=headers)


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "x", "code": code}}, status=status)


def encoded(text: str) -> str:
    """Return a text as the API encodes bytes."""
    return base64.b64encode(text.encode()).decode()


@asynccontextmanager
async def faking(fake: FakeUi | None = None) -> AsyncIterator[FakeUi]:
    """Run the fake server on a free port."""
    fake = fake or FakeUi()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", fake.handle)
    async with serving_app(app, port=fake.port, shutdown_timeout=0.1) as address:
        fake.port = int(address.rpartition(":")[2])
        yield fake
