"""The source of the UI: it makes no markup from data, loads nothing from other hosts, and is small."""

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from e2e_packages import installed_packages
from require import require

import proxy

STATIC = Path(proxy.__file__).parent / "ui" / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
MOST_BYTES = 150_000
MOST_LINES = 400
MOST_FILES = 12
LONGEST_LINE = 120
DATA = ("core/icons.js", "core/visible.js", "parts/approvals/approve.js")
"""Files with paths of drawings and sets of characters, which no line break may cut."""
ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "createContextualFragment",
    "DOMParser",
    "srcdoc",
    "setHTML",
    "eval(",
    "new Function",
    "javascript:",
    "cssText",
    "setTimeout('",
    'setTimeout("',
)
"""Ways in which a text becomes markup or code."""
NAMESPACE = "http://www.w3.org/2000/svg"


def named(path: Path) -> str:
    """A file's name as a test shows it."""
    return str(path.relative_to(STATIC))


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_no_text_becomes_markup_or_code(path: Path) -> None:
    """Scripts show untrusted text as text nodes only: none uses a way to make markup or code of it."""
    text = path.read_text("utf-8")
    assert [word for word in FORBIDDEN if word in text] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_text_nodes_are_made_in_one_place(path: Path) -> None:
    """Only the modules that show hidden characters by name make text nodes, so no text bypasses them."""
    if named(path) in ("core/dom.js", "core/visible.js"):
        return
    text = path.read_text("utf-8")
    assert "createTextNode" not in text
    assert "createElement" not in text
    # Texts that are set directly are fixed words or numbers.
    ours = {"core/shell.js": 2, "core/dom.js": 2}
    assert text.count("textContent =") <= ours.get(named(path), 0)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    """No file names another host, loads by ``url()``, or holds a script or style in markup."""
    text = path.read_text("utf-8")
    assert re.findall(r"https?://(?![$.\\/])[^\s\"'`)]+", text.replace(NAMESPACE, "")) == []
    assert not re.search(r"[\"'`]//[a-z]", text)
    assert "url(" not in text
    if path.suffix == ".html":
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=", text)


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_each_import_is_relative_and_there(path: Path) -> None:
    """Each import is relative and its file exists, so that modules load below any prefix."""
    text = path.read_text("utf-8")
    for pair in re.findall(r"^import (?:.* from )?\"([^\"]+)\"|import\(\"([^\"]+)\"\)", text, re.MULTILINE):
        name = "".join(pair)
        assert name.startswith("."), name
        assert (path.parent / name).resolve().is_file(), name


def test_each_page_of_the_router_is_there() -> None:
    """Each page of the router has a module."""
    pages = re.findall(r"/, \"(\w+)\"\]", (STATIC / "core" / "router.js").read_text("utf-8"))
    assert len(set(pages)) == 12
    assert [page for page in pages if not (STATIC / "pages" / f"{page}.js").is_file()] == []


def test_it_is_small() -> None:
    """All files together, compressed, have at most 150 KB."""
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in FILES) <= MOST_BYTES


def test_files_and_folders_can_be_read() -> None:
    """No file has more than 400 lines, and no folder more than 12 files."""
    assert [named(path) for path in FILES if path.read_text("utf-8").count("\n") > MOST_LINES] == []
    folders = {path.parent for path in FILES}
    assert [
        str(folder) for folder in folders if sum(one.is_file() for one in folder.iterdir()) > MOST_FILES
    ] == []


def test_dark_is_one_set_of_colours() -> None:
    """The chosen dark theme and the one that the system prefers have the same colours."""
    css = (STATIC / "css" / "base.css").read_text("utf-8")
    chosen = re.search(r":root\[data-theme=\"dark\"\] \{(.*?)\}", css, re.DOTALL)
    preferred = re.search(r":root:not\(\[data-theme=\"light\"\]\) \{(.*?)\}", css, re.DOTALL)
    assert chosen is not None
    assert preferred is not None
    assert chosen[1].split() == preferred[1].split()


@pytest.mark.parametrize("path", FILES, ids=named)
def test_no_line_is_too_long(path: Path) -> None:
    """Lines fit beside each other on a screen; texts are cut by hand, because no formatter cuts them."""
    lines = path.read_text("utf-8").splitlines()
    long = [number for number, line in enumerate(lines, 1) if len(line) > LONGEST_LINE]
    assert not long or named(path) in DATA or path.suffix == ".svg", long


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_scripts_and_styles_are_formatted_and_linted() -> None:
    """Biome has nothing to change and finds no fault (``biome format --write`` formats; biome.json)."""
    npm = shutil.which("npm")
    require("node", npm is not None, "npm is not installed")
    packages, trouble = installed_packages(str(npm))
    require("node", packages is not None, f"the npm packages cannot be installed: {trouble}")
    assert packages is not None
    command = [str(packages / "node_modules" / ".bin" / "biome"), "ci", "--colors=off", "--error-on-warnings"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
