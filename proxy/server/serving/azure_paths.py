"""Azure's spelling of the API's paths, for clients that are made for it.

``AzureOpenAI`` and its like call ``/openai/deployments/NAME/chat/completions`` where a model answers and
``/openai/models`` elsewhere; Azure's newer API is ``/openai/v1``.  Each means a path below ``/v1``, and is
that path for everything that is decided.  A deployment is a model's name here: it goes into the body, which
is what rights, prices and limits hang on and all that an upstream sees of it.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import orjson

from proxy.errors import RequestError
from proxy.wires.dialect import EndpointTable
from proxy.wires.json.splice import extend_object, join_object, members

__all__ = ["below_openai", "name_deployment", "without_slashes"]

_DEPLOYMENT: Final = re.compile(r"/openai/deployments/([^/]+)(/.*)\Z")
_SLASH: Final = re.compile("%2F", re.IGNORECASE)


def below_openai(path: str, endpoints: EndpointTable) -> tuple[str | None, str]:
    """What a path in normal form means: the one below ``/v1``, and the deployment that it names.

    ``None`` where it is no path of Azure's; the deployment is empty where there is none.

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
    # Whole segments only: what stands behind a version's first digits is no path of its own.
    strange = below == "/" or f"{below}/".startswith(("/deployments/", "/v1/"))
    return (None, "") if strange else (below, "")


def _is_deployed(below: str, endpoints: EndpointTable) -> bool:
    """Whether Azure serves a path below a deployment, which it does where a model is asked."""
    return endpoints.find("POST", below).deployed


def _name(escaped: str) -> str:
    try:
        return unquote(escaped, errors="strict")
    except UnicodeDecodeError:
        raise RequestError(
            400, "The deployment's name in the path is not UTF-8.", code="invalid_path"
        ) from None


def without_slashes(path: str, endpoints: EndpointTable) -> str:
    """A path less the encoded slashes in the name of a deployment: models may have slashes in their names,
    and nobody takes this name for a part of a path, since it leaves in the body."""
    deployed = _DEPLOYMENT.match(path)
    if deployed is None or not _is_deployed(deployed[2], endpoints):
        return path
    return f"/openai/deployments/{_SLASH.sub('', deployed[1])}{deployed[2]}"


def name_deployment(raw: bytes, payload: dict[str, Any], deployment: str) -> tuple[bytes, dict[str, Any]]:
    """A body, as bytes and read, that names the model which its path names.

    Raises :class:`~proxy.errors.RequestError` (400) where it names another one: one of the two would be
    served, priced or refused unasked.
    """
    if not deployment or payload.get("model") == deployment:
        return raw, payload
    if payload.get("model") is not None:
        raise RequestError(
            400,
            f"The path names the deployment {deployment[:100]!r} but the body names the model "
            f"{str(payload['model'])[:100]!r}. Use the same name in both, or leave model out of the body.",
            param="model",
            code="model_conflict",
        )
    named: Mapping[str, bytes] = {"model": orjson.dumps(deployment)}
    raw = join_object({**members(raw), **named}) if "model" in payload else extend_object(raw, named)
    payload["model"] = deployment
    return raw, payload
