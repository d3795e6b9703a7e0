"""The "Memory" section of a run, as JSON and on a terminal."""

import io

from msgspec.structs import replace
from rich.console import Console

from proxy.api.admin.json_output import detail_to_json
from proxy.api.admin.run_meaning import memory_to_json
from proxy.commands.runs.text_output import render_detail
from proxy.records.rows import RunRecord
from proxy.relay.memory.hidden.outcomes import MEANINGS
from proxy.store.base import RunDetail

RUN = RunRecord("run_2", "req", "open", "chat", "m", "default", True, "completed", 5.0, 6.0)
NEXT = replace(RUN, id="run_3", status="suspended", started_at=7.0, continues="run_2")
REMEMBERING = replace(
    RUN,
    continues="run_1",
    memory={
        "put_back": [{"run": "run_1", "kind": "answer", "bytes": 263, "loosely": True}],
        "counts": {"put_back_loosely": 1, "not_found": 2},
    },
)


def printed(detail: RunDetail) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    render_detail(console, detail)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_run_without_anything_to_remember_has_no_section() -> None:
    """A run that put nothing back has ``null`` in JSON, and no heading on a terminal."""
    detail = RunDetail(RUN, [], [], [])
    assert memory_to_json(detail) is None
    assert detail_to_json(detail)["memory"] is None
    assert "Memory" not in printed(detail)


def test_a_section_says_what_came_back_why_not_more_and_who_goes_on() -> None:
    """The section gives the meaning of each outcome, and names the previous run and the next one."""
    detail = RunDetail(REMEMBERING, [], [], [], continued_by=[NEXT])
    section = memory_to_json(detail)
    assert section == {
        "put_back": [{"run": "run_1", "kind": "answer", "bytes": 263, "loosely": True}],
        "outcomes": [
            {
                "outcome": "put_back_loosely",
                "count": 1,
                "put_back": True,
                "meaning": MEANINGS["put_back_loosely"],
            },
            {"outcome": "not_found", "count": 2, "put_back": False, "meaning": MEANINGS["not_found"]},
        ],
        "given_bytes": 0,
        "continues": "run_1",
        "continued_by": [{"run": "run_3", "status": "suspended", "started_at": 7.0}],
    }
    words = " ".join(printed(detail).split())
    assert "put back run_1 (behind an answer, 263 bytes, loosely)" in words
    assert f"not found (2) {MEANINGS['not_found']}" in words
    assert "goes on from run_1" in words
    assert "continued by run_3 suspended" in words


def test_an_outcome_of_a_later_version_is_shown_all_the_same() -> None:
    """An outcome that a newer proxy recorded is shown, and control characters of an id are not."""
    memory = {
        "put_back": [{"run": "\x1b[31mred", "kind": "dream", "bytes": 1, "loosely": False}],
        "counts": {"dreamt": 1},
    }
    detail = RunDetail(replace(RUN, memory=memory), [], [], [])
    section = memory_to_json(detail)
    assert section is not None
    assert section["outcomes"][0]["meaning"].startswith("A later version")
    assert "\x1b" not in printed(detail)


def test_a_section_says_what_a_client_carries() -> None:
    """The section says how many bytes a run gave to its client, and which turn the client brought back."""
    put_back = {"run": "run_1", "kind": "carried", "bytes": 263, "loosely": False}
    memory = {"put_back": [put_back], "counts": {"put_back": 1}, "given_bytes": 1500}
    detail = RunDetail(replace(RUN, memory=memory), [], [], [])
    section = memory_to_json(detail)
    assert section is not None
    assert section["given_bytes"] == 1500
    words = " ".join(printed(detail).split())
    assert "put back run_1 (beside the client's calls, carried by the client, 263 bytes)" in words
    assert "given to the client 1500 bytes" in words
