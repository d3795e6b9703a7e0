"""A serving process loads few libraries, since each costs memory in every process."""

import re
from pathlib import Path

import pytest
from proxy_process import serving, write_config
from waiting import until

NOT_NEEDED = {
    "asyncpg",  # for a record in PostgreSQL
    "jsonschema_rs",  # for tools that bring a schema, and patterns
    "limits",  # for limits
    "lxml",  # for pages, in a process of their own
    "opentelemetry",  # for traces
    "redis",  # for limits in Redis
    "trafilatura",  # for pages
}


@pytest.mark.parametrize("workers", [1, 2])
async def test_who_serves_loads_no_library_for_what_is_not_asked_of_it(tmp_path: Path, workers: int) -> None:
    """No process that serves and logs JSON imports what only other commands, or other settings, need."""
    # The playground of the web UI has limits, too.
    more = "[limits]\nrequests = []\ntool_calls = []\n[ui]\nenabled = false\n"
    write_config(tmp_path, "http://127.0.0.1:1/v1", more=more, workers=workers)
    # The workers inherit this: each process reports its imports on standard error.
    async with serving(tmp_path, env={"PYTHONPROFILEIMPORTTIME": "1"}) as proxy:
        served = r"\| +proxy\.server\.connections\.connection$"
        await until(lambda: sum(bool(re.search(served, line)) for line in proxy.log) >= workers)
        imported = {found[1] for line in proxy.log if (found := re.search(r"\| +([\w.]+)$", line))}
    loaded = {name.partition(".")[0] for name in imported}
    assert "structlog" in loaded
    assert loaded & NOT_NEEDED == set()
