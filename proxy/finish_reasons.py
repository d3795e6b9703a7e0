"""Why a model stopped: one neutral enum, and the words that model servers use for it.

Each dialect has one :class:`FinishWords` with the words that it writes.  All dialects share one table of the
words that they read, because gateways carry words from one dialect to another, and no word means two things.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from proxy.values import value_class

__all__ = ["FinishReason", "FinishWords", "aborted", "read_finish"]


class FinishReason(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    PAUSE = "pause"
    """The turn only pauses, to be continued, as Anthropic's ``pause_turn`` does."""
    ERROR = "error"
    """The server broke the turn off, or said something that :func:`read_finish` does not know."""

    @property
    def is_complete(self) -> bool:
        """Whether the model wrote all that it meant to write, so that its calls may run (rule W7)."""
        return self in _COMPLETE


_COMPLETE: Final = frozenset({FinishReason.STOP, FinishReason.TOOL_CALLS, FinishReason.PAUSE})

_READ: Final[Mapping[FinishReason, str]] = {
    FinishReason.STOP: "stop stop_sequence end_turn eos eos_token complete completed finish_reason_stop load "
    "unload",
    FinishReason.TOOL_CALLS: "tool_calls tool_call tool_use function_call",
    FinishReason.LENGTH: "length max_tokens max_output_tokens model_length model_context_window_exceeded "
    "finish_reason_max_tokens",
    FinishReason.CONTENT_FILTER: "content_filter content_filtered refusal guardrail_intervened safety "
    "recitation blocklist prohibited_content spii",
    FinishReason.PAUSE: "pause_turn",
}
"""The words in lower case.

Sources: the API references of OpenAI (``finish_reason``, ``incomplete_details.reason``), Anthropic and AWS
Bedrock Converse (``stop_reason``), Mistral (``model_length``), Google Gemini (``FinishReason``, which some
gateways pass on in capitals) and Ollama (``done_reason``); Text Generation Inference (``eos_token``).
All others break a turn off, such as ``abort`` of vLLM and SGLang, ``error`` of OpenRouter, or Gemini's
``MALFORMED_FUNCTION_CALL``; so does a word that nobody knows.
"""

_WORDS: Final = {word: reason for reason, words in _READ.items() for word in words.split()}


def read_finish(word: str) -> FinishReason:
    """Return the reason that a server's word means, whatever its case; an unknown word is an ``ERROR``."""
    return _WORDS.get(word) or _WORDS.get(word.lower(), FinishReason.ERROR)


def aborted(word: str) -> dict[str, Any]:
    """Return the error object for a turn that ended with a word that means ``ERROR``."""
    said = "".join(char for char in word[:64] if char.isprintable())
    return {
        "message": f'The upstream broke off its answer with the finish reason "{said}".',
        "type": "upstream_error",
        "code": "upstream_broken",
    }


@value_class
class FinishWords:
    """The words that one dialect writes.

    ``words`` has one for each reason but ``ERROR``, after which the client gets an error.  ``others`` are
    more words of the dialect, which a stream of the proxy's own repeats.
    """

    words: Mapping[FinishReason, str]
    others: frozenset[str] = frozenset()

    def write(self, reason: FinishReason | None, said: str | None = None) -> str:
        """Return the word for a reason; with ``None``, and if it means the same, the upstream's own.

        ``said`` is the upstream's own word.  A word that the dialect does not have is never written.
        """
        meant = read_finish(said) if said else FinishReason.STOP
        if said in self.others and reason in (None, meant):
            return said
        return self.words[meant if reason is None else reason]
