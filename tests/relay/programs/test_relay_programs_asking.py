"""Programs whose calls need approvals: the client is asked, and the program goes on where it was."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents_rig import Asked, Models, Turn
from approvals_rig import BUY, ID
from probe_tools import Watch
from raw_upstream import RawUpstream
from running_proxy import Proxy, make_config, running
from waiting import until

from proxy.base.events import RUN_PROGRAM
from proxy.records.approvals import ApprovalFilter
from proxy.store.base import RunFilter

ECHO = "probe_tools__echo"
QUESTION: Any = {"role": "user", "content": "Find it out."}
CODE = f"""
first = await {ECHO}(text="tea")
print("read", first["echo"])
bought = await {BUY}(what=first["echo"])
last = await {ECHO}(text="after")
[bought["what"], last["echo"]]
"""
BOTH = f"""
import asyncio
async def tried(what):
    try:
        return (await {BUY}(what=what))["what"]
    except RuntimeError as error:
        return str(error)
await asyncio.gather({ECHO}(text="a"), tried("milk"), tried("tea"))
"""


def writes(code: str) -> Any:
    """A model that runs one program and repeats its result."""

    def say(asked: Asked) -> Turn:
        return Turn(asked.results[0]) if asked.results else Turn(calls=[(RUN_PROGRAM, {"code": code})])

    return say


@asynccontextmanager
async def served(models: Models, tmp_path: Path, **config: Any) -> AsyncIterator[Proxy]:
    """A proxy with programs whose purchases need an approval."""
    config = {"approvals": {}, "policy": {"approve": (BUY,)}, **config}
    async with (
        RawUpstream(models) as upstream,
        running(
            make_config(
                upstream.url,
                allow=("probe_tools__*",),
                modules=("probe_tools",),
                tools={"programs": "on"},
                store={"url": f"sqlite:///{tmp_path / 'r.db'}"},
                **config,
            )
        ) as proxy,
    ):
        yield proxy


async def say(proxy: Proxy, *messages: Any, **headers: str) -> str:
    """The text of the answer to a conversation."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await proxy.ask({"model": "m", "messages": list(messages)}, headers=named)
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"]["content"])


def after(notice: str) -> list[Any]:
    """The conversation after a notice that calls wait."""
    return [QUESTION, {"role": "assistant", "content": notice}, {"role": "user", "content": "Go on."}]


@pytest.mark.parametrize("decision", ["", ";deny"])
@pytest.mark.parametrize("restart", [False, True], ids=["same process", "another process"])
async def test_a_program_goes_on_after_a_decision(
    decision: str, restart: bool, watch: Watch, tmp_path: Path
) -> None:
    """No call before the one that waited runs again, also not in another process."""
    models = Models({"m": writes(CODE)})
    async with served(models, tmp_path) as proxy:
        notice = await say(proxy, QUESTION)
        (approval,) = set(ID.findall(notice))
        assert watch.started == ["echo"]
        if not restart:
            text = await say(proxy, *after(notice), x_toolrelay_approve=approval + decision)
            runs = await proxy.services.store.list_runs(RunFilter())
    if restart:
        async with served(models, tmp_path) as proxy:
            text = await say(proxy, *after(notice), x_toolrelay_approve=approval + decision)
            runs = await proxy.services.store.list_runs(RunFilter())
    assert models.count == 2
    if decision:
        assert "approval_denied" in text
        assert watch.started == ["echo"]
    else:
        assert text == '{"printed":"read tea\\n","value":["tea","after"]}'
        assert watch.started == ["echo", "buy", "echo"]
    (program,) = [run for run in runs if run.parent_run]
    assert program.status == ("failed" if decision else "completed")


async def test_several_calls_wait_and_each_decision_counts(watch: Watch, tmp_path: Path) -> None:
    """Calls of one step that need no approval run at once; of those that wait, the approved one runs."""
    models = Models({"m": writes(BOTH)})
    async with served(models, tmp_path) as proxy:
        notice = await say(proxy, QUESTION)
        log: Any = proxy.services.store
        waiting = {row.arguments_shown["what"]: row.id for row in await log.list_approvals(ApprovalFilter())}
        assert watch.started == ["echo"]
        text = await say(
            proxy, *after(notice), x_toolrelay_approve=f"{waiting['milk']}, {waiting['tea']};deny"
        )
    assert '"milk"' in text
    assert "approval_denied" in text
    assert watch.started == ["echo", "buy"]


async def test_a_call_that_nobody_can_approve_raises_in_the_program(watch: Watch, tmp_path: Path) -> None:
    """Without approvals the tool is not offered, and the program has no such name."""
    models = Models({"m": writes(CODE)})
    async with served(models, tmp_path, approvals={"enabled": False}) as proxy:
        assert "NameError" in await say(proxy, QUESTION)
    assert watch.started == ["echo"]


async def test_a_result_beside_a_call_that_waits_stays_untrusted(watch: Watch, tmp_path: Path) -> None:
    """A program has read a stranger's words when it goes on, so its next effect needs an approval."""
    code = (
        f"import asyncio\nawait asyncio.gather(probe_tools__page(), {BUY}(what='tea'))\n"
        "await probe_tools__paint()"
    )
    models = Models({"m": writes(code)})
    async with served(models, tmp_path) as proxy:
        notice = await say(proxy, QUESTION)
        (approval,) = set(ID.findall(notice))
        text = await say(proxy, *after(notice), x_toolrelay_approve=approval)
    assert set(ID.findall(text)) - {approval}
    assert watch.started == ["buy"]


async def test_a_program_that_goes_on_knows_the_effects_of_its_last_step(
    watch: Watch, tmp_path: Path
) -> None:
    """It was interrupted in a read after an effect; its next call of that tool is another effect."""
    code = (
        f"first = await {BUY}(what='tea')\nawait probe_tools__slow()\n"
        f"last = await {BUY}(what='milk')\n[first['what'], last['what']]"
    )
    models = Models({"m": writes(code)})
    async with served(models, tmp_path, policy={}) as proxy:
        asking = asyncio.create_task(say(proxy, QUESTION))
        await watch.has_started.wait()
        asking.cancel()
        await until(lambda: bool(watch.cancelled))
        watch.go_on.set()
        text = await say(proxy, QUESTION, x_stainless_retry_count="1")
    assert text == '["tea","milk"]'
    assert watch.started == ["buy", "slow", "slow", "buy"]
