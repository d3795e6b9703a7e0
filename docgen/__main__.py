"""Writes the parts of the documentation that come from the code: ``python -m docgen``."""

from pathlib import Path

from docgen.cast import draw, drawn, play, words
from docgen.pages import pages

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def main() -> None:
    """Write each generated page and the picture of the demo, and print the names of changed files."""
    for name, text in pages(ROOT).items():
        _write(DOCS / name, text)
    picture, lines = DOCS / "demo.svg", play()
    if not picture.exists() or words(drawn(picture.read_text("utf-8"))) != words(lines):
        _write(picture, draw(lines))


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
