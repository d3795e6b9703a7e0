"""``runs save``: a recorded run becomes a fixture that answers its client again."""

import asyncio
import json
from pathlib import Path
from typing import Any

from served_runs import ANSWER, ASK, ECHO, TURN, called, recorded

from proxy.upstreams.base import UpstreamRequest
from proxy.upstreams.recorded.replay import ReplayUpstream

SECRET = "sk-proj-0123456789abcdefghij"


def answered(folder: Path, body: bytes) -> tuple[int, bytes]:
    """Status and body of what the fixtures of a folder answer."""

    async def ask() -> tuple[int, bytes]:
        upstream = ReplayUpstream([folder], fresh_ids=False, as_provider=True)
        response = await upstream.open(UpstreamRequest("POST", "/chat/completions", body=body))
        return response.status, await response.read(1 << 20)

    return asyncio.run(ask())


def test_a_run_becomes_a_fixture(tmp_path: Path, here: Any) -> None:
    """The client's request gets its answer, and the hidden turn with the results of its tools is there."""
    run_id = recorded(tmp_path, TURN, ANSWER)
    done = here("runs", "save", run_id, "saved")
    assert done.returncode == 0, done.stderr
    event = json.loads(done.stderr)
    assert (event["event"], event["run_id"]) == ("content_read", run_id)
    folder = tmp_path / "saved" / run_id
    turns = [json.loads((folder / f"turn-{number}" / "request.json").read_bytes()) for number in (1, 2)]
    assert [message["role"] for message in turns[1]["messages"]] == ["user", "assistant", "tool", "tool"]
    assert "word" in turns[1]["messages"][3]["content"]
    status, body = answered(tmp_path / "saved", json.dumps(ASK).encode())
    assert (status, body) == (200, (folder / "client" / "response.sse").read_bytes())
    assert b"is noon." in body
    assert b"tool_calls" not in body
    for turn in turns:
        assert answered(tmp_path / "saved", json.dumps(turn).encode())[0] == 200
    assert all(file.stat().st_mode & 0o077 == 0 for file in folder.rglob("*"))
    again = here("runs", "save", run_id, "saved")
    assert again.returncode == 1
    assert "cannot be written" in again.stderr


def test_a_saved_run_has_no_secret(tmp_path: Path, here: Any) -> None:
    """A key in the question, in arguments and in a result of a tool, and what the user names, are removed."""
    text = f"{SECRET} acct_hunter22 house 7"
    turn = called(("call_1", ECHO, json.dumps({"text": text})))
    ask = {**ASK, "messages": [{"role": "user", "content": text}]}
    run_id = recorded(tmp_path, turn, ANSWER, ask=ask)
    env = {"TOOLRELAY_RECORD__SCRUB": '["acct_*"]'}
    done = here("runs", "save", run_id, "saved", "--scrub", "house 7", env=env)
    assert done.returncode == 0, done.stderr
    files = [file for file in (tmp_path / "saved").rglob("*") if file.is_file()]
    assert len(files) == 10
    for file in files:
        assert SECRET not in file.read_text()
        assert "hunter22" not in file.read_text()
        assert "house 7" not in file.read_text()


def test_a_run_without_bytes_cannot_be_saved(tmp_path: Path, here: Any) -> None:
    """The error says which setting keeps the bytes of later runs."""
    run_id = recorded(tmp_path, TURN, ANSWER, content="tools")
    done = here("runs", "save", run_id, "saved")
    assert done.returncode == 1
    assert 'store.content = "all"' in done.stderr
    assert not (tmp_path / "saved").exists()
