"""``make near`` finds the tests of what was changed."""

from pathlib import Path

import pytest
from near import folder_tests, near

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "proxy").iterdir()
    if path.is_dir() and any(path.rglob("*.py"))
)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_has_tests_near_to_it(package: str) -> None:
    """Each module of a package leads to tests: those of its folder, or files that import it."""
    for path in (ROOT / package).rglob("*.py"):
        module = path.relative_to(ROOT).as_posix()
        assert folder_tests(module) or len(near([module])) > 1, module


def test_what_is_near_to_a_change() -> None:
    """A module leads to its folder and its users, a helper to its users, a page to the tests of pages."""
    assert near(["proxy/base/globs.py"])[0] == "tests/base"
    assert "tests/server/auth/test_server_auth_minting.py" in near(["proxy/base/globs.py"])
    assert near(["tests/test_rules.py"]) == ["tests/test_rules.py"]
    assert "tests/test_near.py" in near(["tests/support/project/near.py"])
    assert "tests/test_documents.py" in near(["docs/glossary.md"])
    assert near(["LICENSE"]) == []
