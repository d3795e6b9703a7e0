"""OpenAPI documents of this project's own, with the shapes that published ones have.

Shapes that were looked at: Stripe (forms with ``deepObject``, lists in brackets), Twilio (names such as
``DateCreated<``), Box (``allOf``, ``nullable``), Plaid (three keys at once), the pet store of Swagger
(``api_key``, OAuth 2), FastAPI (3.1, ``anyOf`` with null, ids with ``__``).
"""

from typing import Any

KEY = {"type": "apiKey", "in": "header", "name": "X-Api-Key"}


def document(
    paths: dict[str, Any], *, version: str = "3.0.3", server: str = "https://api.example.com/v1", **more: Any
) -> dict[str, Any]:
    """Return a document with these paths."""
    return {
        "openapi": version,
        "info": {"title": "T", "version": "1"},
        "servers": [{"url": server}],
        "paths": paths,
        **more,
    }


def operation(name: str, *parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an operation with these parameters."""
    described: dict[str, Any] = {"operationId": name, "responses": {"200": {"description": "ok"}}, **more}
    return {**described, "parameters": list(parameters)} if parameters else described


def parameter(name: str, place: str, schema: Any = None, **more: Any) -> dict[str, Any]:
    """Return a parameter; one of the path is required."""
    required = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, "schema": schema or {"type": "string"}, **required, **more}


def body(
    schema: Any, media_type: str = "application/json", *, required: bool = True, **more: Any
) -> dict[str, Any]:
    """Return a request body."""
    return {"required": required, "content": {media_type: {"schema": schema, **more}}}


def shop(server: str) -> dict[str, Any]:
    """A shop in version 3.0: JSON and form bodies, a schema that contains itself, read-only properties."""
    text = {"type": "string"}
    item = {
        "type": "object",
        "required": ["id", "name"],
        "properties": {
            "id": {"type": "integer", "format": "int64", "readOnly": True},
            "name": {"type": "string", "nullable": True},
            "price": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
            "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Item"}},
        },
        "additionalProperties": False,
    }
    order = {
        "allOf": [
            {
                "type": "object",
                "required": ["created"],
                "properties": {"created": {**text, "readOnly": True}, "note": text},
            },
            {"type": "object", "required": ["note"]},
        ]
    }
    line = {"type": "object", "properties": {"price": text, "quantity": {"type": "integer"}}}
    charge = {
        "type": "object",
        "required": ["amount"],
        "properties": {
            "amount": {"type": "integer"},
            "expand": {"type": "array", "items": text},
            "metadata": {"type": "object", "properties": {"a": text, "b": text}},
            "lines": {"type": "array", "items": line},
        },
    }
    deep = {"style": "deepObject", "explode": True}
    return document(
        {
            "/items/{id}": {
                "parameters": [parameter("id", "path")],
                "get": operation(
                    "getItem",
                    parameter(
                        "fields", "query", {"type": "array", "items": text}, style="form", explode=False
                    ),
                    parameter("tag", "query", {"type": "array", "items": text}),
                    parameter("DateCreated", "query"),
                    parameter("DateCreated<", "query"),
                    parameter("filter", "query", {"type": "object", "properties": {"a": text}}, **deep),
                    parameter("X-Trace", "header"),
                    parameter("session", "cookie"),
                    parameter("limit", "query", {"type": "integer", "maximum": 10}),
                    parameter("full", "query", {"type": "boolean"}),
                ),
                "put": operation("putItem", requestBody=body({"$ref": "#/components/schemas/Item"})),
            },
            "/orders": {
                "post": operation("postOrder", requestBody=body(order, "application/merge-patch+json"))
            },
            "/charges": {
                "post": operation(
                    "postCharge",
                    requestBody=body(
                        charge,
                        "application/x-www-form-urlencoded",
                        encoding={"expand": deep, "metadata": deep, "lines": deep},
                    ),
                )
            },
            "/notes": {"post": operation("postNote", requestBody=body(text, "text/plain"))},
        },
        server=server,
        components={"schemas": {"Item": item}, "securitySchemes": {"key": KEY}},
        security=[{"key": []}],
    )


def users(server: str) -> dict[str, Any]:
    """An application in version 3.1, as frameworks write it."""
    user = {
        "type": "object",
        "required": ["email"],
        "properties": {
            "email": {"type": "string", "format": "email", "title": "Email"},
            "age": {"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "null"}], "title": "Age"},
            "kind": {"$ref": "#/components/schemas/Kind", "description": "What kind"},
        },
    }
    return document(
        {
            "/users/{user_id}/": {
                "patch": operation(
                    "update_user_users__user_id___patch",
                    parameter("user_id", "path", {"type": "integer", "title": "User Id"}),
                    parameter("q", "query", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
                    requestBody=body({"$ref": "#/components/schemas/User"}),
                )
            }
        },
        version="3.1.0",
        server=server,
        components={"schemas": {"User": user, "Kind": {"type": "string", "enum": ["admin", "guest"]}}},
    )
