"""Requests through obstore, which has connection pools, retries with back-off, and credentials; readable errors.

The text of an obstore error contains addresses with their queries, and may contain signatures. Therefore messages only
repeat the status and the server's error code, such as `ExpiredToken`.
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
from ramerge.core.foundation.extras import install_command
from ramerge.core.storage.storage import Version, has_changed

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

RETRY_SECONDS = "RAMERGE_RETRY_SECONDS"
_RETRY_SECONDS = 120.0
# Bytes of a response that are in memory before they are copied to their destination.
_CHUNK = 1 << 16
_EPOCH = datetime.fromtimestamp(0, timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>|\"code\": ?\"(\w{1,60})\"")
_UNUSABLE = "the address, or a setting of the storage (such as AWS_ENDPOINT or a key), cannot be used"
_NOWHERE = ("NoSuchBucket", "ContainerNotFound", "NoSuchHostedZone")
# Addresses at which clouds give credentials to their own machines; obstore tries them if there are no others.
_METADATA = ("169.254.169.254", "metadata.google.internal")
_NO_ACCOUNT = "MissingAccount"  # obstore's error for Azure, before any request, without an account name


class DeniedError(CheckpointError):
    """A server has refused access."""


def library(address: str) -> ModuleType:
    """Import obstore.

    Raises:
        CheckpointError: it is not installed, so `address` cannot be read.
    """
    try:
        import obstore
        import obstore.store
    except ImportError as error:
        raise CheckpointError(
            f"{address}: remote models need the package obstore: {install_command('remote')}"
        ) from error
    return obstore


def store_options() -> tuple[ClientConfig, RetryConfig]:
    """Options with which a store of obstore connects and repeats requests.

    A request may take long if a block is large and the network slow, but must not stall. Failed requests are repeated
    for the number of seconds in the environment variable `RAMERGE_RETRY_SECONDS`.
    """
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": timedelta(seconds=30),
        "timeout": timedelta(minutes=10),
        "allow_http": True,  # only for addresses that begin with http://
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
    """For how many seconds failed requests to servers are repeated."""
    text = os.environ.get(RETRY_SECONDS, "")
    try:
        seconds = float(text) if text else _RETRY_SECONDS
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise CheckpointError(f"{RETRY_SECONDS}: must be a number of seconds up to 3600, not {text!r}")
    return seconds


def version_of(meta: ObjectMeta) -> Version:
    """The version of a file, from obstore's metadata. Removes quotes around ETags, which some listings lack."""
    tag = (meta["e_tag"] or "").strip('"')
    return Version(tag, meta["size"], (meta["last_modified"] - _EPOCH) // _MICROSECOND * 1000)


def chunks(
    store: ObjectStore, key: str, version: Version, start: int, stop: int, *, place: str, access: str
) -> Iterator[NDArray[np.uint8]]:
    """Yield bytes `start:stop` (at least one byte) of a version of a file, in the chunks that obstore gets.

    A whole file is requested without a range, because some servers ignore ranges of small files.

    Args:
        place: the file's address, for messages.
        access: advice if access is denied, as a clause.

    Raises:
        CheckpointError: the file has changed, or the request fails.
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
        if version_there.tag:  # times in listings are more exact than in responses
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
    """Turn errors of obstore into errors of ramerge.

    Args:
        place: the address, for messages.
        access: advice if access is denied, as a clause.
        absent: the text about a missing file, as a clause.
        kind: the class of the error.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseException as error:
        # a panic inside obstore, such as for an address or key that makes no valid request; the type is not exported
        if type(error).__module__ == "pyo3_runtime":
            raise kind(f"{place}: {_UNUSABLE}; {access}") from None
        if not isinstance(error, (BaseError, ValueError, OSError)):
            raise
        if kind is CheckpointError and _is_access_denied(error):
            kind = DeniedError
        # without its cause, because a traceback would show the text that must not be repeated
        raise kind(f"{place}: {_explain_error(error, access, absent)}") from None


def _is_access_denied(error: Exception) -> bool:
    """Whether the error means that a server has refused access."""
    return type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError")


def _explain_error(error: Exception, access: str, absent: str) -> str:
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
    if _is_access_denied(error) or status in ("401", "403"):
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
