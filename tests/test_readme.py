"""The README is short, and its two commands and its tool work."""

import json
import re
import tomllib
from datetime import datetime, tzinfo
from pathlib import Path

import pytest
from documents import DOCS, ROOT, snippets

from proxy.base.events import ToolCall
from proxy.commands.demo import MODEL, QUESTIONS
from proxy.records.rows import NativeCall, ToolInvocationRecord
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.providers.modules import load_module
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.runner import Runner

README = ROOT / "README.md"
MOST_LINES = 200
MOST_WORDS = 1_500


class _Clock:
    """The machine's clock."""

    def now(self, tz: tzinfo) -> datetime:
        return datetime.now(tz)


class _NoLog:
    """A record that accepts everything and stores nothing."""

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        return

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        return

    def put_native_call(self, record: NativeCall) -> None:
        return


def of(page: Path, language: str) -> list[str]:
    """The snippets of one page in one language."""
    return [snippet.text for snippet in snippets(language, (page,))]


def test_it_is_short() -> None:
    """The README has at most 200 lines and 1,500 words, so that a newcomer reads all of it."""
    text = README.read_text("utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert len(text.split()) <= MOST_WORDS


SEARCHED = ("authentication", "rate limit", "streaming", "failover", "docker compose", "troubleshooting")


def test_it_has_the_words_that_people_search_for() -> None:
    """The README contains the terms that people search for."""
    text = README.read_text("utf-8").lower()
    assert [word for word in SEARCHED if word not in text] == []


def test_demo_question_is_one_that_is_recorded() -> None:
    """The curl lines ask the demo's own question of the demo's own model."""
    for page in (README, DOCS / "tutorials/first-run.md"):
        line = next(text for text in of(page, "bash") if "curl -N" in text)
        body = json.loads(line.partition("-d '")[2].rpartition("'")[0])
        assert body["model"] == MODEL
        assert body["messages"] == [{"role": "user", "content": QUESTIONS[0][0]}]


def test_two_commands_are_of_the_promised_form() -> None:
    """With Python alone, one command leads from a clone to the demo, and one to the tests."""
    commands = of(README, "bash")
    start = "python3 -m venv .venv && .venv/bin/pip install "
    assert f"{start}'.[mcp]' && .venv/bin/toolrelay demo\n" in commands
    assert f"{start}-e '.[test]' && .venv/bin/python -m pytest -n auto\n" in commands


QUESTIONS_ASKED = {
    "How do I put it in front of Ollama?": "base_url",
    "Why did my tool not run?": "toolrelay check",
    "Why does my page get a 403?": "server.cors_origins",
    "How do I rotate a provider key?": "SIGHUP",
    "What happens to a payment tool if the process dies?": "interrupted",
    "How do I see what the model was sent?": "runs show",
    "How do I upgrade?": "pip install",
    "How do I tell toolrelay's 429 from the provider's?": "x-upstream-request-id",
}
"""Questions of newcomers, each with a word of its answer."""
FIRST_SCREEN = 30


@pytest.mark.parametrize("question", QUESTIONS_ASKED)
def test_a_question_leads_to_its_answer(question: str) -> None:
    """A link in the README leads from the question to the heading above its answer."""
    found = re.search(rf"\[{re.escape(question)}\]\(([^)#]+)#?([^)]*)\)", README.read_text("utf-8"))
    assert found is not None
    lines = (ROOT / found[1]).read_text("utf-8").splitlines()
    headings = [re.sub(r"[^a-z0-9 -]", "", line.lower()).strip().replace(" ", "-") for line in lines]
    begin = headings.index(found[2]) if found[2] else 0
    assert QUESTIONS_ASKED[question] in "\n".join(lines[begin : begin + FIRST_SCREEN])


async def test_tool_of_ones_own_works(tmp_path: Path) -> None:
    """The tools shown have less than 15 lines, load as pasted, answer, and fail with their own message."""
    for page in (README, DOCS / "tutorials/first-tool.md"):
        code = next(text for text in of(page, "python") if "@tool" in text)
        assert len(code.splitlines()) < 15
        (tmp_path / "my_tools.py").write_text(code, encoding="utf-8")
        allow = next(text for text in of(page, "toml") if "my_tools" in text)
        registry = await Registry.load(
            [load_module("my_tools.py", base=tmp_path, capabilities=Capabilities(clock=_Clock()))]
        )
        policy = Policy(allow=tomllib.loads(allow)["policy"]["allow"])
        runner = Runner(registry, policy, _NoLog(), None, _Clock())
        context = RunContext("run_1", 1, "test", "req_1")
        good = await runner.run(ToolCall("call_1", "my_tools__order_total", '{"order": "A-17"}', 0), context)
        bad = await runner.run(ToolCall("call_2", "my_tools__order_total", '{"order": "B-1"}', 1), context)
        assert (good.ok, json.loads(good.content)) == (True, {"total": 42.5})
        assert (bad.ok, bad.safe_message) == (False, "there is no order of this number")
