"""All storages by the beginning of a name. To add one, write a file and add its row here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path

from ramerge.foundation.errors import CheckpointError, SendError
from ramerge.foundation.text import without_secrets
from ramerge.storage.bucket_upload import BucketUpload
from ramerge.storage.hub_upload import HubUpload
from ramerge.storage.location import Remote
from ramerge.storage.objects import Objects, open_bucket
from ramerge.storage.storage import Storage
from ramerge.storage.upload import UploadTarget
from ramerge.storage.web import Web

_HUB = "hub:"
_OUT = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]+:/+|{_HUB}", re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_ONE_SLASH = re.compile(r"(s3|gs|az|https?):/(?!/)(.*)", re.DOTALL | re.IGNORECASE)


def _bucket(scheme: str, rest: str, query: str) -> Storage:
    _check_bucket(scheme, rest, query)
    return Objects(scheme, rest)


def _bucket_upload(scheme: str, rest: str, query: str, staging: Path) -> UploadTarget:
    _check_bucket(scheme, rest, query)
    return BucketUpload(open_bucket(scheme, rest, "writing there", SendError), staging)


def _check_bucket(scheme: str, rest: str, query: str) -> None:
    if query:
        raise CheckpointError(f"{scheme}://{rest}: a query has no meaning here; credentials come from the environment")
    if rest.strip("/") and not {"", ".", ".."}.isdisjoint(rest.rstrip("/").split("/")):
        raise CheckpointError(
            f"{scheme}://{rest}: names of buckets and folders have no part that is empty, `.` or `..`"
        )
    if not rest.isprintable():
        raise CheckpointError(f"{scheme}://{rest}: names of buckets and folders have no tabs, newlines or the like")


def _web(scheme: str, rest: str, query: str) -> Storage:
    return Web(f"{scheme}://{rest}", query)


_STORAGES: dict[str, Callable[[str, str, str], Storage]] = {
    "s3": _bucket,
    "gs": _bucket,
    "az": _bucket,
    "https": _web,
    "http": _web,
}
_UPLOADS: dict[str, Callable[[str, str, str, Path], UploadTarget]] = {
    "s3": _bucket_upload,
    "gs": _bucket_upload,
    "az": _bucket_upload,
}


def is_remote(text: str) -> bool:
    """Whether a model's name says that it is remote: it begins like `s3://` (or `s3:/`, by mistake) or `hub:`."""
    return (_SCHEME.match(text) or _ONE_SLASH.match(text)) is not None or on_hub(text) is not None


def on_hub(text: str) -> str | None:
    """What follows `hub:` in a name that begins so."""
    return text[len(_HUB) :] if text.lower().startswith(_HUB) else None


def open_remote(text: str) -> Remote:
    """The folder of a name such as `s3://bucket/model`. Nothing is asked of a server yet.

    Raises:
        CheckpointError: the name has no supported scheme, holds credentials, or obstore is not installed.
    """
    scheme, rest, query = _parts(text, _STORAGES)
    return Remote(_STORAGES[scheme](scheme, rest, query))


def is_remote_output(text: str) -> bool:
    """Whether an output's name says that it is remote. `Path` makes one slash of two."""
    return _OUT.match(text) is not None


def open_upload(text: str, staging: Path, *, public: bool) -> UploadTarget:
    """Where a model is uploaded to, by a name such as `s3://bucket/model` or `hub:owner/name@branch`.

    Nothing is asked of a server yet.

    Args:
        text: the name.
        staging: the folder on this machine in which files lie until they are uploaded.
        public: whether anyone may see the model.

    Raises:
        CheckpointError: the name has no supported scheme, holds credentials, or obstore is not installed.
    """
    if (name := on_hub(text)) is not None:
        return HubUpload(name, staging, public=public)
    scheme, rest, query = _parts(text, _UPLOADS)
    if public:
        raise CheckpointError(f"{scheme}://{rest}: --public applies to the hub only; a bucket has its own rules")
    return _UPLOADS[scheme](scheme, rest, query, staging)


def _parts(text: str, supported: Collection[str]) -> tuple[str, str, str]:
    """Scheme, name and query.

    Raises:
        CheckpointError: the scheme is not supported, a slash is missing, or the name holds credentials.
    """
    if (short := _ONE_SLASH.fullmatch(text)) is not None:
        meant = without_secrets(f"{short[1].lower()}://{short[2]}")
        raise CheckpointError(
            f"{without_secrets(text)}: has one slash after {short[1]}: and needs two: {meant} (in Python as a string: "
            "a Path keeps only one)"
        )
    found = _SCHEME.fullmatch(text)
    scheme, rest, query = "", text, ""
    if found is not None:
        scheme = found[1].lower()
        rest, _, query = found[2].partition("?")
    if scheme not in supported:
        name = f"{scheme}://{rest}" if scheme else rest
        raise CheckpointError(
            f"{without_secrets(name)}: has no supported scheme ({', '.join(f'{each}://' for each in supported)})"
        )
    if "@" in rest.partition("/")[0]:
        raise CheckpointError(
            f"{scheme}://{rest.partition('@')[2]}: a name must not hold user and password; credentials come from the "
            "environment"
        )
    return scheme, rest, query
