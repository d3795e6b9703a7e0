"""Faults of the product that the rules have found and that are not mended yet.

In the tests of an entry the rule refuses nothing.  A test that does not break the rule any more fails: then
the entry must go.
"""

import re
from typing import NamedTuple

__all__ = ["KNOWN_FAULTS", "KnownFault"]


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


KNOWN_FAULTS = (
    # product fault: an Ollama client's "format": "json" is refused by OpenAI.
    KnownFault(
        "chat-word-json",
        "JSON is asked for as json_object although no message has the word that OpenAI then wants.",
        (
            r"test_relay_run_pairs_settings.py::test_a_setting_crosses_or_is_named\[json-ollama-chat\]",
            r"test_relay_run_pairs_settings.py::test_a_setting_crosses_or_is_named\[json-responses-chat\]",
            r"test_relay_run_completions.py::test_a_chat_upstream_gets_the_completion_as_a_chat",
        ),
    ),
    # product fault: OpenAI takes metadata on Chat only with store.
    KnownFault(
        "chat-stored",
        "The metadata of a client of Responses goes to Chat without store.",
        (
            r"test_relay_run_pairs_settings.py::test_a_setting_crosses_or_is_named\[metadata-responses-chat\]",
            r"test_e2e_responses_on_chat.py::test_every_field_of_a_response_is_there.*",
        ),
    ),
)
