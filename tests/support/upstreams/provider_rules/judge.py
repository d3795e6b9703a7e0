"""What the doubles of a test ask about each request that they get.

A test's doubles refuse what the reference provider of the dialect refuses, and the test fails. Marks say
where a test means something else:

``accepts("rule", why="…")``   the rule does not hold in this test; ``"*"`` is all rules
``refuses("rule")``            the refusal is what the test is about: it must come, and does not fail the test
``provider(chat="deepseek")``  another provider stands behind a dialect
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

import pytest

from provider_rules.known_faults import KNOWN_FAULTS
from provider_rules.providers import REFERENCE, RULES, Broken, Refusal, broken, dialect_of, refusal
from provider_rules.rule import Body

ADDED_BY_HTTP = (("x-api-key", "key"), ("anthropic-version", "2023-06-01"))
"""Headers that the client of an upstream adds on its way to a socket, for doubles without one."""


class Judge:
    """Notes which rules the requests of one test break. ``current`` is the judge of the running test."""

    current: ClassVar["Judge | None"] = None

    def __init__(
        self,
        providers: Mapping[str, str] = REFERENCE,
        accepted: Iterable[str] = (),
        expected: Iterable[str] = (),
        known: Iterable[str] = (),
    ) -> None:
        self._providers = {**REFERENCE, **providers}
        self._accepted = frozenset(accepted)
        self._expected = frozenset(expected)
        self._known = frozenset(known)
        self._seen: set[str] = set()
        self.unexpected: list[Broken] = []

    def refusal(
        self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes, provider: str = ""
    ) -> Refusal | None:
        """Return the answer of a provider, or of the test's, to a request that it refuses."""
        dialect = dialect_of(target)
        if method != "POST" or dialect is None:
            return None
        provider = provider or self._providers[dialect]
        found = self.found(provider, body, headers)
        self.unexpected += [one for one in found if one.rule.name not in self._expected]
        return refusal(provider, found)

    def found(
        self, provider: str, body: bytes | Body, headers: Iterable[tuple[str, str]] = ()
    ) -> list[Broken]:
        """Return what a request breaks of the rules that hold in this test."""
        found = list(broken(provider, body, headers, self._accepted))
        self._seen |= {one.rule.name for one in found}
        return [one for one in found if one.rule.name not in self._known]

    def complaints(self) -> list[str]:
        """Return what is wrong with the test or the product."""
        said = list(dict.fromkeys(map(str, self.unexpected)))
        said += [f"no request broke {name}" for name in sorted(self._expected - self._seen)]
        mended = sorted(self._known - self._seen)
        return said + [f"KNOWN_FAULTS: this test does not break {name} any more" for name in mended]


def refusal_now(
    method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes, provider: str = ""
) -> Refusal | None:
    """Return what the judge of the running test says, or ``None`` if there is no judge."""
    judge = Judge.current
    return None if judge is None else judge.refusal(method, target, headers, body, provider)


def found_now(provider: str, body: Body) -> list[Broken]:
    """Return what a request breaks, for a double that has a provider of its own and expects refusals."""
    return (Judge.current or Judge()).found(provider, body)


@pytest.fixture(autouse=True)
def strict_providers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    """Let the doubles refuse what providers refuse, and fail a test that did not expect it."""
    marks: dict[str, set[str]] = {"accepts": set(), "refuses": set()}
    for name, rules in marks.items():
        for mark in request.node.iter_markers(name):
            assert name == "refuses" or mark.kwargs.get("why"), "say why the rule does not hold here"
            rules.update(RULES if mark.args == ("*",) else mark.args)
        assert rules <= RULES.keys(), f"no such rules: {rules - RULES.keys()}"
    providers = {
        dialect: provider
        for mark in request.node.iter_markers("provider")
        for dialect, provider in mark.kwargs.items()
    }
    test = request.node.nodeid.partition("@")[0]
    known = {one.rule for one in KNOWN_FAULTS if one.shown_by(test)}
    judge = Judge(providers, marks["accepts"], marks["refuses"], known)
    monkeypatch.setattr(Judge, "current", judge)
    yield judge
    if complaints := judge.complaints():
        pytest.fail("\n".join(complaints), pytrace=False)
