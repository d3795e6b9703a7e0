"""What real providers refuse, as data: the one table of rules for all doubles of the tests.

This package does not use the package under test.
"""

from provider_rules.known_faults import KNOWN_FAULTS, KnownFault
from provider_rules.providers import PROVIDERS, REFERENCE, RULES, Broken, Refusal, broken, refusal
from provider_rules.rule import Asked, Fault, Rule

__all__ = [
    "KNOWN_FAULTS",
    "PROVIDERS",
    "REFERENCE",
    "RULES",
    "Asked",
    "Broken",
    "Fault",
    "KnownFault",
    "Refusal",
    "Rule",
    "broken",
    "refusal",
]
