"""The search tool of the task `search`: a BM25 index over the user's documents, or a server queried by HTTP.

BM25 is `bm25s` (Lù 2024, arXiv:2407.03618): it needs only numpy and keeps the index in sparse arrays. `rank_bm25`
visits every document in Python for each query, and Pyserini needs Java.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from ramerge import EndpointError, EvaluationError
from ramerge.sdk.text import shown
from ramerge_eval.data import read_records, refuse

_WITH_USER = re.compile("https?://[^/?#]*@")
_SECONDS = 60.0
_TRIES = 4
_FIRST_WAIT = 1.0  # seconds, which double


@dataclass(frozen=True, slots=True)
class RetrievedDocument:
    """A document that the search tool finds. `title` is empty if the source has none."""

    title: str
    text: str


class Retriever(Protocol):
    """The search tool: finds documents for a query."""

    async def search(self, query: str, k: int) -> Sequence[RetrievedDocument]:
        """Return at most `k` documents for a query, best first; empty if nothing matches.

        Raises:
            EndpointError: the search failed, after all tries.
        """


class BM25:
    """BM25 in Lucene's form with k1 = 1.5 and b = 0.75, over titles and texts.

    Words are two characters or longer, in lower case, without English stop words and without stemming.
    """

    def __init__(self, documents: Sequence[RetrievedDocument]) -> None:
        import bm25s
        from bm25s.tokenization import Tokenizer

        self._documents = documents
        self._tokenizer = Tokenizer(stopwords="english")
        texts = [f"{document.title} {document.text}" for document in documents]
        tokens = self._tokenizer.tokenize(texts, return_as="tuple", show_progress=False)
        self._index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        self._index.index(tokens, show_progress=False)

    async def search(self, query: str, k: int) -> Sequence[RetrievedDocument]:
        """Search in a thread, so that other samples are not blocked."""
        return await asyncio.to_thread(self._search, query, k)

    def _search(self, query: str, k: int) -> list[RetrievedDocument]:
        words = self._tokenizer.tokenize([query], update_vocab=False, allow_empty=False, show_progress=False)
        if not words[0]:
            return []
        places, scores = self._index.retrieve(words, k=min(k, len(self._documents)), show_progress=False)
        return [self._documents[index] for index, score in zip(places[0], scores[0], strict=True) if score > 0]


def open_retriever(engine: str, documents: Path | None) -> Retriever:
    """Open the search tool: `bm25` over a file of documents, or a server at an address, which gets a test query.

    Raises:
        EvaluationError: something is missing or wrong, or the server does not answer.
    """
    local = engine == "bm25"
    problems = []
    if local and documents is None:
        problems.append(
            "ramerge/search: has nothing to search in; give --data documents=FILE (JSON lines with contents, or "
            "title and text), or the address of a retriever, --task-set search.engine=http://HOST:PORT/retrieve"
        )
    if _WITH_USER.match(engine):
        problems.append(
            "ramerge/search: the address in search.engine holds a user or password, which results would keep; "
            "leave it out, or put a proxy that adds it in front of the retriever"
        )
    if problems:
        raise EvaluationError(problems)
    if documents is not None and local:
        return _indexed(documents, documents.stat().st_mtime_ns if documents.is_file() else 0)
    server = RetrievalServer(engine)
    server.check()
    return server


@lru_cache(maxsize=1)  # each model and each step of a search asks for the same one
def _indexed(documents: Path, _mtime: int) -> BM25:
    return BM25(read_documents(documents))


def read_documents(path: Path) -> list[RetrievedDocument]:
    """Read the documents of a JSON-lines file: `contents`, whose first line is the title, or `text` and `title`.

    The first is the layout of FlashRAG's and Search-R1's Wikipedia; further keys, such as `id`, are ignored.

    Raises:
        EvaluationError: the file cannot be read, or a record has neither layout.
    """
    documents, problems = [], []
    for number, record in enumerate(read_records(path, {}), 1):
        try:
            documents.append(_document(record))
        except ValueError as error:
            problems.append(f"{path}, record {number:,}: {error}")
    refuse(problems)
    return documents


def _document(record: Mapping[str, object]) -> RetrievedDocument:
    """Return the document of a record. Raises `ValueError` if it has neither layout."""
    contents = record.get("contents")
    if isinstance(contents, str):
        first, _, rest = contents.partition("\n")
        # the Wikipedia corpora quote their titles
        return RetrievedDocument(first.strip().strip('"'), rest) if rest else RetrievedDocument("", contents)
    title, text = record.get("title", ""), record.get("text")
    if not isinstance(title, str) or not isinstance(text, str):
        raise ValueError("must have contents, or text and perhaps a title, each of them text")
    return RetrievedDocument(title, text)


class RetrievalServer:
    """A retrieval server in Search-R1's format (github.com/PeterGriffinJin/Search-R1), given by its full address.

    It receives `{"queries": [query], "topk": k, "return_scores": true}` and answers
    `{"result": [[{"document": {"contents": ...}, "score": ...}, ...]]}`, with documents in the layouts of
    `read_documents`.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def check(self) -> None:
        """Check with one try that the retrieval server answers a query.

        Raises:
            EvaluationError: the server cannot be reached, or its answer has another form.
        """
        try:
            asyncio.run(self._search("Who wrote Hamlet?", 1))
        except EndpointError as error:
            raise EvaluationError(error.messages) from error

    async def search(self, query: str, k: int) -> Sequence[RetrievedDocument]:
        """Search with the server; try again if it cannot be reached, takes too long or fails."""
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential, wait_random

        again = AsyncRetrying(
            retry=retry_if_exception_type(_PassingError),
            stop=stop_after_attempt(_TRIES),
            wait=wait_exponential(_FIRST_WAIT) + wait_random(0, _FIRST_WAIT),
            reraise=True,
        )
        return await again(self._search, query, k)

    async def _search(self, query: str, k: int) -> Sequence[RetrievedDocument]:
        import httpx

        # Search-R1's server fails without return_scores
        request = {"queries": [query], "topk": k, "return_scores": True}
        try:
            async with httpx.AsyncClient(timeout=_SECONDS) as client:
                answer = await client.post(self._url, json=request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _PassingError(f"{self._url}: the search failed: {shown(error) or type(error).__name__}") from error
        if answer.status_code != 200:
            kind = _PassingError if answer.is_server_error else EndpointError
            raise kind(f"{self._url}: answered a search with status {answer.status_code}")
        try:
            return [_document(entry["document"]) for entry in answer.json()["result"][0]][:k]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise EndpointError(
                f"{self._url}: answered a search with something else than Search-R1's format, "
                '{"result": [[{"document": {"contents": ...}}, ...]]}'
            ) from error


class _PassingError(EndpointError):
    """A failure of the retrieval server that may be temporary."""
