"""Comparisons in a real browser: answers by word, requests by meaning, and a request as programs."""

# ruff: noqa: E501  (a script of the page is one line)

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from ui_browser import Tab
from ui_conversation import conversation, text
from ui_fake import FakeUi
from ui_tab import at

from proxy.ui.runs.members import members_of
from proxy.wires.registry.wires import built_in_wires

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LOAD = """(async () => {
  const base = performance.getEntriesByType("resource").map((one) => one.name).find((name) => name.endsWith("/core/dom.js"));
  return await import(new URL("../parts/compare/%s.js", base));
})()"""


async def ran(*command: str) -> str:
    """Run a command and return what it prints."""
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    return str(done.stdout)


def answered(run_id: str, answer: str) -> dict[str, Any]:
    """Return the conversation of a run that answered so."""
    return conversation(
        run_id,
        messages=[
            {"role": "user", "turn": 0, "parts": [text("How warm is it?")]},
            {"role": "assistant", "turn": 1, "parts": [text(answer)]},
        ],
    )


async def test_answers_stand_first_with_their_words_marked(tab: Tab, fake: FakeUi) -> None:
    """Two runs are compared by what they answered: the words that only one has are marked."""
    a, b = fake.runs[1]["id"], fake.runs[2]["id"]
    fake.answers[f"GET runs/{a}/conversation"] = answered(a, "It is 7 degrees, cold and wet.")
    fake.answers[f"GET runs/{b}/conversation"] = answered(b, "It is 9 degrees, warm and wet.")
    await at(tab, fake, f"/compare?a={a}&b={b}")
    await tab.until("document.querySelectorAll('section[aria-label=Answers] mark').length === 4")
    marked = "[...document.querySelectorAll('section[aria-label=Answers] mark')].map((e) => e.innerText)"
    assert await tab.run(marked) == ["7", "cold", "9", "warm"]
    assert await tab.run("document.querySelector('main section').getAttribute('aria-label')") == "Answers"
    assert await tab.run("document.querySelector('.asked').innerText") == "How warm is it?"


async def test_requests_of_two_dialects_are_compared_by_meaning(tab: Tab, fake: FakeUi) -> None:
    """Members with the same meaning stand side by side; what was left out or added is named."""
    await at(tab, fake, "/runs")
    left = {"model": "m", "input": "Hi", "instructions": "Be brief.", "store": False, "temperature": 0.5}
    right = {"temperature": 0.50, "model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": []}
    wires = built_in_wires()
    table = members_of(wires["responses"].codec.fields, wires["chat"].codec.fields)
    given = ", ".join(map(json.dumps, (left, right, table)))
    script = f"{LOAD % 'meaning'}.then((made) => made.members({given}).map((row) => [row[0], row[3]]))"
    assert await tab.run(script) == [
        ["store", "omitted"],
        ["input → messages", "changed"],
        ["instructions → messages", "changed"],
        ["tools", "added"],
        ["model", "same"],
        ["temperature", "same"],
    ]
    await at(tab, fake, "/runs/ID/wire")
    await tab.click("Compared as JSON")
    rows = (
        "[...document.querySelectorAll('.meaning tbody tr th')].map((e) => e.innerText.replace(/\\s+/g, ' '))"
    )
    assert await tab.run(rows) == ["tools added", "model same", "stream same", "messages same"]


async def test_a_request_becomes_programs_that_cannot_be_broken_out_of(tab: Tab, fake: FakeUi) -> None:
    """The programs for Python and Node hold the request as text, whatever quotes and lines it has."""
    await at(tab, fake, "/runs")
    hostile = "'; rm -rf / #\n\"${process.exit(1)}`id`\\ \u2028 é 😀"
    body = {"messages": [{"role": "user", "content": hostile}]}
    script = f"{LOAD % 'programs'}.then((made) => made.programs('http://127.0.0.1:1/v1', {{a: 'b'}}, {json.dumps(body)}))"
    made = dict(await tab.run(script))
    assert list(made) == ["curl", "Python", "Node"]
    line = next(line for line in made["Python"].splitlines() if line.startswith("body = "))
    done = await ran(sys.executable, "-c", f"import json\n{line}\nprint(json.dumps(body))")
    assert json.loads(done) == body
    line = next(line for line in made["Node"].splitlines() if line.startswith("const body"))
    assert await tab.run(f"(() => {{ {line} return body }})()") == body
    quoted = made["curl"].rpartition("-d ")[2]
    done = await ran("/bin/sh", "-c", f"printf %s {quoted}")
    assert json.loads(done) == body
