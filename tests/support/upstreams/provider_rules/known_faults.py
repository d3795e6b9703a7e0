"""Faults of the product that the rules have found and that are not mended yet.

Each pattern fits the whole ids of the tests (``path::name[case]``) that show the fault.  In these tests the
rule refuses nothing.  A test that fits and does not break the rule any more fails: then the entry must go.
"""

import re
from typing import NamedTuple

__all__ = ["KNOWN_FAULTS", "KnownFault"]


class KnownFault(NamedTuple):
    """A rule that the product breaks in certain tests, and what is wrong with the product."""

    rule: str
    tests: str
    reason: str

    def shown_by(self, test: str) -> bool:
        """Return whether the test with this id shows the fault."""
        return re.fullmatch(self.tests, test) is not None


KNOWN_FAULTS: tuple[KnownFault, ...] = ()
