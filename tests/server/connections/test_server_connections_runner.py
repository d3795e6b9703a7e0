"""The configuration of running tools, as the runner applies it."""

from pathlib import Path

import pytest

from proxy.app.app import create_services
from proxy.base.events import ToolCall
from proxy.config.load import Config, load_config
from proxy.tools.running.ledger import RunContext

MODULE = """
import asyncio

from proxy.tools import HttpClient, Redaction, tool

now = 0

@tool(effect="read_only", redaction=Redaction())
async def look(n: int) -> int:
    "How many look at this moment."
    global now
    now += 1
    most = now
    for _ in range(20):
        await asyncio.sleep(0)
        most = max(most, now)
    now -= 1
    return most

@tool(effect="external_side_effect", redaction=Redaction(), hosts=("127.0.0.1",), connection="shop")
async def order(http: HttpClient) -> str:
    "Order."
    return "ordered"
"""


def config_for(folder: Path, more: str) -> Config:
    """Write and load a configuration with that module."""
    (folder / "desk.py").write_text(MODULE, encoding="utf-8")
    path = folder / "toolrelay.toml"
    path.write_text(
        f'[store]\nurl = "memory:"\n[policy]\nallow = ["desk__*"]\n'
        f'[credentials.shop]\ntoken_url = "http://127.0.0.1:9/token"\nrefresh_token = "env:SHOP"\n'
        f'client_id = "env:SHOP"\n[tools]\nmodules = ["desk.py"]\nnetworks = ["127.0.0.0/8"]\n{more}',
        encoding="utf-8",
    )
    return load_config(path, {"OPENAI_API_KEY": "x", "SHOP": "s3cret"})


@pytest.mark.parametrize(
    ("more", "most"),
    [("", 8), ("max_parallel = 3", 3), ("max_parallel = 12\n[limits]\nconcurrent_tools_per_caller = 5", 5)],
)
async def test_the_calls_of_a_run_are_bounded(tmp_path: Path, more: str, most: int) -> None:
    """Rule T7: ``tools.max_parallel`` calls of a run go on at once, or fewer if the limits say so."""
    services = await create_services(config_for(tmp_path, more))
    try:
        calls = [ToolCall(f"c{n}", "desk__look", f'{{"n":{n}}}', n) for n in range(20)]
        results = await services.runner.run_many(calls, RunContext("run_1", 1, "open"))
    finally:
        await services.aclose()
    assert max(int(result.content) for result in results) == most


async def test_an_effect_without_credentials_is_not_begun(tmp_path: Path) -> None:
    """Rule T6: if the token endpoint gives no token, the call fails and the error names the connection."""
    services = await create_services(config_for(tmp_path, ""))
    try:
        call = ToolCall("c", "desk__order", "{}", 0)
        result = await services.runner.run(call, RunContext("run_1", 1, "open"))
    finally:
        await services.aclose()
    assert result.error_code == "execution_failed"
    assert 'connection "shop" cannot be used now' in result.safe_message
