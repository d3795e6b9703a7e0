"""Streams that OpenAI itself sent, from the folder of ``TOOLRELAY_TEST_RECORDINGS``, through a whole proxy.

The repository holds no recordings of other projects, so without that folder nothing is tested here.
"""

import json
from pathlib import Path

import pytest
from e2e_rig import CORE_TOOLS, proxy_for, with_ids_of
from recording_files import RecordingFile, recording_files

END_MARK = b"data: [DONE]\n\n"
PATHS = {"chat": "/chat/completions", "responses": "/responses"}
RECORDED = [
    file
    for file in recording_files()
    if file.provider == "openai"
    and file.wire in PATHS
    and file.path.suffix == ".sse"
    and file.status == 200
    and file.path.with_name("request.json").exists()
]


CASES = [
    pytest.param(file, allow, id=f"{file.name}-{'tools' if allow else 'plain'}")
    for file in RECORDED
    for allow in ((), CORE_TOOLS)
    # A stream of Responses repeats the tools of its request, in which the recording has no server tools.
    if not allow or file.wire == "chat"
]


@pytest.mark.accepts("*", why="OpenAI has answered these requests")
@pytest.mark.parametrize(("recording", "allow"), CASES)
async def test_a_stream_of_openai_keeps_its_bytes(
    recording: RecordingFile, allow: tuple[str, ...], tmp_path: Path
) -> None:
    """Rules W1, W2: the client gets the bytes that OpenAI sent, whether or not server tools are offered."""
    ask, sent = recording.path.with_name("request.json").read_bytes(), recording.path.read_bytes()
    turn = tmp_path / "turn-1"
    turn.mkdir()
    (tmp_path / "meta.toml").write_text(f'wire = "{recording.wire}"\n')
    (turn / "request.json").write_bytes(ask)
    (turn / "response.sse").write_bytes(sent)
    async with proxy_for("replay", allow=allow, fixtures=tmp_path) as proxy:
        answer = await proxy.ask(PATHS[recording.wire], json.loads(ask))
    assert (answer.status, answer.whole) == (200, True), answer.body
    expected = sent if END_MARK in sent else sent + END_MARK
    assert with_ids_of(answer.body, expected) == answer.body
