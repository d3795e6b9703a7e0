"""The webhook for approvals: its signature, its retries, its queue and the addresses that it may call."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from approvals_rig import BUY, config_of, say, turns_of
from in_process import serving_app
from openai import AsyncOpenAI
from probe_tools import WATCH
from raw_upstream import RawUpstream
from running_proxy import running
from store_records import approval
from structlog.testing import capture_logs
from waiting import until

from proxy.api.admin.approval_webhook import MOST_QUEUED, ApprovalWebhook
from proxy.base.errors import ConfigError
from proxy.config.checks.rules import find_conflicts
from proxy.config.load import Config
from proxy.config.secret import Secret
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.hosts import host_entry

SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes now").decode()


class Service:
    """A service that receives the webhook. It answers with ``statuses`` in turn, and then always with 204."""

    def __init__(self) -> None:
        self.url = ""
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.stands: asyncio.Event = asyncio.Event()
        self.stands.set()

    async def answer(self, request: web.Request) -> web.Response:
        self.got.append(
            ({name.lower(): value for name, value in request.headers.items()}, await request.read())
        )
        await self.stands.wait()
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, headers={"Location": self.url + "elsewhere"})


@asynccontextmanager
async def service() -> AsyncIterator[Service]:
    made = Service()
    app = web.Application()
    app.router.add_post("/{path:.*}", made.answer)
    async with serving_app(app, shutdown_timeout=0.1) as address:
        made.url = f"{address}/hook/"
        yield made
        made.stands.set()


@asynccontextmanager
async def hooked(url: str, *, open_to: tuple[str, ...] = ("127.0.0.0/8",), **more: Any) -> AsyncIterator[Any]:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    pool = EgressPool(allowed_networks=open_to, schemes=("http", "https"), retries=0)
    hook = ApprovalWebhook(url, SECRET, pool, host_entry(url), sleep=sleep, **{"now": lambda: 1.0, **more})
    try:
        yield hook, waited
    finally:
        await hook.aclose()


def facts(id: str = "appr_1", **changes: Any) -> dict[str, Any]:
    return {"approval": approval(id, **{"expires_at": 100.0, "created_at": 1.0, **changes})}


def check_signature(headers: dict[str, str], body: bytes) -> None:
    """Check the signature as the libraries of Standard Webhooks do."""
    said = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    wanted = base64.b64encode(hmac.new(key, said, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{wanted}"


def has(log: list[Any], event: str) -> Callable[[], bool]:
    return lambda: any(line["event"] == event for line in log)


async def test_a_call_that_waits_is_told_while_its_run_goes_on(tmp_path: Path) -> None:
    """The webhook sends the call's id and tool, signed, without arguments; the client does not wait."""
    WATCH.reset()
    async with service() as told, RawUpstream(*turns_of("chat", stream=False)) as upstream:
        told.stands.clear()
        settings = {
            "webhook": told.url,
            "webhook_secret": Secret("env:HOOK", SECRET),
            "webhook_networks": ("127.0.0.0/8",),
            "public_url": "https://proxy.example.com/ui/approvals",
        }
        async with running(config_of(upstream.url, tmp_path, approvals=settings)) as proxy:
            client = AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="x", max_retries=0)
            async with client:
                text = await say(client, "chat", [{"role": "user", "content": "Buy milk."}], stream=False)
            await until(lambda: bool(told.got))
            headers, body = told.got[0]
            check_signature(headers, body)
            said = json.loads(body)
            assert said["type"] == "approval.requested"
            assert said["data"]["id"] in text
            assert (said["data"]["tool"], said["data"]["status"]) == (BUY, "pending")
            assert said["data"]["url"] == settings["public_url"]
            assert b"milk" not in body
            assert "arguments" not in said["data"]
            assert "authorization" not in headers
            assert "cookie" not in headers
            assert SECRET.encode() not in body
        assert WATCH.started == []


async def test_arguments_go_along_only_where_the_operator_says_so() -> None:
    """If the operator allows arguments, the webhook sends those that people see, without private fields."""
    shown = facts(arguments='{"pin":1,"what":"tea"}', arguments_shown={"what": "tea"})
    async with service() as told, hooked(told.url, arguments=True) as (hook, _):
        hook.on_event("approval_requested", shown)
        hook.on_event("approval_decided", shown)
        await until(lambda: bool(told.got))
        assert json.loads(told.got[0][1])["data"]["arguments"] == {"what": "tea"}
        assert b"pin" not in told.got[0][1]
    assert len(told.got) == 1


async def test_a_message_that_was_not_taken_is_sent_again() -> None:
    """The webhook retries with one id and growing waits, follows no redirect, and stops after 8 tries."""
    async with service() as told, hooked(told.url) as (hook, waited):
        told.statuses = [500, 404, 307, 204]
        with capture_logs() as log:
            hook.on_event("approval_requested", facts())
            await until(has(log, "approval_webhook_sent"))
        assert waited == [1.0, 2.0, 4.0]
        assert len({headers["webhook-id"] for headers, _ in told.got}) == 1
        assert len({body for _, body in told.got}) == 1
        for headers, body in told.got:
            check_signature(headers, body)
        told.got.clear()
        told.statuses = [503] * 8
        with capture_logs() as log:
            hook.on_event("approval_requested", facts("appr_2"))
            hook.on_event("approval_requested", facts("appr_3"))
            await until(has(log, "approval_webhook_sent"))
        failed = [line for line in log if line["event"] == "approval_webhook_failed"]
        assert [(line["approval_id"], line["reason"]) for line in failed] == [
            ("appr_2", "the service answered 503")
        ]
        assert max(waited) == 60.0
        assert len(told.got) == 9


async def test_what_has_expired_is_not_told() -> None:
    """The webhook does not send an approval that has expired: nobody can decide about it any more."""
    async with service() as told, hooked(told.url, now=lambda: 200.0) as (hook, _):
        with capture_logs() as log:
            hook.on_event("approval_requested", facts())
            await until(has(log, "approval_webhook_failed"))
        assert told.got == []


async def test_an_address_inside_is_not_called() -> None:
    """The webhook does not call a network that the operator has not allowed; the log names the setting."""
    async with service() as told, hooked(told.url, open_to=()) as (hook, _):
        with capture_logs() as log:
            hook.on_event("approval_requested", facts())
            await until(has(log, "approval_webhook_failed"))
        assert "approvals.webhook_networks" in log[-1]["reason"]
        assert told.got == []


async def test_the_queue_is_bounded() -> None:
    """If its queue is full, the webhook drops further messages at once and logs each of them."""
    async with service() as told:
        told.stands.clear()
        async with hooked(told.url) as (hook, _):
            with capture_logs() as log:
                for number in range(MOST_QUEUED + 5):
                    hook.on_event("approval_requested", facts(f"appr_{number}"))
                dropped = [line for line in log if line["event"] == "approval_webhook_dropped"]
            assert len(dropped) == 5


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"webhook": "https://a.example/"}, "no secret that signs"),
        ({"webhook": "http://a.example/", "webhook_secret": Secret("env:HOOK", SECRET)}, "https://"),
    ],
)
def test_a_webhook_that_is_not_safe_is_no_configuration(settings: dict[str, Any], problem: str) -> None:
    """A webhook without a secret, or with plain http to a public host, is an error in the configuration."""
    upstream = {"default": {"base_url": "http://127.0.0.1:9"}}
    config = Config.model_validate({"upstreams": upstream, "approvals": settings})
    faults: list[ConfigError] = list(find_conflicts(config))
    assert [problem in fault.problem for fault in faults] == [True]
