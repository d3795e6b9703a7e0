"""A proxy with its web UI, and a browser that consists of headers and a cookie."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from chat_script import DONE, call, content, finish, role
from client_keys import declared
from raw_upstream import RawUpstream, chunked
from running_proxy import Answer, Proxy, make_config, running

from proxy.app.app import Overrides

ADMIN = "admin-admin-0123456789-abcdefghij"
CLIENT = "client-client-0123456789-abcdefghi"
QUESTION = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "What time is it?"}]}


@dataclass
class Browser:
    """A browser that uses ``proxy``: it sends what a page from the proxy's own origin would send."""

    proxy: Proxy
    cookie: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """The page's origin."""
        return f"http://127.0.0.1:{self.proxy.port}"

    def headers(self, *, writes: bool) -> dict[str, str]:
        """Return the headers of each request; ``writes`` adds those of a request that changes something."""
        sent = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
        if self.cookie:
            sent["Cookie"] = self.cookie
        if writes:
            sent |= {"Origin": self.origin, "x-toolrelay-ui": "1", "Content-Type": "application/json"}
        return {**sent, **self.extra}

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Send GET below ``/ui/api``."""
        sent = {**self.headers(writes=False), **(headers or {})}
        return await self.proxy.get(f"/ui/api/{path}", sent)

    async def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str | None] | None = None
    ) -> Answer:
        """Send a request that changes something below ``/ui/api``; a header that is ``None`` is left out."""
        sent: dict[str, str | None] = {**self.headers(writes=True), **(headers or {})}
        raw = None if body is None else json.dumps(body).encode()
        kept = {name: value for name, value in sent.items() if value is not None}
        answer = await self.proxy.ask(raw, kept, method=method, path=f"/ui/api/{path}")
        self.take(answer)
        return answer

    def take(self, answer: Answer) -> None:
        """Keep the cookie that an answer sets."""
        for name, value in answer.headers:
            if name.lower() == "set-cookie":
                pair = value.partition(";")[0]
                self.cookie = "" if pair.endswith("=") else pair

    async def sign_in(self, secret: str = ADMIN) -> "Browser":
        """Sign in with a key."""
        answer = await self.send("POST", "session", {"key": secret})
        assert answer.status == 200, answer.body
        return self


def turns() -> tuple[Any, ...]:
    """Return the script of an upstream that calls a tool and then answers."""
    return (
        chunked(
            role(), call("c1", "core__get_current_time", '{"timezone": "UTC"}'), finish("tool_calls"), DONE
        ),
        chunked(role(), content("It is noon."), finish(), DONE),
    )


@asynccontextmanager
async def ui_proxy(
    overrides: Overrides | None = None, **config: Any
) -> AsyncIterator[tuple[Browser, RawUpstream]]:
    """Run a proxy with an administrator's key and a client's, and yield a browser that has not signed in."""
    config.setdefault(
        "keys", {"boss": declared(ADMIN, admin=True), "webui": declared(CLIENT, tools=["core__*"])}
    )
    config.setdefault("policy", {"allow": ["core__*"]})
    async with (
        RawUpstream(*turns()) as upstream,
        running(make_config(upstream.url, **config), overrides or Overrides()) as proxy,
    ):
        yield Browser(proxy), upstream
