"""Digests of conversations: the same words in the same order, whoever sends them."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

__all__ = ["conversation_digest"]


def conversation_digest(words: Sequence[str], visible: Iterable[Sequence[Any]]) -> str:
    """A digest of some words and of what is visible of each message, in hexadecimal.

    Every part stands behind its length, so that no two lists of parts read alike.
    """
    digest = hashlib.blake2b(digest_size=24)
    parts = [word.encode("utf-8", "surrogatepass") for word in words]
    digest.update(len(parts).to_bytes(4, "big"))
    parts += [orjson.dumps(message, option=orjson.OPT_SORT_KEYS) for message in visible]
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
