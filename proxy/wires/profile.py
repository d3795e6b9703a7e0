"""What an upstream's model takes of a translated request, as one value.

A client sends settings that nobody asked for: an effort, an id of its user, a large token limit. Another
dialect's upstream may refuse them. What the profile excludes is left out of the request or changed to what
the model takes, and the client is told which of its fields that concerns.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args

LimitField = Literal["max_tokens", "max_completion_tokens"]

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The efforts of reasoning, from the smallest to the largest."""

PORTABLE_EFFORTS: Final = ("low", "medium", "high")
"""The efforts that every reasoning model with efforts takes."""

SAMPLING: Final = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
    "logit_bias",
)
"""The ways to choose the next token; see :class:`proxy.base.conversation.Sampling`."""

HINTS: Final = (
    "parallel_tool_calls",
    "truncate",
    *(f"sampling.{name}" for name in SAMPLING),
    "output.verbosity",
    "reasoning.effort",
    "reasoning.summary",
    *(
        f"service.{name}"
        for name in (
            *("user", "safety_identifier", "metadata", "store", "tier", "cache_key", "cache_retention"),
        )
    ),
    "stream_usage",
    "stream_padding",
)
"""What a request may ask for and an answer can do without, as :data:`.ASPECTS` names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one model of one upstream takes. Requests that stay in one dialect are not changed by it.

    ``limit_field`` is the field for the token limit (Chat only), ``max_output_tokens`` its largest value,
    which is also the limit that Messages needs if a client sets none; ``None`` if it is not known.
    ``efforts`` are the efforts of reasoning that the model takes, in the order of :data:`EFFORTS`: ``None``
    if they are not known, empty if the model takes none.
    ``user_chars`` is the largest length of an id of the client's user; 0 if the upstream takes no such id.
    ``sampling`` are the names in :data:`SAMPLING` that the model takes, ``None`` for those of the dialect.
    ``without`` are names in :data:`HINTS` that it does not take.
    ``result_images``: images in results of tools follow the results in a message of the user's (Chat only).
    ``text_lists``: several texts of a message stay separate, also in roles other than ``user`` (Chat only).
    ``reasoning_field`` is the field of a model's message in which its reasoning goes back with tool calls,
    empty if it does not go back; with ``all_reasoning`` it also goes back without calls (Chat only).
    ``call_id_chars`` is the length of the ids of calls: 0 if the upstream takes any that it made itself, else
    the largest that it takes; 9 are exactly nine letters and digits, as Mistral has them (Chat only).
    ``max_tools`` is the largest number of tools, ``None`` for no limit.
    ``schema_without`` are the keywords that the upstream refuses in the schemas of tools; ``$ref`` stands for
    references to anything but ``$defs``.
    """

    limit_field: LimitField = "max_tokens"
    max_output_tokens: int | None = None
    efforts: tuple[str, ...] | None = None
    user_chars: int = 64
    sampling: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    result_images: bool = True
    text_lists: bool = False
    reasoning_field: str = "reasoning_content"
    all_reasoning: bool = False
    call_id_chars: int = 0
    max_tools: int | None = None
    schema_without: tuple[str, ...] = ()

    def changed(self, facts: Mapping[str, object]) -> "Profile":
        """Return the profile with other values of the fields in ``facts``; ``without`` only grows."""
        more = facts.get("without", ())
        if isinstance(more, tuple):
            facts = {**facts, "without": tuple(dict.fromkeys((*self.without, *more)))}
        return replace(self, **facts)  # type: ignore[arg-type]  # The table and the settings have these types.

    def effort(self, asked: str) -> str | None:
        """Return the effort to ask for instead of ``asked``; ``None`` to leave it out.

        It is the nearest that the model takes, the smaller of two; reasoning stays on unless ``asked`` is
        ``none``. A model that is not known gets one of the three that every reasoning model takes, and is
        not asked at all if the client wants no reasoning.
        """
        known = self.efforts
        if asked not in EFFORTS or (known is None and asked == "none"):
            return None
        if known is not None and asked in known:
            return asked
        levels = [level for level in known or PORTABLE_EFFORTS if level != "none"] if known != () else []
        wanted = EFFORTS.index(asked)
        return min(levels, key=lambda level: abs(EFFORTS.index(level) - wanted), default=None)

    # What is learnt from refusals, as texts that the memory of refusals keeps.

    def lessons(self, before: "Profile") -> frozenset[str]:
        """Return how this profile differs from an earlier one, each difference as ``FIELD:VALUE``."""
        return frozenset(_differences(before, self))

    def learned(self, lessons: Collection[str]) -> "Profile":
        """Return the profile with what :meth:`lessons` returned; other texts are ignored.

        Of several lessons about one field, the narrowest holds.
        """
        facts: dict[str, Any] = {}
        for name, _, value in sorted(lesson.partition(":") for lesson in lessons):
            match name:
                case "max_output_tokens" | "user_chars" if value.isdecimal():
                    facts[name] = min(int(value), facts.get(name, int(value)))
                case "result_images":
                    facts[name] = False
                case "limit_field" if value in get_args(LimitField):
                    facts[name] = value
                case "efforts":
                    levels = tuple(level for level in value.split(",") if level in EFFORTS)
                    facts[name] = min(levels, facts.get(name, levels), key=len)
                case "without" if value in HINTS:
                    facts[name] = (*facts.get(name, ()), value)
        return self.changed(facts) if facts else self


def _differences(before: Profile, after: Profile) -> Iterator[str]:
    for one in fields(Profile):
        old, new = getattr(before, one.name), getattr(after, one.name)
        if new == old:
            continue
        if one.name == "without":
            yield from (f"without:{name}" for name in new if name not in old)
        else:
            yield f"{one.name}:{','.join(new) if isinstance(new, tuple) else new}"
