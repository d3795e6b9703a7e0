"""Translate Azure's spelling of the API's paths, for clients that are made for Azure.

``AzureOpenAI`` and similar clients call ``/openai/deployments/NAME/chat/completions`` to ask a model, and
``/openai/models`` and the like for the rest. Azure's newer API is ``/openai/v1``. Each of these stands for
a path below ``/v1``, and every decision uses that path. A deployment is a model's name here. The proxy puts
it into the body, which decides rights, prices and limits, and is all that an upstream sees of it.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import orjson

from proxy.base.errors import RequestError
from proxy.json.splice import extend_object, join_object, members
from proxy.wires.registry.table import EndpointTable

_DEPLOYMENT: Final = re.compile(r"/openai/deployments/([^/]+)(/.*)\Z")
SLASH: Final = re.compile("%2F", re.IGNORECASE)


def below_openai(path: str, endpoints: EndpointTable) -> tuple[str | None, str]:
    """Return the path below ``/v1`` that a path in normal form stands for, and the deployment that it names.

    The path is ``None`` if it is not one of Azure's; the deployment is empty if the path names none.

    >>> below_openai("/openai/deployments/gpt-4o/chat/completions", SERVED)
    ('/chat/completions', 'gpt-4o')
    >>> below_openai("/openai/v1/models", SERVED)
    ('/models', '')
    """
    if not path.startswith("/openai/"):
        return None, ""
    if deployed := _DEPLOYMENT.match(path):
        return (deployed[2], _name(deployed[1])) if _is_deployed(deployed[2], endpoints) else (None, "")
    below = path.removeprefix("/openai/v1" if path.startswith("/openai/v1/") else "/openai")
    # Match whole segments only, so that `/openai/v1` is not cut from `/openai/v10`.
    strange = below == "/" or f"{below}/".startswith(("/deployments/", "/v1/"))
    return (None, "") if strange else (below, "")


def _is_deployed(below: str, endpoints: EndpointTable) -> bool:
    """Return whether Azure serves a path below a deployment, as it does for all paths that ask a model."""
    return endpoints.find("POST", below).deployed


def _name(escaped: str) -> str:
    try:
        return unquote(escaped, errors="strict")
    except UnicodeDecodeError:
        raise RequestError(
            400, "The deployment's name in the path is not UTF-8.", code="invalid_path"
        ) from None


def without_slashes(path: str, endpoints: EndpointTable) -> str:
    """Return a path without the encoded slashes in the name of a deployment.

    Names of models may contain slashes. They are harmless, because the proxy moves this name into the body.
    """
    deployed = _DEPLOYMENT.match(path)
    if deployed is None or not _is_deployed(deployed[2], endpoints):
        return path
    return f"/openai/deployments/{SLASH.sub('', deployed[1])}{deployed[2]}"


def named_deployment(model: Any, deployment: str) -> Any:
    """Return the model that a request names in its body or its path.

    Raises :class:`~proxy.base.errors.RequestError` (400) if they name two.
    """
    if deployment and model is not None and model != deployment:
        raise RequestError(
            400,
            f"The path names the deployment {deployment[:100]!r} but the body names the model "
            f"{str(model)[:100]!r}. Use the same name in both, or leave model out of the body.",
            param="model",
            code="model_conflict",
        )
    return deployment or model


def name_deployment(raw: bytes, payload: dict[str, Any], deployment: str) -> tuple[bytes, dict[str, Any]]:
    """Put the deployment that the path names into the body as its model; return the body's bytes and values.

    Raises :class:`RequestError` (400) if the body names another model: otherwise one of the two
    would escape routing, pricing or permissions.
    """
    if not deployment or payload.get("model") == deployment:
        return raw, payload
    named_deployment(payload.get("model"), deployment)
    named: Mapping[str, bytes] = {"model": orjson.dumps(deployment)}
    raw = join_object({**members(raw), **named}) if "model" in payload else extend_object(raw, named)
    payload["model"] = deployment
    return raw, payload
