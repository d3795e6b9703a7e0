"""What is distributed: the package's metadata, the lock and the image; and the script that checks it."""

import ast
import re
import stat
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

from proxy import __version__
from proxy.base.errors import how_to_install

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def normal(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared_dependencies() -> set[str]:
    """What the package needs at run time, with the extras that add a feature."""
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    built_in = ("oidc", "otel", "postgres", "programs", "redis", "web")
    lines = [*project["dependencies"], *(line for extra in built_in for line in extras[extra])]
    names = (_NAME.match(line) for line in lines)
    return {normal(found.group()) for found in names if found}


def optional_dependencies() -> set[str]:
    """What the extras that add a feature need."""
    extras = PROJECT["project"]["optional-dependencies"]
    features = ("mcp", "oidc", "openapi", "otel", "programs", "pytest", "redis", "web")
    names = (_NAME.match(line) for feature in features for line in extras[feature])
    return {normal(found.group()) for found in names if found}


def locked() -> dict[str, str]:
    """Each locked distribution with its block of the lock."""
    blocks = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    return {normal(block.partition("==")[0]): block for block in blocks}


def test_names() -> None:
    """The distribution and its command are toolrelay, and the package is proxy."""
    project = PROJECT["project"]
    assert project["name"] == "toolrelay"
    assert project["scripts"] == {"toolrelay": "proxy.__main__:main"}
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["proxy"]


def test_every_import_is_asked_for() -> None:
    """Everything that the package imports is its own, in the standard library, or a declared dependency."""
    providers = packages_distributions()
    # pydantic pins pydantic-core to one version: a requirement of ours could only contradict it.
    asked_for = declared_dependencies() | optional_dependencies() | {"pydantic-core"}
    strangers: set[str] = set()
    for path in (ROOT / "proxy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for top in {name.partition(".")[0] for name in names} - {"proxy"} - set(sys.stdlib_module_names):
                owners = {normal(owner) for owner in providers.get(top, [])}
                if not owners & asked_for:
                    strangers.add(top)
    assert strangers == set()


def test_lock_covers_every_dependency() -> None:
    """Each declared dependency is in the lock, and each entry of the lock has one version and hashes."""
    blocks = locked()
    assert declared_dependencies() - set(blocks) == set()
    for name, block in blocks.items():
        assert re.match(r"[a-z0-9._-]+==[0-9][0-9a-z.+!]*", block), name
        assert "--hash=sha256:" in block, name


def test_lock_covers_what_dependencies_need() -> None:
    """No distribution that an installed dependency needs is missing from the lock."""
    blocks = locked()
    missing: set[str] = set()
    for name in declared_dependencies():
        for line in requires(name) or []:
            found = _NAME.match(line)
            if found and ";" not in line and normal(found.group()) not in blocks:
                missing.add(found.group())
    assert missing == set()


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml", "Dockerfile", ".ci/run", "Makefile"])
def test_no_machine_is_named(name: str) -> None:
    """No file that installs things names a host, an index or a path of somebody's machine."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(r"https?://\S+|file://\S+|--(?:extra-)?index-url|--find-links|/home/\w+|/root\b", text)
    assert [hit for hit in found if "127.0.0.1" not in hit] == []


def test_version_is_the_same_everywhere() -> None:
    """Metadata, package and the changelog's newest release name one version."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[([^\]]+)\]", changelog, re.MULTILINE)
    newest = next(name for name in releases if name != "Unreleased")
    assert PROJECT["project"]["version"] == __version__ == newest == version("toolrelay")


def test_wheel_carries_data() -> None:
    """The wheel contains the migrations and the demo's fixtures, from folders that exist."""
    carried = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert carried == {"migrations": "proxy/_data/migrations", "fixtures/demo": "proxy/_data/fixtures"}
    for folder in carried:
        assert any((ROOT / folder).rglob("*.*"))


def test_image_copies_what_is_there() -> None:
    """The Dockerfile copies files that exist and that .dockerignore lets through."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
    sources = [source.rstrip("/") for line in lines for source in line.split()]
    assert "requirements.lock" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignore, source


def test_image_is_safe_by_default() -> None:
    """The image runs as an ordinary user, checks its health and starts without a shell."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    final = dockerfile.rpartition("\nFROM ")[2]
    assert re.search(r"^USER (?!root)\w+$", final, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK .*\[\"python\", .*/healthz", final, re.MULTILINE)
    assert 'ENTRYPOINT ["toolrelay"]' in final
    assert 'VOLUME ["/data"]' in final
    assert "--require-hashes" in dockerfile


def test_recorded_bytes_stay_as_they_are() -> None:
    """Git converts no line ends in recorded streams, whatever the machine."""
    attributes = (ROOT / ".gitattributes").read_text(encoding="utf-8").splitlines()
    assert "*.sse -text" in attributes


def test_ci_runs_everything() -> None:
    """.ci/run is an executable script that a shell can read; it checks format, lint, types and tests."""
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    text = script.read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", script], check=True, timeout=PATIENCE_S)
    assert "set -euo pipefail" in text
    for step in (
        'ruff" format --check',
        'ruff" check',
        'mypy"',
        "-m pytest",
        "TOOLRELAY_TEST_REQUIRE",
        'mkdocs" build --strict',
    ):
        assert step in text, step


def test_every_hint_to_install_something_names_what_there_is() -> None:
    """No text says to install toolrelay from an index, which does not have it; each named extra exists."""
    extras = set(PROJECT["project"]["optional-dependencies"])
    documents = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "bench/README.md", "Makefile")]
    documents += (ROOT / "docs").rglob("*.md")
    for file in (*documents, *(ROOT / "proxy").rglob("*.py")):
        text = file.read_text("utf-8")
        # A command may follow the installation: "pip install . && toolrelay demo".
        assert not re.search(r"install[^\n&`]*\btoolrelay\b(?!'s source)", text), file
        for extra in re.findall(r'how_to_install\("(\w+)"\)', text):
            assert extra in extras, file
    assert how_to_install("web").endswith("pip install '.[web]'")
