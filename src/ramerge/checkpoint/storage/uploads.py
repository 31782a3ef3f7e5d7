"""Multipart uploads to S3 that a killed process has left open.

obstore can neither list nor abort them, but it signs addresses, with the credentials that it has found. It signs no
query that it is given, only one that is a part of the address of a store. So each request is signed by a store whose
address is the request. urllib makes it, because obstore expects of every answer the headers of a file.
"""

from __future__ import annotations

import re
import time
from datetime import timedelta
from http.client import HTTPException
from typing import Literal
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen
from xml.etree import ElementTree

from ramerge.checkpoint.storage import client
from ramerge.foundation.errors import SendError

_SIGNED_FOR = timedelta(minutes=15)
_SECONDS = 30
_PAUSES = (0.5, 2.0, 8.0, None)
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_LARGEST_ANSWER = 8 << 20
_CODE = re.compile(rb"<Code>(\w{1,60})</Code>")
# obstore ends an address with a slash, which is the value of this. S3 ignores parameters that begin with x-.
_LAST = "x-end"


class Uploads:
    """The open uploads to a bucket.

    Args:
        bucket: its name.
        access: what to check if access is denied, in words.
    """

    def __init__(self, bucket: str, access: str) -> None:
        self._bucket, self._access = bucket, access

    def abort(self, key: str) -> int:
        """Abort all uploads of a file. Its whole key is asked for: some servers (MinIO) know no other prefixes.

        Args:
            key: the file's path in the bucket.

        Returns:
            Their number.

        Raises:
            SendError: they cannot be listed or aborted.
        """
        place = f"s3://{self._bucket}/{key}"
        root = self._signed(place, "GET").partition("?")[0]
        listed = self._ask(place, "GET", root, {"uploads": "", "prefix": key})
        found = _uploads(listed, key, place)
        for upload in found:
            self._ask(place, "DELETE", f"{root}{quote(key)}", {"uploadId": upload})
        return len(found)

    def _ask(self, place: str, method: Literal["GET", "DELETE"], address: str, query: dict[str, str]) -> bytes:
        """What the server answers."""
        asked = f"{address}?{urlencode(query, quote_via=quote, safe='')}&{_LAST}="
        signed = self._signed(place, method, asked)
        # A setting of the environment may give the store another address, where the request would mean something else.
        if not signed.startswith(f"{asked}/&"):
            raise SendError(f"{place}: requests for its uploads cannot be signed with these settings of the storage")
        return _answer(Request(signed, method=method), place)

    def _signed(self, place: str, method: Literal["GET", "DELETE"], address: str | None = None) -> str:
        """A signed address: that of the bucket, or a given one."""
        from obstore import sign
        from obstore.store import S3Store

        connection, retry = client.options()
        with client.in_words(place, self._access, kind=SendError):
            store = S3Store(self._bucket, client_options=connection, retry_config=retry)
            if address is not None:
                store = S3Store(
                    self._bucket,
                    endpoint=address,
                    virtual_hosted_style_request=True,  # the address is complete
                    client_options=connection,
                    retry_config=retry,
                )
            return sign(store, method, "", _SIGNED_FOR)


def _answer(request: Request, place: str) -> bytes:
    """What a server answers; nothing if what is named is not there any more. A server that is busy is asked again."""
    said = ""
    for pause in _PAUSES:
        try:
            with urlopen(request, timeout=_SECONDS) as answer:
                return bytes(answer.read(_LARGEST_ANSWER))
        except HTTPError as error:
            with error:
                code = _CODE.search(error.read(_LARGEST_ANSWER))
            if error.code == 404:
                return b""
            said = f"the server says {error.code}{f' {code[1].decode()}' if code else ''}"
            if error.code not in _TRANSIENT:
                break
        except (OSError, HTTPException):
            said = "the server cannot be reached, or breaks off its answers"
        if pause is not None:
            time.sleep(pause)
    # without a cause, whose text may hold the signed address
    raise SendError(f"{place}: {said}") from None


def _uploads(answer: bytes, key: str, place: str) -> list[str]:
    """The ids of a file's uploads, from a list of uploads."""
    try:
        listed = ElementTree.fromstring(answer).findall("{*}Upload") if answer else []
    except ElementTree.ParseError:
        raise SendError(f"{place}: the server answers something else than a list of its uploads") from None
    return [each.findtext("{*}UploadId", "") for each in listed if each.findtext("{*}Key") == key]
