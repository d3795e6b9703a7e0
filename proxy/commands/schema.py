"""The JSON Schema of ``toolrelay.toml``, with which editors complete and check it."""

import json
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from proxy.config.key_grants import read_expiry
from proxy.config.secret import Secret
from proxy.config.settings import Config
from proxy.config.types import read_optional

DIALECT: Final = "http://json-schema.org/draft-07/schema#"
"""Editors of TOML read this draft: Taplo and Even Better TOML know no later one."""


class _Schema(GenerateJsonSchema):
    """Writes what a setting takes in a file, where its check is a function, too."""

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        """Return the schema of what the function says that it takes; anything if it does not say."""
        given = schema.get("json_schema_input_schema")
        return self.generate_inner(given) if given is not None else {}

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return the schema with its default as it is written in a file."""
        inner = self.generate_inner(schema["schema"])
        default = schema.get("default")
        if isinstance(default, Secret):
            default = default.reference
        if isinstance(default, bool | int | float | str) or default == ():
            return {**inner, "default": list(default) if isinstance(default, tuple) else default}
        return inner

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """Return the schema of a setting that may also be empty, or that has several spellings."""
        inner = self.generate_inner(schema["schema"])
        function = schema["function"]["function"]
        if function is read_optional:
            return {"anyOf": [inner, {"const": ""}]}
        return {} if function is read_expiry else inner

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Return the schema without null, which TOML does not have."""
        return self.generate_inner(schema["schema"])

    def generate(self, schema: CoreSchema, mode: Any = "validation") -> JsonSchemaValue:
        """Return the whole schema."""
        return {"$schema": DIALECT, **super().generate(schema, mode)}


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file."""
    made = Config.model_json_schema(schema_generator=_Schema, ref_template="#/definitions/{model}")
    made["definitions"] = made.pop("$defs")
    made["title"] = "toolrelay.toml"
    return dict(_plain(made))


def schema_text() -> str:
    """Return the schema as a file has it."""
    return json.dumps(config_schema(), indent=2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a part of the schema without what is for this project's own pages."""
    if isinstance(value, dict):
        return {
            name: _plain(member)
            for name, member in value.items()
            if name not in ("commented", "shown_as") and not (name == "example" and isinstance(member, str))
        }
    return [_plain(member) for member in value] if isinstance(value, list) else value
