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
    # product fault: a wrapper's name, or one that the model made up, goes back as it came.
    KnownFault(
        "chat-calls",
        "A name that no tool can have goes back to OpenAI, which refuses its own model's call then.",
        (
            r"test_relay_run_loop.py::test_a_function_of_the_clients_in_a_wrapper_is_on_record",
            r"test_relay_run_loop.py::test_unknown_names_are_told_and_never_leave\[core__get_.*u200b\]",
            r"test_relay_run_native.py::test_private_arguments_inside_a_wrapper_are_masked",
            r"test_relay_run_trace.py::test_wrapper_calls_are_run_and_answered_once",
            r"test_e2e_fixtures.py::test_an_exchange_with_server_tools\[.*-openai.chat/parallel-wrapper\]",
            r"test_e2e_openai_node.py::test_every_stream_is_read\[.*\]",
            r"test_e2e_openai_python.py::test_every_stream_is_read\[.*/parallel-wrapper\]",
            r"test_e2e_openai_python.py::test_every_stream_is_put_together\[.*/parallel-wrapper\]",
            r"test_e2e_openai_python.py::test_many_streams_at_once_do_not_mix",
            r"test_faults_calls.py::test_names_that_are_none\[chat-(.*u200b|.*cho)\]",
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
