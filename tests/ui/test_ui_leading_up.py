"""What led to a call that waits for an approval: for those who may decide about it, and for nobody else."""

from pathlib import Path
from typing import Any

import pytest
from approvals_rig import ID, config_of, turns_of
from client_keys import bearer, declared
from raw_upstream import RawUpstream
from running_proxy import Proxy, running
from structlog.testing import capture_logs
from ui_rig import ADMIN, CLIENT, Browser

from proxy.config.load import Config

BUYER = "buyer-buyer-0123456789-abcdefghij"
MAILER = "mailer-mailer-0123456789-abcdefghi"
KEYS = {
    "boss": declared(ADMIN, admin=True),
    "anna": declared(BUYER, approves=["probe_tools__b*"]),
    "bert": declared(MAILER, approves=["mail__*"]),
    "app": declared(CLIENT),
}
SECRET = "You are the shop's assistant; its margin is 40 percent."
MESSAGES = [
    {"role": "system", "content": SECRET},
    {"role": "user", "content": "An earlier question."},
    {"role": "assistant", "content": "An earlier answer."},
    {"role": "user", "content": "Buy milk."},
]


def kept(upstream: str, folder: Path, content: str = "all") -> Config:
    """Return a configuration that keeps this much of conversations."""
    config = config_of(upstream, folder, keys=KEYS)
    return config.model_copy(update={"store": config.store.model_copy(update={"content": content})})


async def waiting(proxy: Proxy, messages: list[dict[str, Any]] = MESSAGES) -> str:
    """Ask for something that waits for an approval; return the approval's id."""
    answer = await proxy.ask({"model": "m", "messages": messages}, bearer(CLIENT))
    return str(ID.findall(answer.json["choices"][0]["message"]["content"])[0])


@pytest.mark.parametrize("key", [ADMIN, BUYER], ids=["administrator", "approver"])
async def test_who_decides_reads_the_question_and_the_last_turns(key: str, tmp_path: Path) -> None:
    """An approver of the tool reads the question and which tools ran, as an administrator does; the log says
    so."""
    async with (
        RawUpstream(*turns_of("chat", stream=False, more=True)) as upstream,
        running(kept(upstream.url, tmp_path)) as proxy,
    ):
        approval_id = await waiting(proxy)
        browser = await Browser(proxy).sign_in(key)
        with capture_logs() as lines:
            answer = await browser.get(f"approvals/{approval_id}/context")
        assert answer.status == 200
        assert answer.json["question"] == "Buy milk."
        assert [turn["calls"] for turn in answer.json["turns"]] == [["probe_tools__echo"]]
        for kept_back in (SECRET, "An earlier question."):
            assert kept_back not in answer.body.decode()
        (line,) = [line for line in lines if line["event"] == "content_read"]
        assert line["caller"] == ("config:boss" if key == ADMIN else "config:anna")


async def test_who_may_not_decide_reads_nothing(tmp_path: Path) -> None:
    """An approver of other tools, a client's key and a stranger get no text of the run, and no answer that
    differs from that about a call that does not exist."""
    async with (
        RawUpstream(*turns_of("chat", stream=False)) as upstream,
        running(kept(upstream.url, tmp_path)) as proxy,
    ):
        approval_id = await waiting(proxy)
        browser = await Browser(proxy).sign_in(MAILER)
        answers = []
        for wanted in (approval_id, "appr_" + "0" * 32):
            answer = await browser.get(f"approvals/{wanted}/context")
            answers.append((answer.status, answer.error["code"]))
            assert b"milk" not in answer.body
        assert answers == [(404, "approval_not_found")] * 2
        assert (await Browser(proxy).get(f"approvals/{approval_id}/context")).status == 401
        for method in ("POST", "DELETE"):
            assert (await browser.send(method, f"approvals/{approval_id}/context", {})).status == 405


async def test_what_was_not_kept_is_not_shown(tmp_path: Path) -> None:
    """Without kept requests there is no question, and the approval can be decided all the same."""
    async with (
        RawUpstream(*turns_of("chat", stream=False)) as upstream,
        running(kept(upstream.url, tmp_path, "tools")) as proxy,
    ):
        approval_id = await waiting(proxy)
        browser = await Browser(proxy).sign_in(BUYER)
        answer = await browser.get(f"approvals/{approval_id}/context")
        assert (answer.status, answer.json["question"]) == (200, None)
        assert (await browser.send("POST", f"approvals/{approval_id}", {"approve": True})).status == 200


async def test_a_long_question_is_bounded(tmp_path: Path) -> None:
    """However long a question is, its beginning is enough."""
    async with (
        RawUpstream(*turns_of("chat", stream=False)) as upstream,
        running(kept(upstream.url, tmp_path)) as proxy,
    ):
        approval_id = await waiting(proxy, [{"role": "user", "content": "Buy milk. " * 100_000}])
        browser = await Browser(proxy).sign_in(BUYER)
        answer = await browser.get(f"approvals/{approval_id}/context")
        assert len(answer.json["question"]) == 4000
