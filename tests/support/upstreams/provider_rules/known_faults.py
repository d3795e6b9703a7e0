"""Faults of the product that the rules have found and that are not mended yet.

In the tests of an entry the rule refuses nothing. A test that does not break the rule any more fails: then
the entry must go.
"""

import re
from typing import NamedTuple


class KnownFault(NamedTuple):
    """A rule that the product breaks, and what is wrong with the product.

    ``tests`` are patterns of the tests that show it: file without folder, ``::``, name, and case.
    """

    rule: str
    reason: str
    tests: tuple[str, ...]

    def shown_by(self, test: str) -> bool:
        """Return whether the test with this id shows the fault."""
        name = re.sub(r"^[^:\[]*/", "", test)
        return any(re.fullmatch(pattern, name) for pattern in self.tests)


KNOWN_FAULTS: tuple[KnownFault, ...] = ()
