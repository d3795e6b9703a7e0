"""``python -m bench.soak [STREAMS]``: the long form of the soak, 10,000 mixed streams with faults.

It runs the soak of the test suite (``tests/faults/test_faults_soak.py``), which CI runs with 2,000 streams.
Descriptors, tasks and memory must return to where they began.
"""

import argparse
import os
import subprocess
import sys

SOAK = "tests/faults/test_faults_soak.py"


def main(arguments: list[str] | None = None) -> int:
    """Run the soak from the root of the repository; return pytest's exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description="Run many streams with faults, and look for leaks."
    )
    parser.add_argument("streams", type=int, nargs="?", default=10_000, help="how many (10000)")
    given = parser.parse_args(arguments)
    command = [sys.executable, "-m", "pytest", SOAK]
    return subprocess.run(command, env={**os.environ, "TOOLRELAY_TEST_SOAK": str(given.streams)}).returncode


if __name__ == "__main__":
    sys.exit(main())
