"""Requests through obstore: its pools of connections, its retries with back-off, its credentials, readable errors.

The text of an obstore error holds addresses with their queries, and so may hold signatures. Nothing of it is repeated
but the status and the server's own code, such as `ExpiredToken`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ramerge.core.foundation.errors import CheckpointError, RamergeError
from ramerge.core.foundation.extras import install
from ramerge.core.storage.storage import Version, has_changed

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

RETRY_SECONDS = "RAMERGE_RETRY_SECONDS"
_RETRY_SECONDS = 120.0
# Bytes of an answer that are in memory before they are where they belong.
_CHUNK = 1 << 16
_EPOCH = datetime.fromtimestamp(0, timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>|\"code\": ?\"(\w{1,60})\"")
_UNUSABLE = "the address, or a setting of the storage (such as AWS_ENDPOINT or a key), cannot be used"
_NOWHERE = ("NoSuchBucket", "ContainerNotFound", "NoSuchHostedZone")
# Where clouds give credentials to their own machines, and nothing else does.
_METADATA = ("169.254.169.254", "metadata.google.internal")
_NO_ACCOUNT = "MissingAccount"  # of Azure, which needs its name before it asks anybody


class DeniedError(CheckpointError):
    """A server has refused access."""


def library(address: str) -> ModuleType:
    """Import obstore, without which nothing at an address can be read."""
    try:
        import obstore
        import obstore.store
    except ImportError as error:
        raise CheckpointError(f"{address}: remote models need the package obstore: {install('remote')}") from error
    return obstore


def store_options() -> tuple[ClientConfig, RetryConfig]:
    """How a store of obstore connects and repeats requests.

    A request may take long if a block is large and the network slow, but not stand still. Failed requests are repeated
    for so many seconds as the environment says (`RAMERGE_RETRY_SECONDS`).
    """
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": timedelta(seconds=30),
        "timeout": timedelta(minutes=10),
        "allow_http": True,  # all that is not named as http:// is asked by https
    }
    seconds = retry_seconds()
    retry: RetryConfig = {
        "max_retries": 100,
        "retry_timeout": timedelta(seconds=seconds),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=max(0.1, min(15.0, seconds / 4))),
            "base": 2,
        },
    }
    return client, retry


def retry_seconds() -> float:
    """For how long failed requests to servers are repeated."""
    text = os.environ.get(RETRY_SECONDS, "")
    try:
        seconds = float(text) if text else _RETRY_SECONDS
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise CheckpointError(f"{RETRY_SECONDS}: must be a number of seconds up to 3600, not {text!r}")
    return seconds


def version_of(meta: ObjectMeta) -> Version:
    """Version of a file by an answer of obstore. Some lists have ETags without the quotes that answers have."""
    tag = (meta["e_tag"] or "").strip('"')
    return Version(tag, meta["size"], (meta["last_modified"] - _EPOCH) // _MICROSECOND * 1000)


def chunks(
    store: ObjectStore, key: str, version: Version, start: int, stop: int, *, place: str, access: str
) -> Iterator[NDArray[np.uint8]]:
    """Bytes `start:stop` of a version of a file, at least one, as obstore gets them.

    A whole file is requested without a range, because some servers ignore ranges of small files.

    Args:
        access: what to check if access is denied, as a phrase.
    """
    obstore = library(place)
    if stop > version.nbytes:
        raise CheckpointError(has_changed(place))
    options: dict[str, object] = {} if stop - start == version.nbytes else {"range": (start, stop)}
    if version.tag and not version.tag.startswith("W/"):  # weak tags never match
        options["if_match"] = f'"{version.tag}"'
    with readable_errors(place, access):
        answer = obstore.get(store, key, options=options)
        version_there = version_of(answer.meta)
        if version_there.tag:  # lists state times more exactly than answers do
            version_there = replace(version_there, modified_ns=version.modified_ns)
        if version_there != version or tuple(answer.range) != (start, stop):
            if "html" in str(answer.attributes.get("Content-Type", "")):
                raise CheckpointError(f"{place}: the answer is a web page; is a proxy or a login in the way?")
            raise CheckpointError(has_changed(place))
        nbytes = 0
        for chunk in answer.stream(_CHUNK):
            nbytes += len(chunk)
            if nbytes > stop - start:
                break
            yield np.frombuffer(chunk, np.uint8)
    if nbytes != stop - start:
        raise CheckpointError(f"{place}: the server sent {nbytes:,} bytes instead of {stop - start:,}; run this again")


@contextmanager
def readable_errors(
    place: str, access: str, *, absent: str = "is not there any more", kind: type[RamergeError] = CheckpointError
) -> Iterator[None]:
    """Turn errors of obstore into an error of ramerge.

    Args:
        access: what to check if access is denied, as a phrase.
        absent: the meaning of a missing file, as a phrase.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseException as error:
        # obstore has failed inside, as where an address or a key makes no request; the type is not exported
        if type(error).__module__ == "pyo3_runtime":
            raise kind(f"{place}: {_UNUSABLE}; {access}") from None
        if not isinstance(error, (BaseError, ValueError, OSError)):
            raise
        if kind is CheckpointError and _is_denied(error):
            kind = DeniedError
        # without its cause: a traceback would show the text that is not repeated here
        raise kind(f"{place}: {_explanation(error, access, absent)}") from None


def _is_denied(error: Exception) -> bool:
    """Whether a server has refused access, now."""
    return type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError")


def _explanation(error: Exception, access: str, absent: str) -> str:
    text = str(error)
    kind = type(error).__name__
    status = match[1] if (match := _STATUS.search(text)) else ""
    code = next(filter(None, match.groups()), "") if (match := _CODE.search(text)) else ""
    answer = " ".join(filter(None, (status, code)))
    suffix = f" (the server says {answer})" if answer else ""
    if code in _NOWHERE:
        return f"there is no such bucket{suffix}"
    if kind == "FileNotFoundError" or status == "404":
        return f"{absent}{suffix}"
    if any(sign in text for sign in (*_METADATA, _NO_ACCOUNT)):
        return f"no credentials were found; {access}"
    if _is_denied(error) or status in ("401", "403"):
        return f"access is denied{suffix}; {access}"
    if kind == "PreconditionError" or status == "412":
        return has_changed("")[2:]
    if kind == "NotSupportedError":
        return (
            "the server does not answer requests for a part of a file (HTTP ranges), or a proxy answers instead of it; "
            "copy the model to a folder first"
        )
    if status.startswith("3"):
        return f"the server redirects requests{suffix}; is the region or the address right?"
    repetition = f"requests are repeated for {retry_seconds():g} s ({RETRY_SECONDS})"
    if status:
        return f"the server fails{suffix}, and {repetition}; run this again later"
    if "HTTP error" in text:
        return (
            f"the server cannot be reached, or breaks off its answers, and {repetition}; check the network and the "
            "address, and run this again"
        )
    return f"the server cannot do what is asked ({kind}); {access}"
