"""The checks of ``doctor``: each one is a row of a table, with its outcome, its meaning and a setting.

A check reads replies to the requests of :mod:`.questions`; several checks may read one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct, field

from proxy.commands.doctor.probing.exchange import Reply
from proxy.commands.doctor.probing.native import NATIVE_QUESTIONS, NativeQuestion
from proxy.wires.chat import quirks as chat
from proxy.wires.responses.reader import stream_quirks

Outcome = Literal["yes", "no", "quirk", "unknown"]
"""``yes``: correct. ``no``: not supported. ``quirk``: works, but not as specified.
``unknown``: could not be determined."""


class Finding(Struct, frozen=True):
    """What a check found: ``words`` in one line; ``setting`` is a key of the upstream and its value."""

    outcome: Outcome
    words: str = ""
    setting: tuple[str, object] | None = None


class Replies(Struct, frozen=True):
    """The replies by the name of their request, and the dialects that the upstream speaks."""

    by_name: Mapping[str, Reply]
    dialects: Sequence[str] = field(default_factory=tuple)

    def of(self, name: str) -> Reply:
        """Return the reply to a request; an empty one if the request was not sent."""
        return self.by_name.get(name, Reply(problem="not asked"))

    def typed(self, question: NativeQuestion) -> Reply:
        """Return the reply to a request with a tool of a special type."""
        return self.of(f"{question.dialect} {question.type}")

    def quirks(self) -> frozenset[str]:
        """Return all quirks of the Chat streams."""
        names = ("stream", "call", "parallel")
        quirks = [
            chat.stream_quirks(reply.payloads) for n in names if (reply := self.of(n)).streamed and reply.ok
        ]
        return frozenset[str]().union(*quirks)


class Check(Struct, frozen=True):
    """One check. ``key`` is its name for programs, ``title`` for people. ``meaning`` explains what is wrong,
    and how toolrelay handles it."""

    key: str
    title: str
    find: Callable[[Replies], Finding]
    meaning: str = ""


YES: Final = Finding("yes")


def judge(replies: Replies) -> list[tuple[Check, Finding]]:
    """Run every check on the replies."""
    return [(check, check.find(replies)) for check in CHECKS]


def _needs(name: str, judge_reply: Callable[[Reply, Replies], Finding]) -> Callable[[Replies], Finding]:
    """Create a check that needs a reply; without one its outcome is unknown, with the reason."""

    def find(replies: Replies) -> Finding:
        reply = replies.of(name)
        return judge_reply(reply, replies) if reply.ok else Finding("unknown", reply.refusal)

    return find


def _takes(name: str, *, setting: tuple[str, object] | None = None) -> Callable[[Replies], Finding]:
    """Create a check whether the upstream answers a request; unknown if it does not answer a plain one."""

    def find(replies: Replies) -> Finding:
        reply = replies.of(name)
        if reply.ok:
            return YES
        if (
            not replies.of("stream").ok
            or not reply.status
            or reply.status in (401, 403, 429)
            or reply.status >= 500
        ):
            return Finding("unknown", reply.refusal)
        return Finding("no", reply.refusal, setting)

    return find


def _quirk(name: str, quirk: str, setting: tuple[str, object] | None = None) -> Callable[[Replies], Finding]:
    """Create a check whether the Chat streams show a quirk; unknown without the reply that would show it."""

    def find(replies: Replies) -> Finding:
        reply = replies.of(name)
        if quirk in replies.quirks():
            return Finding("quirk", setting=setting)
        return YES if reply.ok and reply.streamed else Finding("unknown", reply.refusal)

    return find


def _call_quirk(quirk: str) -> Callable[[Replies], Finding]:
    def find(replies: Replies) -> Finding:
        if quirk in replies.quirks():
            return Finding("quirk")
        called = any(replies.of(name).calls for name in ("call", "parallel"))
        return YES if called else Finding("unknown", "the model made no tool call")

    return find


def _dialects(replies: Replies) -> Finding:
    spoken = list(replies.dialects)
    if not spoken:
        return Finding("unknown", "no dialect got an answer")
    return Finding("yes", ", ".join(spoken), ("wires", spoken))


def _streams(reply: Reply, replies: Replies) -> Finding:
    kind = reply.headers.get("content-type", "no Content-Type header")
    return YES if reply.streamed else Finding("no", f"the Content-Type is {kind}")


def _end_mark(reply: Reply, replies: Replies) -> Finding:
    if not reply.streamed:
        return Finding("unknown", "the upstream did not stream")
    return YES if reply.end_mark else Finding("quirk", "the stream has no end mark")


def _usage(reply: Reply, replies: Replies) -> Finding:
    if not any(payload.get("usage") for payload in reply.payloads):
        return Finding("no", "the stream reports no token usage, even with include_usage")
    return YES


def _include_usage(replies: Replies) -> Finding:
    asked, plain = replies.of("stream"), replies.of("plain_stream")
    if plain.ok and not asked.ok and asked.status in (400, 422):
        return Finding("no", asked.refusal)
    return YES if asked.ok else Finding("unknown", asked.refusal)


def _parallel(reply: Reply, replies: Replies) -> Finding:
    if len(reply.calls) >= 2:
        return YES
    return Finding("no", f"the prompt asked for two calls; the model made {len(reply.calls)}")


def _calls(reply: Reply, replies: Replies) -> Finding:
    if reply.calls:
        return YES
    if "get_weather" in reply.text:
        return Finding("quirk", "the model writes the call into its text", ("text_calls", "auto"))
    return Finding("no", "the prompt asked for a tool call; the model made none")


def _forced(reply: Reply, replies: Replies) -> Finding:
    if [call.name for call in reply.calls] == ["get_time"]:
        return YES
    made = ", ".join(call.name for call in reply.calls) or "nothing"
    return Finding("no", f"the request forced get_time; the model called {made}")


def _reasoning(reply: Reply, replies: Replies) -> Finding:
    names = [name.removeprefix("says_") for name in sorted(replies.quirks()) if name.startswith("says_")]
    return Finding("yes", ", ".join(names) or "none")


def _must_return(replies: Replies) -> Finding:
    results, reasons = replies.of("results"), replies.of("call").reasoning
    if not reasons:
        return (
            Finding("yes", "the model sent no reasoning")
            if results.ok
            else Finding("unknown", results.refusal)
        )
    if results.ok:
        return Finding("yes", "not required")
    if "reason" in results.error.lower() or "thought" in results.error.lower():
        return Finding("quirk", results.refusal)
    return Finding("unknown", results.refusal)


def _schema(reply: Reply, replies: Replies) -> Finding:
    text = reply.text.strip()
    if text.startswith("{") and text.endswith("}") and '"answer"' in text:
        return YES
    return Finding("no", "the upstream accepts the schema, but the answer does not match it")


def _too_long(replies: Replies) -> Finding:
    reply = replies.of("too_long")
    if reply.ok:
        return Finding("yes", "the upstream accepted a huge max_tokens")
    return Finding("yes", reply.refusal) if reply.error else Finding("unknown", reply.refusal)


def _choices(reply: Reply, replies: Replies) -> Finding:
    choices = reply.payloads[0].get("choices") if reply.payloads else None
    count = len(choices) if isinstance(choices, list) else 0
    return (
        YES if count == 2 else Finding("no", f"the request asked for two choices; the response has {count}")
    )


def _logprobs(reply: Reply, replies: Replies) -> Finding:
    choices = reply.payloads[0].get("choices") if reply.payloads else None
    first = choices[0] if isinstance(choices, list) and choices else {}
    has_logprobs = isinstance(first, dict) and bool(first.get("logprobs"))
    return YES if has_logprobs else Finding("no", "the upstream accepts logprobs but returns none")


def _previous(replies: Replies) -> Finding:
    if "responses" not in replies.dialects:
        return Finding("unknown", "the upstream does not speak Responses")
    reply = replies.of("next_response")
    if reply.ok:
        return Finding("yes", "", ("responses_state", "chained"))
    if reply.status in (400, 404, 422, 501):
        return Finding("no", reply.refusal, ("responses_state", "stateless"))
    return Finding("unknown", reply.refusal)


def _native(replies: Replies) -> Finding:
    found: dict[str, list[bool | None]] = {}
    for question in NATIVE_QUESTIONS:
        if question.dialect in replies.dialects:
            found.setdefault(question.type, []).append(question.understood(replies.typed(question)))
    refused = [kind for kind, shown in found.items() if False in shown]
    understood = [kind for kind, shown in found.items() if all(shown)]
    unshown = [kind for kind in found if kind not in (*refused, *understood)]
    told = {"understood": understood, "refused": refused, "no call": unshown}
    words = "; ".join(f"{name}: {', '.join(kinds)}" for name, kinds in told.items() if kinds)
    setting = ("native", sorted(understood)) if understood else None
    if refused:
        return Finding("no", words, setting)
    return Finding("unknown" if unshown or not found else "yes", words, setting)


def _responses(replies: Replies) -> Finding:
    if "responses" not in replies.dialects:
        return Finding("unknown", "the upstream does not speak Responses")
    reply = replies.of("response")
    if not reply.ok or not reply.streamed:
        return Finding("unknown", reply.refusal)
    quirks = sorted(stream_quirks(reply.payloads))
    return Finding("quirk", ", ".join(quirks).replace("_", " ")) if quirks else YES


def _comments(reply: Reply, replies: Replies) -> Finding:
    return Finding("yes", f"{reply.comments} comments in one response" if reply.comments else "none")


def _compression(reply: Reply, replies: Replies) -> Finding:
    coding = reply.headers.get("content-encoding", "")
    return Finding("quirk", f"{coding}, although the request accepts no compression") if coding else YES


def _limits(reply: Reply, replies: Replies) -> Finding:
    names = [name for name in reply.headers if "ratelimit" in name or name == "retry-after"]
    return Finding("yes", ", ".join(sorted(names)[:3]) or "none")


def _times(reply: Reply, replies: Replies) -> Finding:
    return Finding(
        "yes",
        f"{reply.first_ms:.0f} ms to the first byte, then at most {reply.gap_ms:.0f} ms between two pieces",
    )


ALWAYS: Final = ("repair", "always")
_READ: Final = "toolrelay reads these calls. Clients get complete calls with id, index and type."

CHECKS: Final = (
    Check("dialects", "dialects", _dialects),
    Check(
        "streaming", "streaming", _needs("stream", _streams),
        "Clients that ask for a stream get one complete response.",
    ),
    Check("end_mark", "end mark", _needs("stream", _end_mark), "toolrelay adds the end mark."),
    Check("usage", "usage", _needs("stream", _usage), "Token limits use an estimate instead."),
    Check(
        "include_usage", "include_usage", _include_usage,
        "Tokens of streams can only be estimated. Do not set a cost limit for this upstream.",
    ),
    Check(
        "tools", "takes tools", _takes("call", setting=("tools", "prompt")),
        'tools = "prompt" describes the tools in the prompt instead.',
    ),
    Check(
        "calls", "calls tools", _needs("call", _calls),
        "With text_calls, toolrelay reads calls that the model writes into its text.",
    ),
    Check(
        "parallel", "parallel calls", _needs("parallel", _parallel),
        "The model needs one turn for each call.",
    ),
    Check("forced", "forced choice", _needs("forced", _forced), "The model may ignore a forced tool_choice."),
    Check("strict", "strict schemas", _takes("strict"), "Do not set strict for this server."),
    Check("blank_ids", "call ids: blank", _call_quirk("blank_call_id"), _READ),
    Check("repeated_ids", "call ids: repeated", _call_quirk("repeated_call_id"), _READ),
    Check("indices", "call indices", _call_quirk("bad_index"), _READ),
    Check("types", "call types", _call_quirk("no_call_type"), _READ),
    Check("said_again", "repeated ids and names", _call_quirk("said_again"), _READ),
    Check("object_arguments", "arguments as object", _call_quirk("object_arguments"), _READ),
    Check("stop_with_calls", "finish reason with calls", _call_quirk("stop_with_calls"), _READ),
    Check(
        "empty_first_chunk", "first chunk", _quirk("stream", "empty_first_chunk", ALWAYS),
        'repair = "always" gives the first chunk an id and a choice.',
    ),
    Check(
        "roles", "one role", _quirk("stream", "role_repeated", ALWAYS),
        "openai-python's helper joins repeated roles. repair = \"always\" sends the role once.",
    ),
    Check(
        "no_role", "a role at all", _quirk("stream", "role_missing", ALWAYS),
        'openai-node fails without a role. repair = "always" adds one.',
    ),
    Check(
        "chunk_ids", "chunk ids", _quirk("stream", "no_chunk_id", ALWAYS),
        'repair = "always" gives all chunks the same id.',
    ),
    Check(
        "finish_reason", "finish reason", _quirk("stream", "no_finish_reason", ALWAYS),
        'openai-node fails without a finish reason. repair = "always" adds one.',
    ),
    Check("reasoning", "reasoning field", _needs("stream", _reasoning)),
    Check(
        "return_reasoning", "reasoning returned", _must_return,
        "The upstream requires reasoning beside calls. toolrelay returns assistant messages unchanged.",
    ),
    Check("results", "tool results", _takes("results"), "The upstream does not accept tool results."),
    Check("images", "images", _takes("image"), "The upstream refuses requests with images."),
    Check(
        "result_images", "images in results", _takes("result_image"),
        "toolrelay replaces images in results with a short text that describes them.",
    ),
    Check(
        "schema", "structured output", _needs("schema", _schema),
        "Do not rely on JSON output from this model.",
    ),
    Check("context_error", "context error", _too_long),
    Check(
        "effort", "reasoning effort", _takes("effort"),
        "toolrelay leaves the effort out of translated requests.",
    ),
    Check("choices", "n", _needs("choices", _choices), "Ask for one choice per request."),
    Check("logprobs", "logprobs", _needs("logprobs", _logprobs)),
    Check(
        "responses_stream", "Responses streams", _responses,
        'SDKs fail on these streams. repair = "auto", the default, rewrites them.',
    ),
    Check(
        "previous_response", "previous response", _previous,
        'toolrelay sends the whole conversation with each turn (responses_state = "stateless").',
    ),
    Check(
        "native", "tools of special types", _native,
        "toolrelay offers functions in place of the types that native does not list.",
    ),
    Check("comments", "keep-alive comments", _needs("stream", _comments)),
    Check(
        "compression", "compression", _needs("stream", _compression),
        "toolrelay decompresses gzip and deflate.",
    ),
    Check("rate_limits", "rate-limit headers", _needs("stream", _limits)),
    Check("times", "times", _needs("stream", _times)),
)  # fmt: skip
