"""HotpotQA and SQuAD as RULER reads them: all distinct paragraphs, sorted, and questions that point at theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ramerge.evaluation.data import read_records, read_text, refuse, refuse_duplicates
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.text import is_unicode

HUB = {"hotpotqa": ("hotpotqa/hotpot_qa", "distractor"), "squad": ("rajpurkar/squad_v2", "squad_v2")}
"""Where the development sets are (split validation) for who has no copy: data set and configuration."""

_FIELDS = {
    "hotpotqa": "question, answer and context (titles with their sentences), as in hotpot_dev_distractor_v1.json",
    "squad": "SQuAD's own layout, as in dev-v2.0.json",
}


@dataclass(frozen=True)
class ReadingQuestion:
    """A question on documents.

    Attributes:
        key: its id, or its place where it has none.
        answer: the first of the gold answers, the only one that counts.
        own: indices of the documents that came with it, always in the context.
        near: indices of other documents of the same article, the first to be added.
    """

    key: str
    text: str
    answer: str
    own: tuple[int, ...]
    near: tuple[int, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Questions in the order of their file, and all distinct documents. `source` says where they are from."""

    source: Path
    documents: Sequence[str]
    questions: Sequence[ReadingQuestion]


def load(name: str, data: Mapping[str, Path]) -> Corpus:
    """A data set from the user's copy, or from the hub.

    Args:
        name: `hotpotqa` or `squad`.
        data: files of the user. `hotpotqa_questions`, JSON records with `input`, chooses among the questions of
            `hotpotqa` by their text, such as eval_50.json of the hub's BytedTsinghua-SIA/hotpotqa.

    Raises:
        EvaluationError: a file cannot be read, lacks fields or has ids twice, or the hub does not give the data set.
    """
    path = data.get(name)
    if name == "squad":
        return _squad(path, _articles(path) if path else _hub_articles())
    fields: dict[str, type | tuple[type, ...]] = {"question": str, "answer": str, "context": (list, dict)}
    corpus = _hotpotqa(path or _hub_path(name), read_records(path, fields) if path else _hub_rows(name))
    return _chosen(corpus, data["hotpotqa_questions"]) if "hotpotqa_questions" in data else corpus


# --- HotpotQA --------------------------------------------------------------------------------------------------------


def _hotpotqa(path: Path, records: Iterable[Mapping[str, Any]]) -> Corpus:
    rows: list[tuple[str, str, str, list[str]]] = []
    problems: list[str] = []
    for number, record in enumerate(records, 1):
        try:
            rows.append((_key(record, number), record["question"], record["answer"], _paragraphs(record["context"])))
        except (TypeError, ValueError, KeyError):
            problems.append(
                f"{path}, record {number}: context must be a list of [title, sentences], or an object with as many "
                "titles as lists of sentences"
            )
    refuse(problems)
    refuse_duplicates(path, [key for key, *_ in rows])
    documents, index_of = _sorted(path, (document for row in rows for document in row[-1]))
    questions = [
        ReadingQuestion(key, question, answer, tuple(dict.fromkeys(index_of[document] for document in own)))
        for key, question, answer, own in rows
    ]
    return _checked(Corpus(path, documents, questions))


def _key(record: Mapping[str, Any], number: int) -> str:
    return str(record.get("_id") or record.get("id") or f"question {number}")


def _paragraphs(context: Any) -> list[str]:
    """Documents of a record: a title, and the sentences below it.

    Raises:
        KeyError, TypeError, ValueError: it has neither layout.
    """
    pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
    return [f"{title}\n{''.join(_sentences(sentences))}" for title, sentences in pairs]


def _sentences(sentences: Any) -> list[str]:
    if not isinstance(sentences, list):
        raise TypeError
    return sentences


def _chosen(corpus: Corpus, path: Path) -> Corpus:
    by_text = {question.text.strip(): question for question in corpus.questions}
    wanted = [record["input"].strip() for record in read_records(path, {"input": str})]
    refuse([f"{path}: {corpus.source} has no question {text!r}" for text in wanted if text not in by_text])
    refuse_duplicates(path, wanted)
    return Corpus(corpus.source, corpus.documents, [by_text[text] for text in wanted])


# --- SQuAD -----------------------------------------------------------------------------------------------------------


class _Answer(BaseModel):
    text: str


class _Qa(BaseModel):
    id: str
    question: str
    answers: list[_Answer]
    is_impossible: bool = False


class _Paragraph(BaseModel):
    context: str
    qas: list[_Qa]


class _Article(BaseModel):
    paragraphs: list[_Paragraph]


class _Squad(BaseModel):
    data: list[_Article]


def _squad(path: Path | None, articles: Sequence[_Article]) -> Corpus:
    source = path or _hub_path("squad")
    everything = [paragraph.context for article in articles for paragraph in article.paragraphs]
    documents, index_of = _sorted(source, everything)
    questions = []
    for article in articles:
        indices = list(dict.fromkeys(index_of[paragraph.context] for paragraph in article.paragraphs))
        for paragraph in article.paragraphs:
            own = index_of[paragraph.context]
            near = tuple(index for index in indices if index != own)
            answerable = (qa for qa in paragraph.qas if not qa.is_impossible)
            questions += [ReadingQuestion(qa.id, qa.question, _first(source, qa), (own,), near) for qa in answerable]
    refuse_duplicates(source, [question.key for question in questions])
    return _checked(Corpus(source, documents, questions))


def _first(source: Path, qa: _Qa) -> str:
    if not qa.answers:
        raise EvaluationError(f"{source}: question {qa.id} has no answer and is not marked as is_impossible")
    return qa.answers[0].text


def _articles(path: Path) -> list[_Article]:
    try:
        return _Squad.model_validate_json(read_text(path)).data
    except ValidationError as error:
        problems = [f"{path}: {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        refuse([problem.replace(": : ", ": ") for problem in problems])
        raise


def _hub_articles() -> list[_Article]:
    """Articles from the hub's rows, one a question; those of an article stand together."""
    return [
        _Article(
            paragraphs=[
                _Paragraph(context=context, qas=[_hub_qa(row) for row in asked])
                for context, asked in groupby(rows, key=lambda row: row["context"])
            ]
        )
        for _, rows in groupby(_hub_rows("squad"), key=lambda row: row["title"])
    ]


def _hub_qa(row: Mapping[str, Any]) -> _Qa:
    texts = row["answers"]["text"]
    answers = [_Answer(text=text) for text in texts]
    return _Qa(id=row["id"], question=row["question"], answers=answers, is_impossible=not texts)


# --- both ------------------------------------------------------------------------------------------------------------


def _sorted(path: Path, texts: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    documents = sorted(set(texts))
    refuse([f"{path}: {text[:40]!r}… holds half a character" for text in documents if not is_unicode(text)])
    return documents, {document: index for index, document in enumerate(documents)}


def _checked(corpus: Corpus) -> Corpus:
    def problems() -> Iterator[str]:
        for question in corpus.questions:
            if not question.text.strip() or not question.answer.strip():
                yield f"{corpus.source}, {question.key}: the question or its answer is empty"
            elif not is_unicode(question.text + question.answer):
                yield f"{corpus.source}, {question.key}: the question or its answer holds half a character"

    refuse(list(problems()))
    if not corpus.questions:
        raise EvaluationError(f"{corpus.source}: holds no question that can be answered")
    return corpus


def _hub_path(name: str) -> Path:
    return Path(HUB[name][0])


def _hub_rows(name: str) -> list[dict[str, Any]]:
    repository, configuration = HUB[name]
    try:
        from datasets import load_dataset

        return list(load_dataset(repository, configuration, split="validation"))
    except Exception as error:  # a missing package, no network, no such data set: each has types of its own
        reason = next(iter(str(error).splitlines()), "")
        raise EvaluationError(
            f"{name}: {repository} cannot be had from the hub ({type(error).__name__}: {reason}); give a copy with "
            f"--data {name}=FILE: {_FIELDS[name]}"
        ) from error
