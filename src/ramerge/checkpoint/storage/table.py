"""All storages by the beginning of a name. To add one, write a file and add its row here."""

from __future__ import annotations

import re
from collections.abc import Callable

from ramerge.checkpoint.storage.objects import Objects
from ramerge.checkpoint.storage.place import Remote
from ramerge.checkpoint.storage.storage import Storage
from ramerge.checkpoint.storage.web import Web
from ramerge.foundation.errors import CheckpointError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def _bucket(scheme: str, rest: str, query: str) -> Storage:
    if query:
        raise CheckpointError(f"{scheme}://{rest}: a query has no meaning here; credentials come from the environment")
    return Objects(scheme, rest)


def _web(scheme: str, rest: str, query: str) -> Storage:
    return Web(f"{scheme}://{rest}", query)


_STORAGES: dict[str, Callable[[str, str, str], Storage]] = {
    "s3": _bucket,
    "gs": _bucket,
    "az": _bucket,
    "https": _web,
    "http": _web,
}


def is_remote(text: str) -> bool:
    """Whether a model's name says that it is elsewhere: it begins like `s3://`."""
    return _SCHEME.match(text) is not None


def open_remote(text: str) -> Remote:
    """The folder of a name such as `s3://bucket/model`. Nothing is asked of a server yet.

    Raises:
        CheckpointError: the name is of no kind that is known, holds credentials, or obstore is not installed.
    """
    found = _SCHEME.fullmatch(text)
    assert found is not None, text
    scheme = found[1].lower()
    rest, _, query = found[2].partition("?")
    if scheme not in _STORAGES:
        known = ", ".join(f"{each}://" for each in _STORAGES)
        raise CheckpointError(f"{scheme}://{rest}: is not a place that is known ({known})")
    if "@" in rest.partition("/")[0]:
        raise CheckpointError(
            f"{scheme}://{rest.partition('@')[2]}: a name must not hold user and password; credentials come from the "
            "environment"
        )
    return Remote(_STORAGES[scheme](scheme, rest, query))
