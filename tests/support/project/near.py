"""Runs the tests that are near to what was changed: ``make near``, or ``near.py PATH…`` for these files.

Changed is what differs from ``main``: in commits of this branch, in the work tree, and in new files. Near
are the tests of a module's own folder, and test files that import the module itself. This finds most faults
in a minute or two; the whole suite decides.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ALWAYS = ("tests/test_layout.py",)
"""Tests about the code as a whole, which any change of the package can break."""

DOCUMENTS = ("tests/test_documents.py", "tests/test_reference.py", "tests/test_readme.py")


def near(changed: Iterable[str]) -> list[str]:
    """Return the test files and folders to run for changed files, whose paths begin at the root."""
    found: set[str] = set()
    for path in changed:
        if path.startswith("tests/") and Path(path).name.startswith("test_"):
            found.add(path)
        elif path.startswith("proxy/") and path.endswith(".py"):
            found |= {*ALWAYS, *folder_tests(path), *_importing(path)}
        elif path.startswith("tests/support/") and path.endswith(".py"):
            found |= _importing_name(Path(path).stem)
        elif path.endswith(".md"):
            found |= set(DOCUMENTS)
        elif path.startswith("proxy/ui/static/"):
            found |= {"tests/test_ui_source.py", "tests/ui"}
    folders = {path for path in found if not path.endswith(".py")}
    return sorted(path for path in found if not folders & {str(each) for each in Path(path).parents})


def folder_tests(path: str) -> set[str]:
    """Return the folder of ``tests/`` for a module: the deepest one that stands for its folder."""
    for folder in Path(path).relative_to("proxy").parents:
        own = ROOT / "tests" / folder
        if folder != Path() and any(own.rglob("test_*.py")):
            return {own.relative_to(ROOT).as_posix()}
    return set()


@cache
def _imports() -> dict[str, frozenset[str]]:
    """The names of all modules that each test file imports."""
    made = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        names = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        made[path.relative_to(ROOT).as_posix()] = frozenset(names)
    return made


def _importing(path: str) -> set[str]:
    return _importing_name(path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))


def _importing_name(module: str) -> set[str]:
    return {test for test, names in _imports().items() if module in names}


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.split("\n")


def main() -> int:
    """Run pytest on what is near; return its status."""
    changed = sys.argv[1:] or [
        *_git("diff", "--name-only", "main"),
        *_git("ls-files", "--others", "--exclude-standard"),
    ]
    tests = near(filter(None, changed))
    if not tests:
        print("nothing that differs from main has tests of its own; the whole suite is: make test")
        return 0
    print("running:", *tests)
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "auto", *tests], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
