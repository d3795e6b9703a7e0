"""The installed wheel works without the project's folder; it contains its migrations and demo."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from e2e_process import clean_environment, run, serving
from fixture_loader import FIXTURES
from require import require

import proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROJECT = Path(__file__).resolve().parents[2]
BUILD_S = 600
OTHER_PLUGINS = ("aiohttp", "asyncio", "cov", "hypothesispytest", "randomly", "timeout", "xdist")
TAKEN = (
    "proxy",
    "migrations",
    "fixtures/demo",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)


_without_caches = shutil.ignore_patterns("__pycache__", ".*cache")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that the build leaves nothing in the project."""
    require("pip", importlib.util.find_spec("pip") is not None, "this environment has no pip")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in TAKEN:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, source / name, ignore=_without_caches)
        else:
            shutil.copy(PROJECT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out)]
    done = subprocess.run(
        [*command, str(source)], capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    offline = done.returncode != 0 and "hatchling" in done.stderr
    require("network", not offline, f"the build backend cannot be fetched: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("toolrelay-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts' folder of a new environment with the wheel and this environment's dependencies."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    scripts = folder / ("Scripts" if sys.platform == "win32" else "bin")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    here = clean_environment(tmp_path_factory.mktemp("home"))
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(scripts / "python"),
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            str(wheel),
        ],
        folder,
        here,
        timeout=BUILD_S,
    )
    # The dependencies are those of this environment, less the project itself: a path file that is read
    # for packages only, and after the environment's own folder.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return scripts


def test_what_the_wheel_carries(wheel: Path) -> None:
    """The wheel has code, migrations, the demo's exchanges and the type marker; no tests, no records."""
    names = set(zipfile.ZipFile(wheel).namelist())
    for needed in ("proxy/__main__.py", "proxy/py.typed", "proxy/_data/fixtures/both/meta.toml"):
        assert needed in names
    for file in (PROJECT / "migrations").rglob("*.sql"):
        assert f"proxy/_data/migrations/{file.relative_to(PROJECT / 'migrations').as_posix()}" in names
    for file in (FIXTURES / "demo").rglob("*"):
        if file.is_file() and not file.name.startswith("."):
            assert f"proxy/_data/fixtures/{file.relative_to(FIXTURES / 'demo').as_posix()}" in names
    assert not [name for name in names if name.startswith("tests/") or name.endswith((".db", ".pyc"))]


def test_the_installed_command(installed: Path, tmp_path: Path) -> None:
    """The installed command serves the demo from an empty folder and uses nothing of the checkout."""
    empty = tmp_path / "empty"
    empty.mkdir()
    env = clean_environment(tmp_path / "home")
    python, toolrelay = str(installed / "python"), str(installed / "toolrelay")
    where = run([python, "-c", "import proxy; print(proxy.__file__)"], empty, env).strip()
    assert Path(where).is_relative_to(installed.parent)
    assert proxy.__version__ in run([toolrelay, "--version"], empty, env)
    assert proxy.__version__ in run([python, "-m", "proxy", "--version"], empty, env)
    with serving([toolrelay, "demo", "--port", "0", "--speed", "0"], empty, env) as demo:
        demo.read_until("Runs appear here")
        first, last = (
            demo.printed.index(line) for line in ("from openai import OpenAI", "Other questions to ask:")
        )
        program = "\n".join(demo.printed[first : last - 1])
        answer = run([python, "-W", "error", "-c", program], empty, env)
        status, out, err = demo.stop()
    assert "14:05:00" in answer
    assert "7.4" in answer
    assert (status, err) == (0, "")
    assert "completed: 2 turns, 2 tool calls" in out
    assert list(empty.iterdir()) == []


def test_a_strangers_tests_pass_with_the_wheel(installed: Path, tmp_path: Path) -> None:
    """The example of a project with recorded tests passes in an environment that has only the wheel.

    The plugin is found by its entry point, and no key and no provider is needed.
    """
    shutil.copytree(
        PROJECT / "examples" / "replay-tests", project := tmp_path / "project", ignore=_without_caches
    )
    # Of the plugins of this environment, only the wheel's own and what a stranger would have.
    others = [option for name in OTHER_PLUGINS for option in ("-p", f"no:{name}")]
    command = [str(installed / "python"), "-m", "pytest", "-q", "-W", "error", *others]
    said = run(command, project, clean_environment(tmp_path / "home"))
    assert "5 passed" in said
    answered = project / "tests" / "recorded" / "test_openai" / "turn-1" / "request.json"
    answered.write_text(answered.read_text().replace("rivers", "mountains"))
    shutil.rmtree(project / "tests" / "recorded" / "test_openai" / "client")
    with pytest.raises(AssertionError, match=r"\[-mountains-\]\{\+rivers\+\}"):
        run([*command, "-k", "test_openai"], project, clean_environment(tmp_path / "home"))
