"""The Python SDK, a proxy, and a provider that checks OpenAI's rules behind it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from e2e_rig import CORE_TOOLS
from openai import AsyncOpenAI
from responses_script import function
from running_proxy import make_config, running
from strict_provider import Provider, serving_provider

from proxy.app.app import Overrides
from proxy.toolbox.clock import FixedClock

NOON = "2026-11-21T12:00:00+00:00"
CALENDAR = function("get_calendar")
ANSWERS = {
    "What time is it?": f"core__get_current_time={NOON}",
    "What does my calendar say?": "get_calendar=15:00, dentist",
    "Given time and calendar, am I late?": f"core__get_current_time={NOON}; get_calendar=15:00, dentist",
}


class Rig:
    """An SDK client, and the provider behind the proxy to which the client talks."""

    def __init__(self, client: AsyncOpenAI, provider: Provider) -> None:
        self.client = client
        self.provider = provider


@asynccontextmanager
async def rig(
    *, keeps: bool = True, trace: str = "silent", allow: Sequence[str] = CORE_TOOLS, **config: Any
) -> AsyncIterator[Rig]:
    """Run a provider and a proxy before it, and yield an SDK client of the proxy."""
    provider = Provider(keeps=keeps)
    clock = FixedClock(datetime.fromisoformat(NOON))
    async with serving_provider(provider) as url:
        settings = make_config(url, allow=allow, tools={"trace_max": "events", "trace": trace}, **config)
        async with (
            running(settings, Overrides(clock=clock)) as proxy,
            AsyncOpenAI(
                base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="unused", max_retries=0
            ) as client,
        ):
            yield Rig(client, provider)
