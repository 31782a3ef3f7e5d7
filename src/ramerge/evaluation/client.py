"""The client library's transport, with bounds on what it reads; imported when an endpoint is opened."""

from __future__ import annotations

import asyncio
from typing import Any

import openai

from ramerge.evaluation import bounds

_LARGE_AT_ONCE = 4
_MOST_OF_AN_ERROR = 1 << 16
_KEPT = ("location", "retry-after", "retry-after-ms", "x-should-retry")


class BoundedClient(openai.DefaultAioHttpClient):
    """Answers as plain text in UTF-8, read no further than a bound.

    The library would unpack every body whole, also with encodings that were not asked for, and decode it with any codec
    of Python that a header names. An error's body is cut off, since only its beginning is shown.
    """

    def __init__(self, most_bytes: int, **options: Any) -> None:
        super().__init__(headers={"Accept-Encoding": bounds.PACKING}, follow_redirects=False, **options)
        self._most_bytes = most_bytes
        self._large_bodies = asyncio.Semaphore(_LARGE_AT_ONCE)

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Send a request; the answer's body is read.

        Raises:
            RefusedError: it is too long, or packed in a way that was not asked for.
        """
        answer = await super().send(request, stream=True, **options)
        chunks, packing = aiter(answer.aiter_raw()), answer.headers.get("content-encoding", "")
        try:
            if answer.is_success:
                body = await bounds.read_body(chunks, packing, self._most_bytes, self._large_bodies)
            else:
                body, _ = await bounds.read_start(chunks, packing, _MOST_OF_AN_ERROR, self._large_bodies)
        finally:
            await answer.aclose()
        headers = {key: answer.headers[key] for key in _KEPT if key in answer.headers}
        return type(answer)(answer.status_code, headers=headers, content=body, request=request)
