"""The suite `memory`: contexts, tokens, prompts and scores."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from ramerge.core.foundation.errors import EndpointError, EvaluationError
from ramerge_eval.tasks.memory import protocol
from ramerge_eval.tasks.memory.task import SUBSETS, memory
from ramerge_eval.tasks.memory.tokens import Tokens
from suites.chats import (
    Item,
    Reply,
    Scripted,
    Suite,
    asked_and_scored,
    attempt,
    main_metric,
    solver_arguments,
)
from suites.gold import gold_of

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(*before: pre_tokenizers.PreTokenizer, use_regex: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def qwen() -> Tokenizer:
    tokenizer = byte_level(pre_tokenizers.Split(Regex(QWEN), "isolated"), use_regex=False)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def llama2() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: byte_level(use_regex=True),
    "qwen": qwen,
    "llama2": llama2,
}

TEXTS = [
    "Ed Wood (film)\nEd Wood is a 1994 film.  It won two awards!\n\nDocument 12:\n",
    "Cafés in Zürich\nThey don't open at 7:30 … or do they?\n\n\tDocument\n\n",
    "日本の首都\n東京です。🙂\n\nDocument 3:\nThe end. ",
] * 40


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small tokenizer of each kind, trained here."""
    folder = tmp_path_factory.mktemp("tokenizers")
    paths = {}
    for kind, make in KINDS.items():
        tokenizer, alphabet = make(), pre_tokenizers.ByteLevel.alphabet()
        special = ["<unk>", "<|begin|>", *(f"<0x{byte:02X}>" for byte in range(256) if kind == "llama2")]
        common: dict[str, Any] = {"vocab_size": 800, "show_progress": False, "special_tokens": special}
        trainer = trainers.BpeTrainer(**common, initial_alphabet=[] if kind == "llama2" else alphabet)
        tokenizer.train_from_iterator(TEXTS, trainer)
        paths[kind] = folder / f"{kind}.json"
        tokenizer.enable_truncation(7)
        tokenizer.save(str(paths[kind]))
    return paths


def whole(path: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def squad(paragraphs: int = 60, **extra: Any) -> dict[str, Any]:
    """SQuAD v2 in two articles, with questions that can be answered and one in ten that cannot."""

    def paragraph(number: int) -> dict[str, Any]:
        qas = [{"id": f"s{number}", "question": f"What is {number}?", "answers": [{"text": f"thing {number}"}] * 2}]
        qas += [{"id": f"n{number}", "question": "What not?", "answers": [], "is_impossible": True}]
        return {"context": f"Number {number} is thing {number}. " + "More of it follows. " * 40, "qas": qas}

    made = [paragraph(number) for number in range(paragraphs)]
    return {
        "version": "v2.0",
        "data": [{"title": "A", "paragraphs": made[::2]}, {"title": "B", "paragraphs": made[1::2]}],
    }


def hotpot(questions: int = 12, paragraphs: int = 10, *, hub: bool = False) -> list[dict[str, Any]]:
    def record(number: int) -> dict[str, Any]:
        titles = [f"Title {number} {each}" for each in range(paragraphs)]
        sentences = [[f"It has {number}.", f" Its name is name{number}x{each}."] for each in range(paragraphs)]
        context: Any = (
            {"title": titles, "sentences": sentences}
            if hub
            else [[*pair] for pair in zip(titles, sentences, strict=True)]
        )
        return {"_id": f"h{number}", "question": f"Who is {number}?", "answer": f"name{number}x3", "context": context}

    return [record(number) for number in range(questions)]


@pytest.fixture
def make(tmp_path: Path, tokenizers: dict[str, Path]) -> Callable[..., Suite]:
    """A suite on made-up data and a small tokenizer."""
    made = {"hotpotqa": hotpot(), "squad": squad()}

    def suite(
        *,
        data: dict[str, Any] | None = None,
        tokenizer: str | None = "qwen",
        files: dict[str, Path] | None = None,
        **given: Any,
    ) -> Suite:
        paths = {}
        for name, content in {**made, **(data or {})}.items():
            paths[name] = tmp_path / f"{name}.json"
            paths[name].write_text(json.dumps(content), encoding="utf-8")
        found = {**paths, **(files or {})}
        return Suite(memory, **found, tokenizer=tokenizers[tokenizer] if tokenizer else None, **given)

    return suite


def context_of(suite: Suite, task: str, item: Item) -> Any:
    return solver_arguments(suite, task)["contexts"][item.sample.id]


def texts(suite: Suite, task: str) -> list[tuple[Item, str]]:
    """Samples and their contexts."""
    return [(item, context_of(suite, task, item).text()) for item in suite.items(task)]


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama2"])
def test_chunks_are_the_decoded_slices(tokenizers: dict[str, Path], kind: str) -> None:
    text = "東京です。🙂🙂🙂 " * 20 + "\n\n<|begin|> Zürich"
    ids = whole(tokenizers[kind], text)
    tokenizer = Tokenizer.from_file(str(tokenizers[kind]))
    chunks = list(Tokens(tokenizers[kind]).chunks(text, 7))
    assert [text for text, _ in chunks] == [
        tokenizer.decode(ids[first : first + 7], skip_special_tokens=False) for first in range(0, len(ids), 7)
    ]
    assert sum(count for _, count in chunks) == len(ids)
    assert any("<|begin|>" in text for text, _ in chunks)
    if kind == "gpt2":
        assert any("�" in text for text, _ in chunks), "no chunk cuts a character, so the test says nothing of it"


def test_a_tokenizer_is_a_file_or_a_folder(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizers["qwen"].read_text(encoding="utf-8"), encoding="utf-8")
    assert Tokens(tmp_path).count(["a word"]) == Tokens(tokenizers["qwen"]).count(["a word"])


@pytest.mark.parametrize("content", [None, "{", "[]", '{"model": {}}'])
def test_a_bad_tokenizer_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(EvaluationError, match=r"tokenizer\.json"):
        Tokens(tmp_path if content is None else path)


# --- contexts --------------------------------------------------------------------------------------------------------


def test_a_context_is_numbered_documents(make: Callable[..., Suite]) -> None:
    corpus = sorted(f"{title}\n{''.join(parts)}" for record in hotpot() for title, parts in record["context"])
    suite = make()
    for record, (item, text) in zip(hotpot(), texts(suite, "hotpotqa_50"), strict=True):
        documents = text.split("\n\n")
        assert len(set(documents)) == len(documents) == 50
        for number, document in enumerate(documents, 1):
            head, content = document.split(":\n", 1)
            assert head == f"Document {number}"
            assert content in corpus
        own = {f"{title}\n{''.join(parts)}" for title, parts in record["context"]}
        assert own <= {document.split(":\n", 1)[1] for document in documents}
        assert item.messages[0]["content"] == record["question"]


def test_the_places_of_own_documents_differ_between_samples(make: Callable[..., Suite]) -> None:
    suite = make()
    items = list(suite.items("hotpotqa_50"))
    contexts = [context_of(suite, "hotpotqa_50", item) for item in items]
    places = [[number for number, each in enumerate(one.order) if each in one.question.own] for one in contexts]
    assert len({tuple(each) for each in places}) == len(items)


def test_both_layouts_of_hotpotqa_are_one(make: Callable[..., Suite]) -> None:
    original = [text for _, text in texts(make(), "hotpotqa_100")]
    assert original == [text for _, text in texts(make(data={"hotpotqa": hotpot(hub=True)}), "hotpotqa_100")]


@pytest.mark.parametrize("task", ["hotpotqa_50", "squad_8k"])
def test_items_are_the_same_in_two_runs_and_follow_the_seed(make: Callable[..., Suite], task: str) -> None:
    one, two, other = ({item.key: text for item, text in texts(make(seed=seed), task)} for seed in (None, 0, 1))
    assert one == two
    assert list(one) == list(other)
    assert all(one[key] != other[key] for key in one)


@pytest.mark.parametrize("kind", ["gpt2", "qwen", "llama2"])
def test_squad_contexts_fill_their_length(make: Callable[..., Suite], tokenizers: dict[str, Path], kind: str) -> None:
    items = texts(make(tokenizer=kind, samples=10), "squad_8k")
    for item, text in items:
        problem = item.messages[0]["content"]
        tokens = len(whole(tokenizers[kind], text + problem))
        assert 0.9 * 8192 < tokens <= 8192 - 32
        assert problem == f"Answer the question based on the given documents. What is {item.key[1:]}?"
    assert len(items) == 10


def test_squad_takes_documents_of_the_article_first(make: Callable[..., Suite]) -> None:
    suite = make()
    context = context_of(suite, "squad_8k", next(suite.items("squad_8k")))
    article = {context.question.own[0], *context.question.near}
    assert len(article) == 30
    assert set(context.order) <= article or article < set(context.order)


def test_unanswerable_questions_are_left_out_and_squad_1_has_none(make: Callable[..., Suite]) -> None:
    keys = [item.key for item in make().items("squad_8k")]
    assert keys == [f"s{number}" for number in [*range(0, 60, 2), *range(1, 60, 2)]]
    first = squad()
    for article in first["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = paragraph["qas"][:1]
    assert [item.key for item in make(data={"squad": first}).items("squad_8k")] == keys


def test_questions_can_be_chosen(make: Callable[..., Suite]) -> None:
    chosen = [{"input": "Who is 7?", "context": "…"}, {"input": "Who is 2?", "context": "…"}]
    suite = make(data={"hotpotqa_questions": chosen})
    assert [item.key for item in suite.items("hotpotqa_50")] == ["h7", "h2"]
    with pytest.raises(EvaluationError, match=r"has no question 'Who is 99\?'"):
        make(data={"hotpotqa_questions": [{"input": "Who is 99?"}]}).check(["hotpotqa_50"])


def test_documents_are_repeated_only_when_asked_for(make: Callable[..., Suite]) -> None:
    tasks = ["hotpotqa_100", "hotpotqa_200", "squad_8k", "squad_128k"]
    with pytest.raises(EvaluationError) as refused:
        make().check(tasks)
    assert [problem.split(":")[0] for problem in refused.value.problems] == ["hotpotqa_200", "squad_128k"]
    assert all("memory.repeat_documents=true" in problem for problem in refused.value.problems)
    suite = make(repeat_documents=True)
    suite.check(tasks)
    item = next(suite.items("hotpotqa_200"))
    details = attempt(suite, "hotpotqa_200", item, gold_of(suite, "hotpotqa_200", item)).details
    assert (details["documents"], details["distinct_documents"]) == (200, 120)


def asking(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


# --- asking ----------------------------------------------------------------------------------------------------------


def play(suite: Suite, task: str, item: Item, replies: list[Reply | str | None]) -> tuple[Any, list[dict[str, Any]]]:
    chat = Scripted(replies)
    score = asyncio.run(asked_and_scored(suite, task, item, chat))
    return score, chat.asked


def test_memagent_hands_the_memory_on(make: Callable[..., Suite]) -> None:
    suite = make(chunk_tokens=1000)
    item = next(suite.items("hotpotqa_50"))
    given = solver_arguments(suite, "hotpotqa_50")
    chunks = list(given["tokens"].chunks(given["contexts"][item.sample.id].text(), 1000))
    thoughts = [f"<think>hm {number}</think> {{memory {number}}}\n" for number in range(len(chunks))]
    score, asked = play(suite, "hotpotqa_50", item, [*thoughts, "Therefore, the answer is **name0x3**."])
    memories = ["No previous memory", *(f"{{memory {number}}}" for number in range(len(chunks)))]
    assert len(chunks) > 2
    for (chunk, _), notes, sent in zip(chunks, memories, asked[:-1], strict=False):
        assert sent["messages"] == asking(protocol.section("Who is 0?", notes, chunk))
        assert len(sent["messages"]) == 1
    assert asked[-1]["messages"] == asking(protocol.final("Who is 0?", memories[-1]))
    assert score.metrics == {"sub_em": (1.0, 1.0), "em": (1.0, 1.0), "f1": (1.0, 1.0)}
    assert score.details["chunks"] == len(chunks)
    assert score.details["tokens"] == sum(tokens for _, tokens in chunks)


def test_a_failed_request_fails_the_sample(make: Callable[..., Suite]) -> None:
    suite = make()
    item = next(suite.items("hotpotqa_50"))
    with pytest.raises(EndpointError):
        attempt(suite, "hotpotqa_50", item, ["a memory", None])
    assert set(suite.failed("hotpotqa_50", item).values()) == {(0.0, 1.0)}


# --- scoring ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("Therefore, the answer is Paris.", "Paris"),
        ("the answer is A. No: the answer is **B**.", "B"),
        ("<think>the answer is A</think>So the answer is B", "B"),
        ("the answer is A</think>", "A</think>"),
        ("The answer is Paris", None),
        ("the answer is", ""),
        ("Paris", None),
        ("", None),
    ],
)
def test_answers_in_sentences(reply: str, said: str | None) -> None:
    assert protocol.answer(reply) == said


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("The Beatles!", "beatles", (1, 1, 1)),
        ("the Beatles of Liverpool", "Beatles", (1, 0, 0.5)),
        ("1999", "in the year 1999", (1, 0, 0.5)),
        ("Queen", "Beatles", (0, 0, 0)),
        ("yes, it is", "yes", (1, 0, 0)),
        ("no", "yes", (0, 0, 0)),
    ],
)
def test_scores(prediction: str, gold: str, expected: tuple[float, float, float]) -> None:
    assert tuple(protocol.score(prediction, gold).values()) == expected


def test_what_normalizes_to_nothing_is_compared_as_it_stands() -> None:
    assert protocol.score("the", "Beatles")["sub_em"] == 0
    assert protocol.score("Beatles", "The The")["sub_em"] == 0
    assert protocol.score("the the", "The The") == {"sub_em": 1, "em": 1, "f1": 1}


@pytest.mark.parametrize("task", ["hotpotqa_50", "squad_8k"])
def test_gold_is_right_and_other_answers_are_wrong(make: Callable[..., Suite], task: str) -> None:
    suite = make(data={"hotpotqa": hotpot(8)}, samples=8)
    items = list(suite.items(task))
    assert [main_metric(suite, task, item, gold_of(suite, task, item)) for item in items] == [1] * 8
    crossed = [
        main_metric(suite, task, item, [*gold_of(suite, task, item)[:-1], gold_of(suite, task, other)[-1]])
        for item, other in zip(items, items[1:] + items[:1], strict=True)
    ]
    assert sum(crossed) == 0


BROKEN = ["", "x" * 1_000_000, "\ud800\udc00\x00", "{" * 100_000, "the answer is \ud800", "\\boxed{\x00\ud8ff}"]


@pytest.mark.parametrize("reply", BROKEN, ids=range(len(BROKEN)))
def test_broken_replies_score_nothing(make: Callable[..., Suite], reply: str) -> None:
    suite = make(chunk_tokens=2000)
    item = next(suite.items("hotpotqa_50"))
    count = len(gold_of(suite, "hotpotqa_50", item))
    score, _ = play(suite, "hotpotqa_50", item, [reply] * count)
    assert score.metrics["sub_em"] == (0.0, 1.0)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["hotpotqa_50", "squad_8k"])
def test_a_tokenizer_must_be_given(make: Callable[..., Suite], task: str) -> None:
    with pytest.raises(EvaluationError, match="--tokenizer"):
        make(tokenizer=None).check([task])


def changed(records: Any, **fields: Any) -> Any:
    return [{**records[0], **fields}, *records[1:]]


HOTPOT = hotpot(2)
BAD = [
    ("hotpotqa", [], "holds no record"),
    ("hotpotqa", [{"question": "?"}], "lacks answer, context"),
    ("hotpotqa", changed(HOTPOT, answer=3), "answer: must be str"),
    ("hotpotqa", changed(HOTPOT, answer=" "), "h0: the question or its answer is empty"),
    ("hotpotqa", changed(HOTPOT, answer="\ud800"), "half of a surrogate pair"),
    ("hotpotqa", changed(HOTPOT, context=[["A", ["\ud800"]]]), "half of a surrogate pair"),
    ("hotpotqa", changed(HOTPOT, context=[["A", "text"]]), "record 1: context must be"),
    ("hotpotqa", changed(HOTPOT, context=["A"]), "record 1: context must be"),
    ("hotpotqa", changed(HOTPOT, context={"title": ["A"]}), "record 1: context must be"),
    ("hotpotqa", changed(HOTPOT, context={"title": ["A"], "sentences": []}), "record 1: context must be"),
    ("hotpotqa", HOTPOT + HOTPOT[:1], "more than once: 'h0'"),
    ("squad", [], "own layout"),
    ("squad", {"data": []}, "holds no question"),
    ("squad", {"data": [{"paragraphs": [{"context": "A"}]}]}, "own layout.*qas"),
    ("squad", {"data": [{"paragraphs": [{"context": "A", "qas": [{"id": 1}]}]}]}, "own layout.*answers"),
    (
        "squad",
        {"data": [{"paragraphs": [{"context": "A", "qas": [{"id": "q", "question": "?", "answers": []}]}]}]},
        "question q has no answer",
    ),
    ("squad", {"data": squad(2)["data"] * 2}, "more than once: 's0', 's1'"),
]


@pytest.mark.parametrize(("name", "content", "problem"), BAD, ids=range(len(BAD)))
def test_bad_data_is_named(make: Callable[..., Suite], name: str, content: Any, problem: str) -> None:
    task = {"hotpotqa": "hotpotqa_50", "squad": "squad_8k"}[name]
    with pytest.raises(EvaluationError, match=problem) as refused:
        make(data={name: content}).check([task])
    assert all(f"{name}.json" in each for each in refused.value.problems)


@pytest.mark.parametrize("name", ["hotpotqa", "squad"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no record|JSON"),
        (b'"caf\xe9"', "not UTF-8"),
        (b"{", "JSON|EOF"),
        (b"[" * 100_000, "JSON|recursion"),
    ],
)
def test_bad_files_are_named(
    make: Callable[..., Suite], tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(EvaluationError, match=problem) as refused:
        make(files={name: path}).check(["hotpotqa_50", "squad_8k"])
    assert str(path) in str(refused.value)
    for absent in (tmp_path, tmp_path / "absent"):
        with pytest.raises(EvaluationError, match=str(absent)):
            make(files={name: absent}).check(["hotpotqa_50", "squad_8k"])


def test_the_hub_stands_in_for_files(
    make: Callable[..., Suite], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = {"hotpotqa/hotpot_qa": hotpot(hub=True), "rajpurkar/squad_v2": list(squad_rows())}

    def download(repository: str, *, allow_patterns: str, **_: Any) -> str:
        path = tmp_path / repository / allow_patterns.replace("*", "0")
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows[repository]), path)
        return str(tmp_path / repository)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    own = make()
    suite = Suite(memory, tokenizer=own.arguments["tokenizer"])
    for task in ("hotpotqa_50", "squad_8k"):
        assert [text for _, text in texts(suite, task)] == [text for _, text in texts(own, task)]


def squad_rows() -> Iterator[dict[str, Any]]:
    for article in squad()["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                about = {"title": article["title"], "context": paragraph["context"], "id": qa["id"]}
                yield {**about, "question": qa["question"], "answers": {"text": [one["text"] for one in qa["answers"]]}}


def test_a_hub_out_of_reach_says_what_to_give(make: Callable[..., Suite], monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    suite = Suite(memory, tokenizer=make().arguments["tokenizer"])
    with pytest.raises(EvaluationError) as refused:
        suite.check(["hotpotqa_50", "squad_8k"])
    assert ["--data hotpotqa=FILE" in refused.value.problems[0], "--data squad=FILE" in refused.value.problems[1]] == [
        True
    ] * 2


def test_tasks_have_the_names_of_the_tables() -> None:
    assert list(SUBSETS) == [
        *(f"hotpotqa_{number}" for number in (50, 100, 200, 400, 800, 1600, 3200, 6400)),
        *(f"squad_{number}k" for number in (8, 16, 32, 64, 128)),
    ]


# --- real data -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> dict[str, Path]:
    folder = os.environ.get("RAMERGE_EVAL_DATA")
    if folder is None:
        pytest.skip(
            "RAMERGE_EVAL_DATA, a folder with hotpot_dev_distractor_part.json and squad_dev_v2_part.json, is unset"
        )
    return {
        "hotpotqa": Path(folder) / "hotpot_dev_distractor_part.json",
        "squad": Path(folder) / "squad_dev_v2_part.json",
    }


@pytest.mark.parametrize(
    ("task", "samples"), [("hotpotqa_50", 20), ("squad_8k", 60), ("hotpotqa_1600", 1), ("squad_128k", 1)]
)
def test_real_questions(real: dict[str, Path], tokenizers: dict[str, Path], task: str, samples: int) -> None:
    suite = Suite(memory, **real, tokenizer=tokenizers["qwen"], samples=samples, repeat_documents=samples == 1)
    items = list(suite.items(task))
    assert len({item.key for item in items}) == len(items) == samples
    golds = [gold_of(suite, task, item) for item in items]
    assert [main_metric(suite, task, item, gold) for item, gold in zip(items, golds, strict=True)] == [1] * samples
    if samples > 1:
        crossed = [
            main_metric(suite, task, item, [*gold[:-1], other[-1]])
            for item, gold, other in zip(items, golds, golds[1:] + golds[:1], strict=True)
        ]
        assert sum(crossed) <= 0.05 * samples


def test_all_real_squad_questions_have_their_answer_in_the_context(
    real: dict[str, Path], tokenizers: dict[str, Path]
) -> None:
    suite = Suite(memory, **real, tokenizer=tokenizers["qwen"], samples=10_000)
    items = list(suite.items("squad_8k"))
    assert len(items) == 2910
    assert all(item.sample.target in context_of(suite, "squad_8k", item).text() for item in items[::50])
    scores = [protocol.score(str(item.sample.target), str(item.sample.target)) for item in items]
    assert {value for each in scores for value in each.values()} == {1.0}
