"""The recorded exchanges: they are complete, match their metadata, and hold no secrets."""

import json
import re
import subprocess
from typing import Any

from cases import each
from fixture_loader import FIXTURES, Exchange, Turn, all_exchanges

from docgen.tables import FILES

ALL = all_exchanges()
SECRET = re.compile(
    rb"sk-[A-Za-z0-9_-]{8,}|Bearer |BEGIN [A-Z ]*PRIVATE KEY"
    rb"|gh[pousr]_[A-Za-z0-9]{20,}|xox[bp]-|AKIA[0-9A-Z]{16}"
    rb"|[a-z0-9._%+-]+@[a-z0-9-]+\.[a-z]{2,}",
    re.IGNORECASE,
)


def data_lines(turn: Turn) -> list[str]:
    """The data of each event of a turn's stream, or each line of one that has lines of JSON."""
    text = (turn.sse or b"").decode("utf-8").replace("\r\n", "\n")
    if text.startswith("{"):
        return text.splitlines()
    return [line[5:].strip() for line in text.split("\n") if line.startswith("data:")]


def finish_reasons(turn: Turn) -> list[str]:
    """Every finish reason of a turn, in order."""
    if turn.sse is None:
        payloads: list[Any] = [json.loads(turn.json_body or b"{}")]
    else:
        payloads = [json.loads(d) for d in data_lines(turn) if d.startswith("{") and d.endswith("}")]
    found = [c["finish_reason"] for p in payloads for c in p.get("choices") or [] if c.get("finish_reason")]
    stops = [p.get("delta", p) for p in payloads if p.get("type") in ("message", "message_delta")]
    found += [stop["stop_reason"] for stop in stops if stop.get("stop_reason")]
    found += [p["done_reason"] for p in payloads if p.get("done") is True]
    ends = ("response.completed", "response.incomplete", "response.failed")
    return found + [p["type"] for p in payloads if p.get("type") in ends]


def test_there_are_enough_of_them() -> None:
    """There are at least 20 recorded and 20 hand-written exchanges, among them those of the demo."""
    assert len(ALL) >= 25
    by_hand = [e for e in ALL if e.meta["recorded"] == "hand-written"]
    assert len(by_hand) >= 20
    assert len(ALL) - len(by_hand) >= 20
    assert {e.name for e in ALL} >= {"demo/time", "demo/weather", "demo/both", "demo/plain"}


@each("fixture", ALL, lambda e: e.name)
def test_an_exchange_is_what_its_meta_says(fixture: Exchange) -> None:
    """An exchange has title, origin and wire, and the events, end marks and finish reasons it claims."""
    meta = fixture.meta
    assert meta["title"]
    assert re.match(r"hand-written$|\d{4}-\d\d-\d\d, ", meta["recorded"])
    assert meta["wire"] in ("chat", "responses", "anthropic", "ollama")
    assert meta["run_by"] in ("server", "client", "mixed", "none")
    assert meta["run_by"] != "server" or meta["clock"] == "2026-11-21T14:05:00+01:00"
    assert [turn.number for turn in fixture.turns] == list(range(1, len(fixture.turns) + 1))
    assert sorted(meta["turns"]) == [str(turn.number) for turn in fixture.turns]
    for turn in fixture.turns:
        claimed = meta["turns"][str(turn.number)]
        lines = data_lines(turn)
        marks = [line for line in lines if line == "[DONE]" or '"done":true' in line]
        assert claimed["done"] == bool(marks)
        assert claimed["events"] == len([line for line in lines if line != "[DONE]"])
        assert claimed["finish_reasons"] == finish_reasons(turn)
        broken = turn.response.get("broken", False)
        for line in lines[:-1] if broken else lines:
            assert line == "[DONE]" or isinstance(json.loads(line), dict)


@each("fixture", ALL, lambda e: e.name)
def test_the_clients_request_leads_to_the_first_turn(fixture: Exchange) -> None:
    """The first turn's request is the client's, with server tools added and nothing else changed."""
    if fixture.meta.get("method") == "GET":
        assert not fixture.client_requests
        return
    first = fixture.turns[0].request
    assert first is not None
    left_out = {"tools", "tool_choice"}
    client = fixture.client_request
    assert {k: v for k, v in client.items() if k not in left_out} == {
        k: v for k, v in first.items() if k not in left_out
    }
    for own in client.get("tools", []):
        assert own in first["tools"]
    if fixture.run_by == "server":
        for tool in client.get("tools", []):
            assert not tool["function"]["name"].startswith("core__")


@each("fixture", ALL, lambda e: e.name)
def test_recorded_pieces_add_up_to_the_body(fixture: Exchange) -> None:
    """The sizes of network pieces add up to the body, and their times never run backwards."""
    for turn in fixture.turns:
        chunks = turn.response.get("chunks")
        if chunks:
            assert sum(size for _, size in chunks) == len(turn.sse or b"")
            assert [ms for ms, _ in chunks] == sorted(ms for ms, _ in chunks)


@each("fixture", ALL, lambda e: e.name)
def test_no_exchange_holds_a_secret(fixture: Exchange) -> None:
    """Rule R3: no key, token, cookie or address in any file, and no header that names an account."""
    for file in sorted(fixture.path.rglob("*")):
        if file.is_file():
            assert not SECRET.search(file.read_bytes()), file
    names = {name.lower() for turn in fixture.turns for name, _ in turn.headers}
    assert names <= {"content-type", "server", "x-accel-buffering"}


def test_every_file_is_one_of_the_format() -> None:
    """Fixtures hold the files that the format names and the expected invocations, and no others."""
    known = {name for name, _ in FILES} | {"expected/invocations.json"}
    found = {file.relative_to(one.path).as_posix() for one in ALL for file in one.path.rglob("*.*")}
    named = {re.sub(r"-\d+\.", ".", re.sub(r"turn-\d+", "turn-N", name)) for name in found}
    # The fixtures here were recorded before it was kept.
    assert named == known - {"client/response.toml"}


def test_git_leaves_event_streams_alone() -> None:
    """A checkout never changes the line ends of a recorded stream."""
    stream = FIXTURES / "gateway.chat/crlf/turn-1/response.sse"
    assert b"\r\n\r\n" in stream.read_bytes()
    attributes = (FIXTURES.parent / ".gitattributes").read_text().splitlines()
    assert "*.sse -text" in attributes
    if (FIXTURES.parent / ".git").exists():
        said = subprocess.run(
            ["git", "check-attr", "text", str(stream)],
            cwd=FIXTURES,
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.strip().endswith("text: unset")
