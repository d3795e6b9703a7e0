"""Documents are as short as they promise, and what they point to exists."""

import ast
import importlib
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import toy_dialect

from proxy.wires.registry.table import BY_WIRE

ROOT = Path(__file__).resolve().parents[1]
DECISIONS = ROOT / "docs" / "decisions"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MOST_WORDS = 1_500


def _anchor(title: str) -> str:
    """The fragment that a Markdown viewer gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def _anchors(text: str) -> set[str]:
    """What a link into a page can name: its headings, and the places with an id."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {*map(_anchor, headings), *re.findall(r'<a id="([^"]+)">', text)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_link_within_the_repository_resolves(path: Path) -> None:
    """A relative link names a file or folder that exists, and its fragment names a heading there."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, fragment = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        if fragment:
            assert fragment in _anchors(target.read_text("utf-8")), link


def test_the_map_is_short() -> None:
    """ARCHITECTURE.md has at most 1,500 words, so that a newcomer reads all of it."""
    assert len((ROOT / "ARCHITECTURE.md").read_text("utf-8").split()) <= MOST_WORDS


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_each_file_that_is_named_exists(name: str) -> None:
    """Every file of the product that these documents name exists."""
    named = re.findall(r"`(proxy/[\w/.]+)`", (ROOT / name).read_text("utf-8"))
    assert len(named) >= 15
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_index_names_each_decision_once() -> None:
    """Each decision has its own number, and the index lists the decisions in that order."""
    pages = sorted((path.name for path in DECISIONS.glob("[0-9]*.md")), key=_number)
    numbers = [_number(name) for name in pages]
    assert numbers == list(range(1, len(numbers) + 1))
    index = (DECISIONS / "README.md").read_text("utf-8")
    assert re.findall(r"^- \[.*\]\((.*)\)$", index, re.MULTILINE) == pages


def _number(name: str) -> int:
    return int(name.partition("-")[0])


@pytest.mark.parametrize("path", sorted(DECISIONS.glob("[0-9]*.md")), ids=lambda path: path.stem)
def test_each_decision_has_three_sections(path: Path) -> None:
    """Each decision has the sections Context, Decision and Consequences."""
    text = path.read_text("utf-8")
    sections = re.findall(r"^## (.*)\n\n(?=\S)", text, re.MULTILINE)
    assert sections == ["Context", "Decision", "Consequences"]


PRIVATE_WORDS = ("door", "doors", "gate", "mould", "moulds", "moulded", "skim", "skimmed")
"""Words that only this project would understand: write authentication, admission, template, fast path."""


def _prose() -> Iterator[tuple[Path, str]]:
    """The documents except the changelog, and the comments and docstrings of the product."""
    for path in DOCUMENTS:
        if path.name != "CHANGELOG.md":
            yield path, path.read_text("utf-8")
    for path in (ROOT / "proxy").rglob("*.py"):
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                written = token.string.startswith('"""') if token.type == tokenize.STRING else False
                if written or token.type == tokenize.COMMENT:
                    yield path, token.string


def test_prose_has_no_private_words() -> None:
    """Documents, comments and docstrings use the field's words, so that a newcomer can look them up."""
    private = re.compile(rf"\b(?:{'|'.join(PRIVATE_WORDS)})\b", re.IGNORECASE)
    found = {(str(path.relative_to(ROOT)), word) for path, text in _prose() for word in private.findall(text)}
    assert found == set()


LOOKED_FOR = (
    "authentication",
    "rate limits",
    "idempotency",
    "keep-alive comments",
    "hidden turns",
    "worker signals",
    "upstream retries",
    "a new metric",
    "a new setting",
    "a new dialect",
    "a new tool provider",
    "CORS",
    "sealing",
    "draining",
    "redaction",
)


@pytest.mark.parametrize("what", LOOKED_FOR)
def test_a_newcomer_is_told_where_to_change_it(what: str) -> None:
    """CONTRIBUTING.md has one row for each of these changes, which names a file of the product."""
    rows = re.findall(rf"^\| {what} \| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 1
    assert "`proxy/" in rows[0]


def test_each_type_of_the_glossary_exists() -> None:
    """Each type that the glossary names is defined in the code."""
    glossary = (ROOT / "docs/glossary.md").read_text("utf-8")
    named = set(re.findall(r"`([A-Z][A-Za-z]+)`", glossary))
    assert len(named) > 30
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "proxy").rglob("*.py"))
    defined = set(re.findall(r"^(?:class (\w+)|(\w+) = )", code, re.MULTILINE))
    assert named - {name for pair in defined for name in pair} == set()


def test_links_of_the_site_are_found_behind_any_number_of_code_spans() -> None:
    """A bracket that opens no link, before many code spans, does not hold the build of the site."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    site = importlib.import_module("docgen.site")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="project/CHANGELOG.md"))
    text = (
        "[an open bracket " + "and `code` " * 200 + "and [a `link]`](README.md), [the map](ARCHITECTURE.md)"
    )
    changed = site.on_page_markdown(text, page)
    assert changed.endswith("and a `link]`, [the map](ARCHITECTURE.md)")


@pytest.mark.parametrize(("name", "excluded"), [("decisions/README.md", True), ("how-to/serve.md", False)])
def test_the_search_of_the_site_leaves_the_decisions_out(name: str, excluded: bool) -> None:
    """A search answers with instructions, not with reasons."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    page = SimpleNamespace(file=SimpleNamespace(src_uri=name), meta={})
    importlib.import_module("docgen.site").on_page_markdown("", page)
    assert ("search" in page.meta) is excluded


def _dialects_in(path: Path) -> set[str]:
    """The dialects that a module names, as a text or by an import."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named.add(node.value)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("proxy.wires"):
            named |= {*str(node.module).split("."), *(alias.name for alias in node.names)}
    return named & set(BY_WIRE)


def test_the_files_of_a_further_dialect_are_named() -> None:
    """docs/extending.md names every file that knows most dialects, and only these; all others know one."""
    text = (ROOT / "docs/extending.md").read_text("utf-8")
    named = re.findall(r"^ *\| `(proxy/[\w/]+\.py)` \|", text, re.MULTILINE)
    outside = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "proxy").rglob("*.py")
        if path.parts[-2] not in BY_WIRE
        if len(_dialects_in(path)) >= 3
    ]
    assert sorted(named) == sorted(outside)


def test_the_toy_dialect_begins_where_the_page_says() -> None:
    """Each class that docs/extending.md names for a dialect is in its file; the toy has most of them."""
    section = (ROOT / "docs/extending.md").read_text("utf-8").partition("## A dialect")[2]
    bases = re.findall(r"`(\w+)`,? (?:or `(\w+)` if [\w ]+, )?of `(wires/[\w/]+)\.py`", section)
    assert len(bases) >= 6
    own = ast.parse(Path(toy_dialect.__file__).read_text("utf-8"))
    imported = {
        alias.name for node in ast.walk(own) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    begun_with = set()
    for *classes, path in bases:
        module = importlib.import_module("proxy." + path.replace("/", "."))
        assert all(hasattr(module, name) for name in classes if name), path
        begun_with.add(any(name in imported for name in classes) or path)
    assert begun_with == {True, "wires/stream/composing"}


WALK = """
from types import MappingProxyType
from toy_dialect import TOY, TOY_ENDPOINTS, ToyWire
from proxy.wires.registry import table
table.SERVED = table.SERVED.extended_with(TOY_ENDPOINTS)
table.BY_WIRE = MappingProxyType({**table.BY_WIRE, "toy": TOY})
from proxy.wires.registry import requests, wires
from proxy.commands.doctor.probing.probe import lists_of
from proxy.config.settings import UpstreamConfig
from proxy.upstreams.recorded.format import ExchangeMeta
assert UpstreamConfig(base_url="http://toys.example", api_key=None, wires=("toy",)).wires == ("toy",)
assert requests.continued_by({"after": "toy_1"}) == ("after", "toy_1")
assert requests.LISTS["turns"] > requests.LISTS["kit"] > 0
assert lists_of(("toy",)) is TOY.models
assert "`toy`" in str(ExchangeMeta.model_fields["wire"].description)
assert table.SERVED.find("POST", "/toy").dialect is TOY
"""


def test_a_further_dialect_is_known_everywhere_once_the_registry_has_it() -> None:
    """With the toy in the files that docs/extending.md names, settings, requests and doctor know it."""
    paths = [str(Path(toy_dialect.__file__).parent), str(ROOT)]
    code = f"import sys; sys.path[:0] = {paths!r}\n{WALK}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
