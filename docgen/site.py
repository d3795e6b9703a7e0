"""Hooks of MkDocs (``mkdocs.yml``) for parts of the site that are not in ``docs/``."""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parents[1]
PROJECT: Final = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
# Each character fits one alternative only; otherwise a bracket before many code spans takes for ever.
_LINK: Final = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]`]|`[^`]*`)*)\]\((?P<target>[^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the project's own pages below ``project/``, and add unlisted pages to the navigation."""
    for name in PROJECT:
        files.append(File.generated(config, f"project/{name}", content=(ROOT / name).read_text("utf-8")))
    named = set(_named(config.nav or []))
    more = [
        file.src_uri
        for file in files.documentation_pages()
        if file.src_uri not in named and not re.match(r"(project|decisions)/", file.src_uri)
    ]
    config.nav = [
        *(config.nav or []),
        *([{"More": sorted(more)}] if more else []),
        {"Project": [f"project/{name}" for name in PROJECT]},
    ]
    return files


def _named(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [name for entry in entries for name in _named(entry)]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links to the project's pages for the site; make links to other files plain text.

    Decisions are for who changes the code. The search leaves them out, so that it answers with instructions.
    """
    here = PurePosixPath(page.file.src_uri)
    if here.parts[0] == "decisions":
        page.meta["search"] = {"exclude": True}
    project = here.parts[0] == "project"
    # The page's folder in the repository, relative to its root.
    folder = PurePosixPath() if project else PurePosixPath("docs") / here.parent

    def led(found: re.Match[str]) -> str:
        target = found["target"]
        if re.match(r"[a-z]+:|#", target):
            return found.group()
        path, mark, fragment = target.partition("#")
        repository = os.path.normpath(folder / path)
        if repository in PROJECT:
            site = f"project/{repository}"
        elif repository.startswith("docs/"):
            site = repository.removeprefix("docs/")
        else:
            return found["text"]
        if (ROOT / "docs" / site).is_dir():
            site += "/README.md"
        return f"[{found['text']}]({os.path.relpath(site, here.parent)}{mark}{fragment})"

    return _LINK.sub(led, markdown)
