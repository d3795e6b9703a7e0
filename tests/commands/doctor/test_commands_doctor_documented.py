"""The documentation shows lines of ``check`` as the command prints them."""

import re
from pathlib import Path

from command_line import Here
from documents import DOCS

from proxy.upstreams.recorded.replay import packaged_fixtures


def test_troubleshooting_shows_the_lines_of_check(tmp_path: Path, here: Here) -> None:
    """``check`` prints each line that the page on troubleshooting shows, apart from column widths."""
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    block = page.partition("```text\n")[2].partition("```")[0]
    shown = [" ".join(line.split()) for line in block.splitlines() if line.strip()]
    assert len(shown) == 2
    (tmp_path / "toolrelay.toml").write_text(
        f"[upstreams.recorded]\nbase_url = 'replay:{packaged_fixtures()}'\nwires = ['chat']\n"
    )
    printed = [re.sub(r"\s+", " ", line).strip() for line in here("check").stdout.splitlines()]
    assert set(shown) <= set(printed)
