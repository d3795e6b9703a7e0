"""Ids of rows begin with the time, and go on with chance."""

import re
import time
from itertools import islice

import pytest

from proxy.records.ids import row_ids


def test_ids_have_a_prefix_and_32_digits_and_differ() -> None:
    """Each id is the prefix and 32 hexadecimal digits, of which the last 28 are never the same."""
    made = [*islice(row_ids("run_"), 1000), *islice(row_ids("run_", at_once=1), 10)]
    assert all(re.fullmatch(r"run_[0-9a-f]{32}", one) for one in made)
    assert len({one[-28:] for one in made}) == len(made)


def test_ids_of_one_moment_begin_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of a quarter of a second have the same four digits, and later ids greater ones."""
    now = 1_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    ids = row_ids("run_")
    first, second = next(ids), next(ids)
    now += 0.25
    later = next(ids)
    assert first[4:8] == second[4:8] == f"{4_000_000 & 0xFFFF:04x}"
    assert int(later[4:8], 16) == int(first[4:8], 16) + 1
