"""Open-domain questions with a search tool: NQ and 2WikiMultiHopQA in ZeroSearch's turn format.

The protocol is ZeroSearch's (Sun et al. 2025, arXiv:2505.04588; github.com/Alibaba-NLP/ZeroSearch, Apache-2.0), whose
prompt and replies of the environment are quoted word by word from `inference.py` and `llm_agent/generation.py`. The
model thinks, searches between `<search>` tags, gets documents between `<information>` tags, and answers between
`<answer>` tags. Defaults are those of its validation: greedy, five searches of five documents, then one last turn, 500
tokens each.

Where this differs from the original:

- `em` is an exact match; the original counts an answer that contains a gold answer. `match=contains` does too.
- Answers are looked for in what the model wrote. The original looks in the whole text, where its prompt and its remark
  on invalid turns hold such tags too: a model that never answers has answered "Beijing" or "and".
- A gold answer that normalization leaves empty ("A+", "---") is compared as it stands, not as an empty text.
- Documents are cut at `max_information` characters, the original's text between its tags at 2048 tokens. It also drops
  the start of prompts over 4096 tokens; here, a conversation that the server finds too long is a failed request.
- `continuation=turn` gives documents in a user's turn, since a chat cannot go on with an unfinished text. With
  `prefill` the model continues its own text, as it was trained, where the server can do that (vLLM, SGLang).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from ramerge.evaluation import answers as short_answers
from ramerge.evaluation.benchmark import Benchmark, BenchmarkSettings, Chat, Item, Message, Reply, Subset, Verdict
from ramerge.evaluation.data import all_of, from_hub, read_records, refuse, refuse_duplicates
from ramerge.evaluation.requirements import missing
from ramerge.evaluation.tasks.retrievers import RetrievalServer, RetrievedDocument, Retriever, bm25
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.extras import install

PROMPT = (
    "Answer the given question. "
    "You must conduct reasoning inside <think> and </think> first every time you get new information. "
    "After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query </search> "
    "and it will return the top searched results between <information> and </information>. "
    "You can search as many times as your want. "
    "If you find no further external knowledge needed, you can directly provide the answer inside <answer> and "
    "</answer>, without detailed illustrations. For example, <answer> Beijing </answer>. SearchQuestion: {question}\n"
)
INVALID = (
    "\nMy previous action is invalid. "
    "If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
NOTHING_FOUND = "No information available"

_HUB = "RUC-NLPIR/FlashRAG_datasets"
_HUB_FILES = {"nq": "nq/test.jsonl", "2wiki": "2wikimultihopqa/dev.jsonl"}
_STOP = ("</search>",)
_WITH_USER = re.compile("https?://[^/?#]*@")
# as vLLM and SGLang name it
_CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
_LONGEST_QUERY = 2000  # characters; about what a turn of 500 tokens holds


class SearchSettings(BenchmarkSettings):
    """Settings of ZeroSearch's validation, and the search tool."""

    max_tokens: int = Field(500, ge=1, description="new tokens a turn")
    max_turns: int = Field(5, ge=0, description="turns that are answered; one more ends the conversation")
    topk: int = Field(5, ge=1, description="documents a search")
    max_information: int = Field(8192, ge=1, description="characters of documents a search")
    match: Literal["exact", "contains"] = Field("exact", description="what em counts; contains is the original's")
    engine: str = Field(
        "bm25", pattern="^(bm25|https?://.+)$", description="bm25 over --data documents=FILE, or a retriever's address"
    )
    continuation: Literal["turn", "prefill"] = Field("turn", description="how the model gets documents")


@dataclass(frozen=True)
class SearchQuestion:
    """A question and all answers that count as right."""

    text: str
    answers: tuple[str, ...]


class SearchBenchmark(Benchmark[SearchSettings]):
    """NQ and 2WikiMultiHopQA with a search tool."""

    name = "search"
    data: ClassVar[Mapping[str, str]] = {
        "nq": "NQ-open: question, answer, or FlashRAG's layout",
        "2wiki": "2WikiMultiHopQA, in its own or FlashRAG's layout",
        "documents": "what is searched: contents, or title and text",
    }
    settings_type = SearchSettings

    def subsets(self) -> Sequence[Subset]:
        return (Subset("nq", "NQ", ("em", "f1")), Subset("2wiki", "2WikiMultiHopQA", ("em", "f1")))

    def check(self, subsets: Sequence[str]) -> None:
        all_of([self._check_retriever, *(partial(self._questions, subset) for subset in subsets)])

    def items(self, subset: str) -> Iterator[Item]:
        for key, question in self._questions(subset):
            yield Item(key, question)

    async def ask(self, subset: str, item: Item, chat: Chat) -> dict[str, Any]:
        """The turns of the model, and what each of them was: `search`, `answer` or None.

        Raises:
            EndpointError: a request failed, or the search tool did.
        """
        messages: list[Message] = [_message("user", PROMPT.format(question=_asked(item.value.text)))]
        turns: list[str] = []
        actions: list[str | None] = []
        while True:
            going_on = _CONTINUE if messages[-1]["role"] == "assistant" else {}  # with its own text
            reply = await chat(messages, stop=_STOP, extra_body=going_on)
            turns.append(_cut(reply))
            action, content = _action(turns[-1])
            actions.append(action)
            if action == "answer" or len(turns) > self.settings.max_turns:
                return {"turns": turns, "actions": actions}
            response = await self._information(content) if action == "search" else INVALID
            messages = self._continued(messages, turns[-1], response)

    async def score(self, subset: str, item: Item, answers: Mapping[str, Any]) -> Verdict:
        return self._score(item.value, answers["turns"], answers["actions"])

    def target(self, subset: str, item: Item) -> str:
        return str(item.value.answers[0])

    @cached_property
    def _retriever(self) -> Retriever:
        if self.settings.engine == "bm25":
            return bm25(self.context.data["documents"])
        return RetrievalServer(self.settings.engine)

    def _check_retriever(self) -> None:
        local = self.settings.engine == "bm25"
        needed = ["bm25s"] if local else ["httpx", "tenacity"]
        problems = missing(needed, who="ramerge/search", install=install("eval"))
        if local and "documents" not in self.context.data:
            problems.append(
                "ramerge/search: has nothing to search in; give --data documents=FILE (JSON lines with contents, or "
                "title and text), or the address of a retriever, --task-set search.engine=http://HOST:PORT/retrieve"
            )
        if _WITH_USER.match(self.settings.engine):
            problems.append(
                "ramerge/search: the address in search.engine holds a user or password, which results would keep; "
                "leave it out, or put a proxy that adds it in front of the retriever"
            )
        if problems:
            raise EvaluationError(problems)
        if isinstance(self._retriever, RetrievalServer):
            self._retriever.check()

    def _questions(self, subset: str) -> list[tuple[str, SearchQuestion]]:
        return _read_questions(self.context.data.get(subset) or _from_hub(subset))

    async def _information(self, query: str) -> str:
        """What the model is told about a query, as the original words it."""
        found = await self._retriever.search(query[:_LONGEST_QUERY], self.settings.topk) if query else ()
        documents = "\n".join(f"Doc {number}: {_line(document)}" for number, document in enumerate(found, 1))
        return f"\n\n<information>{documents[: self.settings.max_information] or NOTHING_FOUND}</information>\n\n"

    def _continued(self, messages: Sequence[Message], turn: str, response: str) -> list[Message]:
        """The conversation after a turn of the model and the environment's response."""
        if self.settings.continuation == "turn":
            return [*messages, _message("assistant", turn), _message("user", response.strip())]
        written = "".join(message["content"] for message in messages[1:])
        return [messages[0], _message("assistant", written + turn + response)]

    def _score(self, question: SearchQuestion, turns: Sequence[str], actions: Sequence[str | None]) -> Verdict:
        given = [answer for turn in turns for answer in _tagged("answer", turn)]
        details = {"searches": actions.count("search"), "invalid_turns": actions.count(None)}
        if not given:
            return Verdict(
                dict.fromkeys(("em", "f1"), (0.0, 1.0)), None, "the model gave no answer between <answer> tags", details
            )
        answer = given[-1].strip()
        contains = self.settings.match == "contains"
        match = float(any(matches(answer, gold, contains=contains) for gold in question.answers))
        overlap = max(f1(answer, gold) for gold in question.answers)
        return Verdict({"em": (match, 1.0), "f1": (overlap, 1.0)}, answer, None, details)


def normalized(text: str) -> str:
    """As in ZeroSearch's `qa_em.py`; a text that would be left empty stays as it is, in lower case."""
    return short_answers.normalized(text) or text.strip().lower()


def matches(answer: str, gold: str, *, contains: bool = False) -> bool:
    """Whether the answer is the gold one, or contains it, both normalized."""
    return normalized(gold) in normalized(answer) if contains else normalized(gold) == normalized(answer)


def f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall over the words of both, normalized."""
    return short_answers.f1(normalized(answer), normalized(gold))


def _asked(question: str) -> str:
    question = question.strip()
    return question if question.endswith("?") else f"{question}?"


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _cut(reply: Reply) -> str:
    """A turn up to its first search or, without one, its first answer.

    Servers leave out the text at which they stop, so the end of a search is put back where one is open.
    """
    text = reply.text
    is_open = text.rfind("<search>") > max(text.rfind("</search>"), text.rfind("</answer>"))
    if is_open and reply.finish_reason != "length":
        text += "</search>"
    for end in ("</search>", "</answer>"):
        if end in text:
            return text[: text.index(end)] + end
    return text


def _action(turn: str) -> tuple[str | None, str]:
    """The first complete search or answer of a turn and what it holds, or None and nothing.

    The same as a search for `<(search|answer)>(.*?)</\\1>`, which takes quadratic time where many tags stay open.
    """
    found = []
    for name in ("search", "answer"):
        start = turn.find(f"<{name}>")
        end = turn.find(f"</{name}>", start)
        if 0 <= start < end:
            found.append((start, name, turn[start + len(name) + 2 : end].strip()))
    return min(found)[1:] if found else (None, "")


def _tagged(name: str, turn: str) -> list[str]:
    """What stands between the tags of a name, as `<name>(.*?)</name>` finds it, in linear time."""
    closed = turn.split(f"</{name}>")[:-1]
    return [part.split(f"<{name}>", 1)[1] for part in closed if f"<{name}>" in part]


def _line(document: RetrievedDocument) -> str:
    return " ".join(f"{document.title} {document.text}".split())


def _from_hub(subset: str) -> Path:
    wanted = "JSON with question and answer or golden_answers, a text or a list of texts"
    instead = f"give --data {subset}=FILE, {wanted}"
    return from_hub(_HUB, _HUB_FILES[subset], task=f"search/{subset}", instead=instead)


def _read_questions(path: Path) -> list[tuple[str, SearchQuestion]]:
    """Keys and questions of a file, in the layouts of NQ-open, 2WikiMultiHopQA and FlashRAG."""
    records = read_records(path, {"question": str})
    refuse(
        f"{path}, record {number:,}: {problem}"
        for number, record in enumerate(records, 1)
        if (problem := _problem(record))
    )
    keys = [str(record.get("id", record.get("_id", number))) for number, record in enumerate(records, 1)]
    refuse_duplicates(path, keys)
    return [
        (key, SearchQuestion(record["question"], tuple(_answers(record))))
        for key, record in zip(keys, records, strict=True)
    ]


def _answers(record: Mapping[str, Any]) -> list[Any]:
    found = record.get("golden_answers", record.get("answer"))
    return found if isinstance(found, list) else [found]


def _problem(record: Mapping[str, Any]) -> str | None:
    """Why a record is no question, or None."""
    if not record["question"].strip():
        return "question is empty"
    found = _answers(record)
    if not found or not all(isinstance(answer, str) and answer.strip() for answer in found):
        return "needs golden_answers or answer: a text or a list of texts, none of them empty"
    return None
