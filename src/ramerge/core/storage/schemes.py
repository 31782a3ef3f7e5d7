"""Schemes of remote addresses, such as `s3://` or `hub:`: storage to read models from, and uploads of outputs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

from ramerge.core.foundation.errors import CheckpointError, SendError
from ramerge.core.foundation.text import without_secrets
from ramerge.core.storage.bucket_upload import BucketUpload
from ramerge.core.storage.hub_upload import HubUpload
from ramerge.core.storage.location import Remote
from ramerge.core.storage.objects import SCHEMES, open_bucket

UploadTarget: TypeAlias = BucketUpload | HubUpload
"""A remote place to which a model is uploaded. Shards are uploaded whole; no model is visible before the commit."""

_HUB = "hub:"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)(.*)", re.DOTALL)
_MISSPELLED = re.compile(rf"({'|'.join(SCHEMES)})(?::|//)(?!/)(.+)", re.DOTALL | re.IGNORECASE)


def is_remote(text: str) -> bool:
    """Whether a text is a remote address: it begins with a scheme such as `s3://` or `hub:`.

    One slash is enough, because `Path` turns two slashes into one. Misspelled addresses such as `s3:bucket` or
    `s3//bucket` count, too, so that they are refused later, instead of used as local folders.
    """
    return any(pattern.match(text) for pattern in (_SCHEME, _MISSPELLED)) or on_hub(text) is not None


def on_hub(text: str) -> str | None:
    """The part of a text after `hub:`; None for other texts."""
    return text[len(_HUB) :] if text.lower().startswith(_HUB) else None


def open_remote(text: str) -> Remote:
    """Open the folder with an address such as `s3://bucket/model`, without a request."""
    return Remote(open_bucket(_checked_address(text)))


def open_upload(text: str, staging: Path, *, public: bool) -> UploadTarget:
    """Open the upload to an address such as `s3://bucket/model` or `hub:owner/name@branch`, without a request."""
    if (name := on_hub(text)) is not None:
        return HubUpload(name, staging, public=public)
    address = _checked_address(text)
    if public:
        raise CheckpointError(f"{address}: --public applies to the hub only; a bucket has its own rules")
    return BucketUpload(open_bucket(address, SendError), staging)


def _checked_address(text: str) -> str:
    """Check and normalize the address of a folder in a bucket.

    Raises:
        CheckpointError: the scheme is not supported, a slash is missing, or the address contains credentials, a query,
            or parts that names of buckets and folders cannot have.
    """
    if misspelled := _MISSPELLED.fullmatch(text):
        address = without_secrets(f"{misspelled[1].lower()}://{misspelled[2]}")
        raise CheckpointError(
            f"{without_secrets(text)}: did you mean {address}? For a local folder, write ./{without_secrets(text)}"
        )
    match = _SCHEME.fullmatch(text)
    scheme = match[1].lower() if match is not None else ""
    if match is None or scheme not in SCHEMES:
        schemes = ", ".join(f"{each}://" for each in SCHEMES)
        raise CheckpointError(f"{without_secrets(text)}: has no supported scheme ({schemes})")
    if not match[2]:
        correction = without_secrets(f"{scheme}://{match[3]}")
        raise CheckpointError(
            f"{without_secrets(text)}: has one slash after {match[1]}: and needs two: {correction} (in Python as a "
            "string: a Path keeps only one)"
        )
    rest, query_mark, _ = match[3].partition("?")
    if "@" in rest.partition("/")[0]:
        raise CheckpointError(
            f"{scheme}://{rest.partition('@')[2]}: a name must not hold user and password; credentials come from the "
            "environment"
        )
    name = f"{scheme}://{rest}"
    if query_mark:
        raise CheckpointError(f"{name}: a query has no meaning here; credentials come from the environment")
    if rest.startswith("/"):
        correction = f"{scheme}://{rest.lstrip('/')}"
        raise CheckpointError(f"{name}: has too many slashes after {scheme}: and needs two: {correction}")
    if rest.strip("/") and not {"", ".", ".."}.isdisjoint(rest.rstrip("/").split("/")):
        raise CheckpointError(f"{name}: names of buckets and folders have no part that is empty, `.` or `..`")
    if not rest.isprintable():
        raise CheckpointError(f"{name}: names of buckets and folders have no tabs, newlines or the like")
    return name
