"""Every rule that always holds is named by a test that checks it."""

import re
from functools import cache

import pytest
from all_tests import all_tests

RULES = {
    "W1": "no server tool offered: the client's bytes are the upstream's",
    "W2": "server tools offered and not called: the same",
    "W3": "exactly one end mark, last, in composed streams",
    "W4": "one id, one role, dense indices, one finish reason, usage last and only if asked",
    "W5": "a server call never reaches the client in silent",
    "W6": "output does not depend on how upstream bytes were cut",
    "W7": "calls are assembled in one place and run only from whole turns",
    "W8": "call ids and everything else go back upstream as they came",
    "W9": "a forced tool choice holds until it is satisfied, by a tool of the client's own where one can",
    "T1": "everything runs through the runner",
    "T2": "deny by default, checked when offered and when run",
    "T3": "strict arguments; the model is told why and goes on",
    "T4": "no tool without a redaction rule; only allowlisted fields are shown",
    "T5": "ids are provider__name, each once",
    "T6": "tools get capabilities and read no environment",
    "T7": "budgets hold, and a spent one still ends in an answer; offered tools are sorted",
    "T8": "schemas are derived or verbatim, and refused at start where no wire takes them",
    "T9": "MCP tools are untrusted",
    "R1": "a row is committed before its side effect",
    "R2": "which messages are stored",
    "R3": "record and content are two things; no secret in either",
    "R4": "hidden turns are put back only when exactly one fits",
    "R5": "a side effect runs at most once",
    "E1": "a client's mistake is a 4xx that names the field",
    "E2": "the upstream's own error passes; later turns are retried",
    "E3": "after a side effect nobody is told to retry",
    "E4": "a client that leaves ends what only reads; effects finish",
}

LATER: dict[str, str] = {}
"""Rules whose feature is not built, and why no test can check them."""

_NAMED = re.compile(r"\bRules?((?:[ ,:]|and|[WTRE][1-9])+)")
_RULE = re.compile(r"[WTRE][1-9]")


@cache
def named_rules() -> dict[str, set[str]]:
    """For each rule the tests whose docstring names it: ``Rule W1: …`` or ``Rules W1, W2: …``."""
    found: dict[str, set[str]] = {}
    for test in all_tests():
        for group in _NAMED.findall(test.says):
            for rule in _RULE.findall(group):
                found.setdefault(rule, set()).add(f"{test.file}::{test.name}")
    return found


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_named(rule: str) -> None:
    """Each rule is named by a test, unless its feature is not built."""
    if rule in LATER:
        assert rule not in named_rules(), f"{rule} is held by a test: take it out of LATER"
    else:
        assert named_rules().get(rule), f"no test names rule {rule}: {RULES[rule]}"


def test_no_test_names_a_rule_that_is_none() -> None:
    """Tests name only rules that exist."""
    assert set(named_rules()) <= set(RULES)


def test_every_test_says_what_it_holds() -> None:
    """Each test has a docstring of its own."""
    assert [f"{test.file}::{test.name}" for test in all_tests() if not test.says] == []
