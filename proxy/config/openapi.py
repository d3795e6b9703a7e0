"""The settings of APIs whose operations are tools, and their conversion for the tools package."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from proxy.base.errors import ConfigError
from proxy.config.mcp.servers import McpConfig, RedactConfig, Resolve
from proxy.config.secret import Secret
from proxy.config.types import HeaderValue, Seconds, Section, Strings, check_headers, setting_fault
from proxy.net.public_addresses import may_carry_secrets
from proxy.records.rows import ToolEffect
from proxy.tools.contract.spec import Redaction
from proxy.tools.mcp.definitions import SERVER_NAME, UnusableDefinition, pattern_of_server
from proxy.tools.openapi.api import PROVIDER, Api
from proxy.tools.openapi.document import checked_base

_OPERATION: Final = re.compile(r"[^\s]{1,300}|(\*|[A-Z]+) [/*][^\s]{0,299}")


def _check_base(url: str) -> str:
    if not url:
        return url
    try:
        return checked_base(url)
    except UnusableDefinition:
        raise setting_fault(
            "is not a valid address; write one like https://api.example.com/v1, without a query"
        ) from None


def _check_document(url: str) -> str:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if url and (not fine or "@" in parts.netloc or parts.fragment):
        raise setting_fault(
            "is not a valid address; write one like https://api.example.com/openapi.json, without a password"
        )
    return url


def _check_operations(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not _OPERATION.fullmatch(pattern):
            raise setting_fault(
                f"{pattern[:80]!r} names no operation; write an operationId or METHOD /path; * is any part"
            )
    return patterns


class OpenApiConfig(Section):
    """One API whose operations are tools: an OpenAPI document of version 3.0 or 3.1 describes it."""

    file: str = Field(default="", max_length=4096, description="The document: a file in JSON or YAML.")
    url: Annotated[str, AfterValidator(_check_document)] = Field(
        default="",
        max_length=2048,
        description="The address of the document. Only commands such as `toolrelay tools allow` fetch it.",
    )
    base_url: Annotated[str, AfterValidator(_check_base)] = Field(
        default="",
        max_length=2048,
        description="The address of the API: https://api.example.com/v1. Empty: the document's first server.",
    )
    operations: Annotated[Strings, AfterValidator(_check_operations)] = Field(
        default=("*",),
        description="Operations that the operator may allow: their operationIds, or METHOD /path as in the "
        'document ("GET /pets/{id}"), or patterns.',
    )
    effects: dict[str, Literal["read_only", "state_change", "external_side_effect"]] = Field(
        default={},
        description="Effects of operations, by the same names or patterns. Operations not listed: read_only "
        "for GET and HEAD, else external_side_effect.",
    )
    connection: str = Field(
        default="",
        max_length=64,
        description="The connection whose credentials requests carry, where the document says: the NAME of "
        "[credentials.NAME].",
    )
    headers: Annotated[dict[str, HeaderValue], AfterValidator(check_headers)] = Field(
        default={},
        description='Headers of every request to the API, such as a second key: {x-client = "env:CLIENT"}.',
    )
    results: Literal["trusted", "untrusted"] = Field(
        default="untrusted",
        description="Whether you vouch for all text in the results of this API, whoever wrote it: trusted "
        "or untrusted. After an untrusted result, policy.after_untrusted applies.",
    )
    redact: RedactConfig = Field(
        default=RedactConfig(),
        description="What logs and records may show of the tools: output, private_arguments.",
        json_schema_extra={
            "shown_as": "petstore",
            "example": 'output = ["items.*.name"]\nprivate_arguments = ["body.note"]',
        },
    )
    timeout_s: Seconds | None = Field(
        default=None, description="Seconds that one call may take. Empty: tools.timeout_s."
    )

    @model_validator(mode="after")
    def _one_document(self) -> "OpenApiConfig":
        if bool(self.file) == bool(self.url):
            raise setting_fault(
                "needs file or url" if not self.file else "has both file and url; write one of them"
            )
        return self


def check_api_names(apis: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the APIs; raise a fault for a name that leaves no room in the ids of tools."""
    for name in apis:
        if not SERVER_NAME.fullmatch(name):
            raise setting_fault(
                f"{name[:80]!r} is not a valid name; use 1 to 25 lower-case letters, digits and -"
            )
    return apis


def patterns_of_apis(apis: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns of the operations of APIs with these names."""
    return tuple(pattern_of_server(name, PROVIDER) for name in apis)


def known_apis(apis: Mapping[str, OpenApiConfig]) -> dict[str, Api]:
    """Return the APIs in the form of the tools package."""
    return {
        name: Api(
            name=name,
            file=api.file,
            url=api.url,
            base_url=api.base_url,
            operations=api.operations,
            effects={pattern: ToolEffect(effect) for pattern, effect in api.effects.items()},
            connection=api.connection,
            redaction=Redaction(api.redact.output, api.redact.private_arguments),
            headers={
                key: value.reveal() if isinstance(value, Secret) else value
                for key, value in api.headers.items()
            },
            timeout_s=api.timeout_s,
            trusted_results=api.results == "trusted",
        )
        for name, api in apis.items()
    }


def resolve_apis(apis: Mapping[str, OpenApiConfig], resolve: Resolve) -> dict[str, OpenApiConfig]:
    """Return the APIs with the values of their secrets; one that lacks a value is left out, as
    :func:`~proxy.config.mcp.servers.resolve_mcp` does."""
    resolved = {}
    for name, api in apis.items():
        headers = {
            key: resolve(f"openapi.{name}.headers.{key}", value) if isinstance(value, Secret) else value
            for key, value in api.headers.items()
        }
        if None not in headers.values():
            resolved[name] = api.model_copy(update={"headers": headers})
    return resolved


def secrets_of_apis(apis: Mapping[str, OpenApiConfig]) -> Iterator[Secret]:
    """Yield every secret of the APIs."""
    for api in apis.values():
        yield from (value for value in api.headers.values() if isinstance(value, Secret))


def resolve_api_paths(apis: Mapping[str, OpenApiConfig], folder: Path) -> dict[str, OpenApiConfig]:
    """Return the APIs with absolute paths; relative ones start at ``folder``."""
    return {
        name: api.model_copy(update={"file": str((folder / Path(api.file).expanduser()).absolute())})
        if api.file
        else api
        for name, api in apis.items()
    }


def find_api_conflicts(
    apis: Mapping[str, OpenApiConfig], credentials: Mapping[str, Any], mcp: McpConfig
) -> Iterator[ConfigError]:
    """Yield the faults of APIs whose settings are valid alone but not together."""
    of_servers = {server.connection: name for name, server in mcp.servers.items() if server.connection}
    for name, api in apis.items():
        where = f"openapi.{name}"
        if name in mcp.servers:
            yield ConfigError(where, f"mcp.servers.{name} has the same name", "Rename one of them")
        if api.connection and api.connection not in credentials:
            yield ConfigError(
                f"{where}.connection",
                f"there is no connection {api.connection[:80]!r}",
                f"Write [credentials.{api.connection[:80]}], for example with token",
            )
        elif api.connection in of_servers:
            yield ConfigError(
                f"{where}.connection",
                f"mcp.servers.{of_servers[api.connection]} already uses {api.connection!r}, and a token "
                "one server",
                "Write a separate connection for this API",
            )
        if (api.connection or api.headers) and api.base_url and not may_carry_secrets(api.base_url):
            yield ConfigError(
                f"{where}.base_url",
                "is not encrypted, but its connection or its headers send credentials",
                "Use https",
            )
