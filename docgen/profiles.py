"""The table of what known providers and models take of translated requests."""

from collections.abc import Iterator

from proxy.wires.providers import KNOWN, PROVIDERS, Known


def profiles() -> str:
    """Return a Markdown table of what is left out, capped or rewritten, by provider and model."""
    rows = ["| provider | models | dialect | what the proxy does | source |", "|---|---|---|---|---|"]
    for row in KNOWN:
        where = row.provider or "any"
        models = ", ".join(f"`{pattern}`" for pattern in row.models)
        wires = ", ".join(row.wires)
        rows.append(f"| {where} | {models} | {wires} | {'; '.join(_said(row))} | {row.source} |")
    reached = [
        f"- `{name}`: {', '.join(f'`{host}`' for host in hosts) or 'set `provider`'}"
        for name, hosts in PROVIDERS.items()
    ]
    return "\n".join([*rows, "", "A provider is recognized by its address:", "", *reached]) + "\n"


def _said(row: Known) -> Iterator[str]:
    for name, value in row.facts.items():
        listed = ", ".join(f"`{one}`" for one in value) if isinstance(value, tuple) else ""
        match name:
            case "limit_field":
                yield f"the token limit is `{value}`"
            case "max_output_tokens":
                yield f"at most {value:,} output tokens"
            case "efforts":
                yield f"efforts: {listed}" if listed else "no effort"
            case "user_chars":
                yield f"user ids: at most {value} characters" if value else "no user ids"
            case "sampling":
                yield "all sampling" if value is None else f"sampling: {listed}" if listed else "no sampling"
            case "without":
                yield f"left out: {listed}"
            case "result_images":
                yield "images of results become words"
            case "reasoning_field":
                yield f"reasoning goes back as `{value}`" if value else "reasoning does not go back"
            case "call_id_chars":
                yield (
                    "ids of calls: exactly 9 letters and digits"
                    if value == 9
                    else (f"ids of calls: at most {value} characters")
                )
            case "max_tools":
                yield f"at most {value} tools"
            case "schema_without":
                yield f"schemas without {listed}"
