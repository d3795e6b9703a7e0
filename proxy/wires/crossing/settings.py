"""Reads the settings that several dialects write in the same way."""

from proxy.base.conversation import OutputFormat, Sampling, Service
from proxy.wires.crossing.fields import Fields


def read_sampling(settings: Fields) -> Sampling:
    """Read sampling."""
    return Sampling(
        temperature=settings.number("temperature"),
        top_p=settings.number("top_p"),
        top_k=settings.whole("top_k"),
        min_p=settings.number("min_p"),
        seed=settings.whole("seed"),
        presence_penalty=settings.number("presence_penalty"),
        frequency_penalty=settings.number("frequency_penalty"),
    )


def read_format(form: Fields | None, described_in: str = "") -> OutputFormat | None:
    """Read OpenAI's form of an output format; one of an unknown type is left to its dialect.

    ``described_in`` is the member that describes a JSON Schema, if it is not the form itself.
    """
    kind = form.take("type") if form is not None else None
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat("json_object")
    if kind == "json_schema":
        described = form.inner(described_in) if described_in else form
        if described is not None:
            return OutputFormat(
                "json_schema",
                described.mapping("schema"),
                described.text("name") or "",
                described.text("description") or "",
                described.flag("strict"),
            )
    form.leave("type")
    return None


def read_service(asked: Fields, *, stores: bool | None = None) -> Service:
    """Read what OpenAI's requests say of the service; ``stores`` is the default of ``store``."""
    return Service(
        user=asked.text("user"),
        safety_identifier=asked.text("safety_identifier"),
        metadata=asked.mapping("metadata"),
        store=stores if (store := asked.flag("store")) is None else store,
        tier=asked.text("service_tier"),
        cache_key=asked.text("prompt_cache_key"),
        cache_retention=asked.text("prompt_cache_retention"),
        moderation=asked.mapping("moderation"),
    )
