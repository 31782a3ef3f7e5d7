"""The data of the task `memory`: HotpotQA and SQuAD as RULER reads them, with questions that point at paragraphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramerge import EvaluationError
from ramerge_eval.data import from_hub, parsed, read_records, read_text, refuse, refuse_duplicates

HUB = {
    "hotpotqa": ("hotpotqa/hotpot_qa", "distractor/validation-*.parquet"),
    "squad": ("rajpurkar/squad_v2", "squad_v2/validation-*.parquet"),
}
_LAYOUTS = {
    "hotpotqa": "question, answer and context (titles with their sentences), as in hotpot_dev_distractor_v1.json",
    "squad": "SQuAD's own layout, as in dev-v2.0.json",
}


@dataclass(frozen=True)
class ReadingQuestion:
    """A question on documents of the corpus.

    Attributes:
        key: its id, or its place in the file if it has no id.
        answer: the first gold answer, which alone counts.
        own: indices of the documents that came with it, which are always in the context.
        near: indices of other documents of the same article, which are added first.
    """

    key: str
    text: str
    answer: str
    own: tuple[int, ...]
    near: tuple[int, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Questions in the order of their file, and all distinct documents. `source` is the file."""

    source: Path
    documents: Sequence[str]
    questions: Sequence[ReadingQuestion]


def load(name: str, path: Path | None, selection: Path | None = None) -> Corpus:
    """Load HotpotQA or SQuAD from the user's copy, or from the hub.

    Args:
        name: `hotpotqa` or `squad`.
        path: the user's copy.
        selection: JSON records whose `input` selects questions of `hotpotqa` by their text, such as
            eval_50.json of the hub's BytedTsinghua-SIA/hotpotqa.

    Raises:
        EvaluationError: a file cannot be read, lacks fields or has duplicate ids, or the data set cannot be downloaded.
    """
    if path is None:
        path = from_hub(*HUB[name], task=f"memory/{name}", instead=f"give --data {name}=FILE: {_LAYOUTS[name]}")
    corpus = _squad(path) if name == "squad" else _hotpotqa(path)
    for question in corpus.questions:
        if not question.text.strip() or not question.answer.strip():
            raise EvaluationError(f"{path}, {question.key}: the question or its answer is empty")
    if not corpus.questions:
        raise EvaluationError(f"{path}: holds no question that can be answered")
    refuse_duplicates(path, [question.key for question in corpus.questions])
    if selection is None:
        return corpus
    by_text = {question.text.strip(): question for question in corpus.questions}
    texts = [record["input"].strip() for record in read_records(selection, {"input": str})]
    refuse(f"{selection}: {corpus.source} has no question {text!r}" for text in texts if text not in by_text)
    refuse_duplicates(selection, texts)
    return replace(corpus, questions=[by_text[text] for text in texts])


def _hotpotqa(path: Path) -> Corpus:
    rows: list[tuple[str, str, str, list[str]]] = []
    problems: list[str] = []
    for number, record in enumerate(read_records(path, {"question": str, "answer": str, "context": (list, dict)}), 1):
        key = str(record.get("_id") or record.get("id") or f"question {number}")
        try:
            context = record["context"]
            pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
            parts = [(title, sentences) for title, sentences in pairs]
            if not all(isinstance(sentences, list) for _, sentences in parts):
                raise TypeError
            paragraphs = [f"{title}\n{''.join(sentences)}" for title, sentences in parts]
            rows.append((key, record["question"], record["answer"], paragraphs))
        except (TypeError, ValueError, KeyError):
            problems.append(
                f"{path}, record {number}: context must be a list of [title, sentences], or an object with as many "
                "titles as lists of sentences"
            )
    refuse(problems)
    documents = sorted({document for row in rows for document in row[-1]})
    index_of = {document: index for index, document in enumerate(documents)}
    questions = [
        ReadingQuestion(key, question, answer, tuple(dict.fromkeys(index_of[document] for document in own)))
        for key, question, answer, own in rows
    ]
    return Corpus(path, documents, questions)


def _squad(path: Path) -> Corpus:
    """Read SQuAD in the published layout, or in the hub's: a row for each question, those of an article together."""
    fields: dict[str, Any] = {"id": str, "title": str, "context": str, "question": str, "answers": (list, dict)}
    rows = read_records(path, fields) if path.suffix == ".parquet" else list(_squad_rows(path))
    documents = sorted({row["context"] for row in rows})
    index_of = {document: index for index, document in enumerate(documents)}
    articles: dict[str, dict[int, None]] = {}
    for row in rows:
        articles.setdefault(row["title"], {})[index_of[row["context"]]] = None
    questions = []
    for row in rows:
        if answers := row["answers"]["text"]:
            own = index_of[row["context"]]
            near = tuple(index for index in articles[row["title"]] if index != own)
            questions.append(ReadingQuestion(row["id"], row["question"], answers[0], (own,), near))
    return Corpus(path, documents, questions)


def _squad_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    content = parsed(path, "the file", read_text(path))
    try:
        for number, article in enumerate(content["data"]):
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    answers = [str(each["text"]) for each in qa["answers"] if not qa.get("is_impossible")]
                    if not answers and not qa.get("is_impossible"):
                        raise EvaluationError(
                            f"{path}: question {qa['id']} has no answer and is not marked as is_impossible"
                        )
                    about = {"id": str(qa["id"]), "title": str(number), "answers": {"text": answers}}
                    yield {"context": str(paragraph["context"]), "question": str(qa["question"]), **about}
    except (TypeError, LookupError, AttributeError) as error:
        raise EvaluationError(f"{path}: does not have {_LAYOUTS['squad']} ({type(error).__name__}: {error})") from error
