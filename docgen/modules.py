"""Tables of the modules: the purpose of each shared file and of each folder of ``proxy/``."""

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parents[1] / "proxy"
_SHARED: Final = ("base", "records", "json")


def shared_modules() -> str:
    """Build the table of modules that every package may import, with the first paragraphs of their
    docstrings."""
    files = (file for folder in _SHARED for file in sorted((_PACKAGE / folder).glob("[!_]*.py")))
    return _table("module", ((file.relative_to(_PACKAGE).as_posix(), file) for file in files))


def folders() -> str:
    """Build the table of folders inside the packages, with the first paragraphs of their docstrings."""
    found = ((file.parent.relative_to(_PACKAGE), file) for file in sorted(_PACKAGE.rglob("__init__.py")))
    return _table("folder", ((f"{name}/", file) for name, file in found if len(name.parts) > 1))


def _table(title: str, rows: Iterable[tuple[str, Path]]) -> str:
    lines = [f"| `{name}` | {_about(file)} |" for name, file in rows]
    return "\n".join([f"| {title} | holds |", "|---|---|", *lines, ""])


def _about(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    first = " ".join(text.partition("\n\n")[0].split())
    return first.replace("``", "`").replace("|", "\\|")
