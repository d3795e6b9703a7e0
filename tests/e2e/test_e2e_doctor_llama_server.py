"""``toolrelay doctor`` examines a real llama-server, if one is running.

``TOOLRELAY_TEST_LLAMA_SERVER`` is its base URL. It needs a model, which nothing here can download.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from require import require
from waiting import PATIENCE_S

URL = os.environ.get("TOOLRELAY_TEST_LLAMA_SERVER", "")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_real_server_is_examined(tmp_path: Path) -> None:
    """The doctor finds that the server streams Chat, and examines its Responses streams."""
    require("llama-server", bool(URL), "TOOLRELAY_TEST_LLAMA_SERVER names no llama-server")
    program = Path(sys.executable).with_name("toolrelay")
    done = subprocess.run(
        [program, "doctor", "--upstream", URL, "--yes", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=10 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {one["check"]: one["found"] for one in json.loads(done.stdout)["checks"]}
    assert found["streaming"] == "yes"
    assert found["responses_stream"] in ("yes", "quirk")
    assert not list(tmp_path.iterdir())
