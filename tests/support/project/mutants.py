"""Changes the most delicate code in small ways, one at a time, and lists the changes that no test noticed.

``make mutants`` runs this module; ``make mutants PART=policy`` runs it for one part. mutmut makes the
changes in a copy of the project below ``build/mutants/``.
"""

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
COPIED = (
    "proxy",
    "tests",
    "fixtures",
    "migrations",
    "bench",
    "docgen",
    "docs",
    "pyproject.toml",
    "README.md",
)
NOTICED = ("killed", "timeout", "suspicious", "caught by type check")
"""mutmut's results for a change that the tests noticed."""


@dataclass(frozen=True)
class Part:
    """Code, and the tests that must notice a change of it."""

    code: tuple[str, ...]
    tests: tuple[str, ...]


PARTS = {
    "run": Part(
        tuple(
            f"proxy/relay/run/{name}.py"
            for name in ("keepalive", "parallel_tool_use", "run", "state", "usage")
        ),
        (
            "tests/relay/run/test_relay_run.py",
            "tests/relay/run/test_relay_run_keepalive.py",
            "tests/relay/run/test_relay_run_ambiguity.py",
            "tests/relay/run/test_relay_run_budgets.py",
            "tests/relay/run/test_relay_run_images.py",
            "tests/relay/run/test_relay_run_mixed.py",
            "tests/relay/run/test_relay_run_native.py",
            "tests/wires/openai/test_wires_openai_parallel_tool_use.py",
            "tests/relay/run/test_relay_run_parents.py",
            "tests/relay/run/test_relay_run_pauses.py",
            "tests/relay/run/test_relay_run_state.py",
            "tests/relay/run/test_relay_run_trace.py",
            "tests/relay/run/test_relay_run_usage.py",
            "tests/relay/approvals/test_relay_approvals_approvals.py",
            "tests/relay/test_relay_agents.py",
            "tests/relay/test_relay_agents_asking.py",
            "tests/relay/test_relay_metering.py",
        ),
    ),
    "loop": Part(
        tuple(
            f"proxy/relay/run/{name}.py"
            for name in ("ending", "failing", "journal", "orchestrator", "tool_calls")
        ),
        (
            "tests/relay/run/test_relay_run_gone.py",
            "tests/relay/run/test_relay_run_loop.py",
            "tests/relay/run/test_relay_run_mixed.py",
            "tests/relay/run/test_relay_run_responses.py",
            "tests/relay/run/test_relay_run_trace.py",
            "tests/relay/approvals/test_relay_approvals_approvals.py",
            "tests/relay/test_relay_agents.py",
            "tests/relay/test_relay_agents_asking.py",
        ),
    ),
    "turn": Part(
        ("proxy/relay/run/turn/*.py",),
        (
            "tests/relay/run/test_relay_run_crossed.py",
            "tests/relay/run/test_relay_run_crossed_messages.py",
            "tests/relay/run/test_relay_run_loop.py",
            "tests/relay/run/test_relay_run_refused_fields.py",
            "tests/relay/run/turn/test_relay_run_turn_end_mark.py",
            "tests/relay/run/turn/test_relay_run_turn_stream.py",
            "tests/relay/test_relay_sniffing.py",
        ),
    ),
    "offer": Part(
        ("proxy/relay/offering/offer.py",),
        ("tests/relay/test_relay_offer.py", "tests/relay/run/test_relay_run_refused_fields.py"),
    ),
    "fallback": Part(
        ("proxy/relay/routing/fallback.py",), ("tests/relay/routing/test_relay_routing_fallback.py",)
    ),
    "policy": Part(
        ("proxy/tools/access/policy.py",),
        (
            "tests/tools/access/test_tools_access_credentials.py",
            "tests/tools/access/test_tools_access_policy.py",
            "tests/tools/contract/test_tools_contract_bounds.py",
            "tests/tools/contract/test_tools_contract_url_argument.py",
            "tests/tools/running/test_tools_running_plan.py",
        ),
    ),
    "assembler": Part(("proxy/wires/turn/assembler.py",), ("tests/wires/turn/test_wires_turn_assembler.py",)),
}


def main() -> int:
    """Run the named parts, or all; return 1 if a part ended before all its changes were tried."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; default: all")
    parser.add_argument("--minutes", type=float, default=15.0, help="time limit of each part (default: 15)")
    parser.add_argument("--processes", type=int, help="tests run at a time (default: one for each processor)")
    given = parser.parse_args()
    if unknown := sorted(set(given.parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}. Parts: {', '.join(PARTS)}")
    results = [_try(name, given.minutes * 60, given.processes) for name in given.parts or PARTS]
    return 0 if all(results) else 1


def _try(name: str, within_s: float, processes: int | None) -> bool:
    """Try the changes of one part and print those that no test noticed; return whether all were tried."""
    copy = _copied(name)
    print(f"{name}: {', '.join(PARTS[name].code)}", flush=True)
    with (copy / "mutmut.log").open("wb") as log:
        try:
            command = [sys.executable, "-m", "mutmut", "run"]
            command += [] if processes is None else ["--max-children", str(processes)]
            subprocess.run(command, cwd=copy, stdout=log, stderr=log, timeout=within_s, check=True)
            whole = True
        except subprocess.TimeoutExpired:
            whole = False
        except subprocess.CalledProcessError as error:
            print(f"  mutmut ended with {error.returncode}; its output: {copy}/mutmut.log")
            return False
    listed = subprocess.run(
        [sys.executable, "-m", "mutmut", "results", "--all", "true"],
        cwd=copy,
        capture_output=True,
        text=True,
        check=True,
    )
    changes = dict(line.strip().rsplit(": ", 1) for line in listed.stdout.splitlines() if ": " in line)
    tried = {change: said for change, said in changes.items() if said != "not checked"}
    missed = {change: said for change, said in tried.items() if said not in NOTICED}
    for change, said in sorted(missed.items()):
        print(f"  {said}: {change}")
    print(f"  {len(tried)} of {len(changes)} changes tried, {len(missed)} not noticed", flush=True)
    print(f"  show one: cd {copy} && {sys.executable} -m mutmut show NAME")
    return whole


def _copied(name: str) -> Path:
    """Make a new copy of the project that is set up for one part.

    mutmut would continue with an older copy, but would not notice that tests have changed since.
    """
    copy = ROOT / "build" / "mutants" / name
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for given in COPIED:
        if (ROOT / given).is_dir():
            shutil.copytree(ROOT / given, copy / given, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / given, copy / given)
    settings = {
        "source_paths": ["proxy"],
        "only_mutate": list(PARTS[name].code),
        "also_copy": ["fixtures", "migrations", "bench", "docgen", "docs", "README.md"],
        "pytest_add_cli_args": ["-q", "-p", "no:randomly", "-m", "not slow", "--hypothesis-profile=ci"],
        "pytest_add_cli_args_test_selection": list(PARTS[name].tests),
    }
    with (copy / "pyproject.toml").open("a", encoding="utf-8") as file:
        # TOML and Python write a list of plain strings in the same way.
        file.write("\n[tool.mutmut]\n" + "".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    return copy


if __name__ == "__main__":
    sys.exit(main())
