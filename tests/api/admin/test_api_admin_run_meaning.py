"""What the status of a run means, in a sentence for people."""

from typing import Any

import pytest
from msgspec.structs import replace
from store_records import run

from proxy.api.admin.run_meaning import meaning_of_run
from proxy.store.base import RunDetail


@pytest.mark.parametrize(
    ("changes", "beside", "said"),
    [
        ({}, {}, "The run is going on."),
        ({"status": "completed"}, {}, "The run came to its answer."),
        (
            {"status": "completed", "spent": "tools.max_turns"},
            {},
            "The run came to its answer, though a budget (tools.max_turns) was used up.",
        ),
        (
            {"status": "suspended", "finish_reason": "tool_calls"},
            {},
            "The run waits for the next request of its client, which has calls to run or to decide about.",
        ),
        (
            {"status": "suspended", "finish_reason": "stop"},
            {},
            "The run waits until a person has decided about its calls and its client sends the next request.",
        ),
        (
            {"status": "suspended", "parent_run": "run_0"},
            {},
            "The agent waits until a person has decided about its calls and run_0 is continued.",
        ),
        (
            {"status": "suspended", "finish_reason": "stop"},
            {"continued_by": [run("run_2")]},
            "The run ended with calls that waited, and run_2 goes on from it.",
        ),
        ({"status": "failed", "error_code": "timeout"}, {}, "The run ended with the error timeout."),
        (
            {"status": "cancelled", "error_code": "client_gone"},
            {},
            "The client left before the run came to its answer.",
        ),
        (
            {"status": "cancelled", "parent_run": "run_0"},
            {},
            "The agent's run was cancelled before its answer, by the run that called the agent.",
        ),
        ({"status": "cancelled"}, {}, "The run was cancelled before it came to its answer."),
        ({"status": "interrupted"}, {}, "The server process ended before the run did."),
        (
            {"status": "interrupted"},
            {"taken_over_by": "run_2"},
            "The server process ended before the run did, and run_2 took it over.",
        ),
    ],
)
def test_each_status_is_one_sentence(changes: dict[str, Any], beside: dict[str, Any], said: str) -> None:
    """Each status becomes one sentence that says how the run ended, or what it waits for."""
    assert meaning_of_run(replace(RunDetail(run(**changes), (), (), ()), **beside)) == said
