"""The headers that the proxy reads from clients and sets in its answers, as data: names and meanings.

docgen makes docs/reference/headers.md from it. Meanings are Markdown; their links are relative to ``docs/``.
``proxy/http/rules.py`` says which other headers pass between clients and upstreams.
"""

from typing import Final

from msgspec import Struct

TOOLS: Final = "x-toolrelay-tools"
TRACE: Final = "x-toolrelay-trace"
APPROVE: Final = "x-toolrelay-approve"
HISTORY: Final = "x-toolrelay-history"
RESUME: Final = "x-toolrelay-resume"
UI_PROOF: Final = "x-toolrelay-ui"
RUN: Final = "x-toolrelay-run"
APPROVALS: Final = "x-toolrelay-approvals"
RESTORED: Final = "x-toolrelay-restored"
LEFT_OUT: Final = "x-toolrelay-left-out"

RATE_LIMITS: Final = {
    kind: tuple(f"x-ratelimit-{word}-{kind}" for word in ("limit", "remaining", "reset"))
    for kind in ("requests", "tokens")
}
"""The headers for each kind of limit that answers show: the limit, the rest, the time until the reset."""


class OwnHeader(Struct, frozen=True):
    """Headers with one meaning. ``names`` are in lower case, ``meaning`` is one or more sentences."""

    names: tuple[str, ...]
    meaning: str


FROM_CLIENTS: Final = (
    OwnHeader(
        ("authorization", "api-key", "x-api-key"),
        "The client's key or token. The proxy looks for it in this order "
        "([keys](how-to/keys.md#where-a-client-sends-its-key)).",
    ),
    OwnHeader(
        (TOOLS,),
        "The server tools that the proxy offers in this request: `none`, `all`, or names with commas "
        "between. If a name is not available, the answer is a 400. The body can "
        "[choose tools](how-to/choose-tools.md), too.",
    ),
    OwnHeader(
        (TRACE,),
        "What the response shows of server tools: `silent`, `reasoning`, `status` or `events` "
        "([trace levels](concepts/trace-levels.md)).",
    ),
    OwnHeader(
        (APPROVE,),
        "Decisions about [approvals](approvals.md) of this caller: `ID` or `ID;deny`, several with commas "
        "between. `ID;for=1h` and `ID;conversation` approve with a [grant](approvals.md#grants).",
    ),
    OwnHeader(
        (HISTORY,),
        "`off`: the model sees this conversation as the client sends it, without the "
        "[hidden turns](concepts/hidden-turns.md) behind earlier answers.",
    ),
    OwnHeader(
        (RESUME,),
        "`on`: the run goes on for `tools.resume_s` seconds if the connection breaks. The id of a run: the "
        "proxy sends [all of that run's answer](background.md#resume-a-dropped-stream) again.",
    ),
    OwnHeader(
        ("x-stainless-retry-count", "idempotency-key"),
        "A count above 0 with the same body, or the same key, says that this is the same request again, from "
        "the same person. Within an hour the proxy does not repeat its "
        "[side effects](concepts/side-effects.md): not if the model words them differently, not in another "
        "worker, and not after a restart. SDKs send the count by themselves.",
    ),
    OwnHeader(
        ("x-claude-code-session-id",),
        "The session of Claude Code. Requests of two sessions are never repeats of each other.",
    ),
    OwnHeader(
        ("x-request-id",),
        "The client's own id of the request. If it does not fit `[A-Za-z0-9._-]{1,128}`, the proxy makes "
        "another.",
    ),
    OwnHeader(("traceparent",), "The client's place in a trace ([traces](how-to/tracing.md))."),
    OwnHeader(
        (UI_PROOF,),
        "`1`: the page of the [web UI](ui.md) sends it with each request that changes something. Pages of "
        "other sites cannot send it.",
    ),
)
"""The request headers that the proxy itself reads."""

TO_CLIENTS: Final = (
    OwnHeader(("x-request-id",), "The id of the request. It is also in the log."),
    OwnHeader(
        (RUN,),
        "The id of the run, for `toolrelay runs show`. It is there only if tools were offered or turns were "
        "put back.",
    ),
    OwnHeader(
        (APPROVALS,),
        "The ids of the calls that [wait for an approval](approvals.md), with commas between.",
    ),
    OwnHeader((TRACE,), "The trace level of this response, if the request asked for one."),
    OwnHeader(
        (RESTORED,),
        "How many [hidden turns](concepts/hidden-turns.md) the proxy put back, and how many bytes they "
        "added: `turns=1, bytes=263`. It is absent if there were none, or if the upstream said that the "
        "conversation is too long and the proxy asked again without them.",
    ),
    OwnHeader(
        (LEFT_OUT,),
        "The fields that the proxy left out of the request: `seed, user`. The upstream's dialect lacks them, "
        "and the answer is much the same without. In a reply that is not a stream also `answer.citations`: "
        "the client's dialect has no form for [citations of the answer](dialects.md#citations-of-an-answer).",
    ),
    OwnHeader(
        ("link",),
        'The address of [the page about an error](reference/errors.md) of the proxy, with `rel="help"`.',
    ),
    OwnHeader(("x-upstream-request-id",), "The provider's own id of the request."),
    OwnHeader(
        (*RATE_LIMITS["requests"], *RATE_LIMITS["tokens"]),
        "The [limits](how-to/limits.md#headers) of this caller. If none applies here, the provider's own "
        "headers pass.",
    ),
    OwnHeader(
        ("retry-after", "retry-after-ms"),
        "When to try again after a 429 or a 503, in seconds and in milliseconds.",
    ),
    OwnHeader(
        ("x-should-retry",),
        "`false`: the client should not repeat the request by itself. A side effect has happened, or the "
        "wait is too long.",
    ),
)
"""The response headers that the proxy sets. Pages of allowed origins may read all of them."""
