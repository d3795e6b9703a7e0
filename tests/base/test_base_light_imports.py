"""A library is imported without parts that nobody uses, which stay importable for everybody else."""

import importlib
import sys
from pathlib import Path

import pytest

from proxy.base.light_imports import import_without

LIBRARY = """
from heavy_part import Drawn
try:
    from heavy_part.deep import Other
except ImportError:
    Other = None
"""


@pytest.fixture
def _library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "light_library.py").write_text(LIBRARY)
    (tmp_path / "heavy_part").mkdir()
    (tmp_path / "heavy_part/__init__.py").write_text("Drawn = 1")
    (tmp_path / "heavy_part/deep.py").write_text("Other = 2")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("light_library", "heavy_part", "heavy_part.deep"):
        monkeypatch.setitem(sys.modules, name, sys)  # Restored after the test.
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("_library")
def test_a_part_is_absent_during_the_import_alone() -> None:
    """A name of the part is an empty class, its submodules are not there; later imports get the real part."""
    import_without("light_library", "heavy_part")
    library = importlib.import_module("light_library")
    assert isinstance(library.Drawn, type)
    assert library.Other is None
    assert "heavy_part" not in sys.modules
    assert importlib.import_module("heavy_part.deep").Other == 2


@pytest.mark.usefixtures("_library")
def test_a_part_that_is_loaded_is_used() -> None:
    """A part that somebody has loaded stays as it is, for the library as well."""
    importlib.import_module("heavy_part")
    import_without("light_library", "heavy_part")
    library = importlib.import_module("light_library")
    assert (library.Drawn, library.Other) == (1, 2)
