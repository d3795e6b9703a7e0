"""Write the proxy's answers to each exchange into its folder; read them before you commit them.

By hand: ``python tests/e2e/make_goldens.py [NAME…]``. The tests compare with these files, so a file that
nobody read proves nothing.
"""

import asyncio
import json
import sys
from pathlib import Path

sys.path.extend(map(str, Path(__file__).resolve().parents[1].glob("support/*")))

from e2e_rig import (
    CORE_TOOLS,
    Answer,
    fixtures_for,
    golden_file,
    invocation_rows,
    is_orchestrated,
    of_any_run,
    proxy_for,
    repair_for,
    response_ids,
)
from fixture_loader import Exchange, all_exchanges

from proxy.records.rows import ToolInvocationRecord
from proxy.telemetry.log.setup import configure_logging


async def main(names: list[str]) -> None:
    """Write the goldens of the named exchanges, or of all."""
    configure_logging(level="critical")
    for fixture in all_exchanges():
        if names and fixture.name not in names:
            continue
        allow = CORE_TOOLS if is_orchestrated(fixture) else ()
        repair, fixtures = repair_for(fixture), fixtures_for(fixture)
        async with proxy_for("replay", allow=allow, fixtures=fixtures, repair=repair) as proxy:
            answers = await proxy.play(fixture)
            for position, answer in enumerate(answers):
                file = golden_file(fixture, position)
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(_with_recorded_ids(fixture, position, answer.body))
            if is_orchestrated(fixture):
                await _write_invocations(fixture, [await proxy.invocations(a.run_id) for a in answers])
            _say(fixture, answers)


async def _write_invocations(fixture: Exchange, runs: list[list[ToolInvocationRecord]]) -> None:
    file = fixture.path / "expected" / "invocations.json"
    file.parent.mkdir(exist_ok=True)
    rows = [row for records in runs for row in invocation_rows(records)]
    file.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _with_recorded_ids(fixture: Exchange, position: int, body: bytes) -> bytes:
    """Put the recorded ids into an answer, so that the file is the same each time it is written."""
    turn = fixture.turns[position]
    recorded = turn.sse if fixture.streams and turn.sse is not None else turn.json_body
    for known, fresh in zip(response_ids(recorded or b""), response_ids(body), strict=False):
        body = body.replace(fresh.encode(), known.encode())
    return of_any_run(body) if is_orchestrated(fixture) else body


def _say(fixture: Exchange, answers: list[Answer]) -> None:
    print(fixture.name, *(f"{answer.status}:{len(answer.body)}" for answer in answers))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
