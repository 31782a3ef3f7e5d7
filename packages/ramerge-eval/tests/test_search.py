"""The suite `search`: ZeroSearch's conversation, its scores, and the search tools behind it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramerge.core.foundation.errors import EndpointError, EvaluationError
from ramerge_eval.tasks.retrievers import BM25, RetrievalServer, RetrievedDocument, open_retriever, read_documents
from ramerge_eval.tasks.search import (
    INVALID,
    NO_DOCUMENTS,
    PROMPT,
    _action,
    _answers_in,
    _cut,
    comparable,
    matches,
    search,
)
from ramerge_eval.tasks.short_answers import f1
from suites.chats import Item, Reply, Scripted, Suite, asked_and_scored, attempt, main_metric
from suites.gold import gold_of

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

QUESTIONS = [
    {"question": "who wrote the novel frankenstein", "answer": ["Mary Shelley", "Mary Wollstonecraft Shelley"]},
    {"question": "in what year did apollo 11 land on the moon ", "answer": ["1969"]},
    {"question": "what is the most common blood type in sweden", "answer": ["A+"]},
]
DOCUMENTS = [
    {"id": "0", "contents": '"Frankenstein"\nFrankenstein is a novel by\nMary Shelley, printed in 1818.'},
    {"id": "1", "contents": '"Apollo 11"\nApollo 11 landed on the Moon on 20 July 1969.'},
    {"id": "2", "contents": '"Sweden"\nSweden is a country in the north of Europe.'},
]
FRANKENSTEIN = "Doc 1: Frankenstein Frankenstein is a novel by Mary Shelley, printed in 1818."
ANSWER = "<think> So. </think><answer> Mary Shelley </answer>"


def lines(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


Files = dict[str, Path]


@pytest.fixture
def context(tmp_path: Path) -> Files:
    return {
        "nq": lines(tmp_path / "nq.jsonl", QUESTIONS),
        "documents": lines(tmp_path / "documents.jsonl", DOCUMENTS),
    }


def suite_of(files: Files, **settings: Any) -> Suite:
    return Suite(search, **files, **settings)


def first(suite: Suite) -> Item:
    return next(suite.items("nq"))


def converse(suite: Suite, *replies: Reply | str) -> tuple[Scripted, Any]:
    """What was asked, and the score, when the first question is answered with these replies."""
    chat = Scripted(replies)

    return chat, asyncio.run(asked_and_scored(suite, "nq", first(suite), chat))


class TestConversation:
    def test_the_first_message_is_the_prompt_with_the_question(self, context: Files) -> None:
        chat, _ = converse(suite_of(context), ANSWER)
        content = PROMPT.format(question="who wrote the novel frankenstein?")
        assert chat.asked[0]["messages"] == [{"role": "user", "content": content}]
        assert chat.asked[0]["stop"] == ("</search>",)

    def test_a_search_is_answered_with_documents(self, context: Files) -> None:
        search = "<think> Hm. </think><search> frankenstein novel "
        chat, score = converse(suite_of(context), search, ANSWER)
        assert chat.asked[1]["messages"][1:] == [
            {"role": "assistant", "content": f"{search}</search>"},
            {"role": "user", "content": f"<information>{FRANKENSTEIN}</information>"},
        ]
        assert score.metrics == {"em": (1.0, 1.0), "f1": (1.0, 1.0)}
        assert score.parsed == "Mary Shelley"
        assert score.details == {"searches": 1, "invalid_turns": 0}

    def test_prefill_goes_on_with_the_text_of_the_model(self, context: Files) -> None:
        chat, score = converse(
            suite_of(context, continuation="prefill"), "<search> frankenstein novel ", "Well.", ANSWER
        )
        assert chat.asked[0]["extra_body"] == {}
        first_turn = f"<search> frankenstein novel </search>\n\n<information>{FRANKENSTEIN}</information>\n\n"
        prompt, written = chat.asked[1]["messages"]
        assert (prompt["role"], written) == ("user", {"role": "assistant", "content": first_turn})
        assert chat.asked[1]["extra_body"] == {"continue_final_message": True, "add_generation_prompt": False}
        assert chat.asked[2]["messages"][1]["content"] == f"{first_turn}Well.{INVALID}"
        assert score.metrics["em"] == (1.0, 1.0)

    def test_a_turn_without_action_may_be_tried_again(self, context: Files) -> None:
        chat, score = converse(suite_of(context), "I wonder.", ANSWER)
        assert chat.asked[1]["messages"][-1] == {"role": "user", "content": INVALID.strip()}
        assert score.metrics["em"] == (1.0, 1.0)
        assert score.details == {"searches": 0, "invalid_turns": 1}

    def test_ends_after_the_turns_and_one_more(self, context: Files) -> None:
        chat, score = converse(suite_of(context, max_turns=2), *["<search> frankenstein"] * 3)
        assert len(chat.asked) == 3
        assert score.metrics == {"em": (0.0, 1.0), "f1": (0.0, 1.0)}
        assert score.problem == "the model gave no answer between <answer> tags"

    @pytest.mark.parametrize("query", ["", "  ", "zzz qqq", "of the"])
    def test_a_search_may_find_nothing(self, context: Files, query: str) -> None:
        chat, _ = converse(suite_of(context), f"<search>{query}", ANSWER)
        assert chat.asked[1]["messages"][-1]["content"] == f"<information>{NO_DOCUMENTS}</information>"

    def test_long_documents_are_cut(self, context: Files) -> None:
        chat, _ = converse(suite_of(context, max_information=10), "<search> frankenstein", ANSWER)
        assert chat.asked[1]["messages"][-1]["content"] == f"<information>{FRANKENSTEIN[:10]}</information>"

    def test_settings_are_those_of_the_original_validation(self, context: Files) -> None:
        made = suite_of(context).task("nq").config
        assert (made.temperature, made.max_tokens) == (0.0, 500)


@pytest.mark.parametrize(
    ("reply", "turn"),
    [
        pytest.param(Reply("<search> a "), "<search> a </search>", id="the server stopped at the end of a search"),
        pytest.param(Reply("<search> a ", finish_reason="length"), "<search> a ", id="cut off in a search"),
        pytest.param(
            Reply("<search> a </search><information> b </information><answer> c </answer>"),
            "<search> a </search>",
            id="the server knows no stop",
        ),
        pytest.param(Reply("<answer> a </answer> b"), "<answer> a </answer>", id="talk after the answer"),
        pytest.param(
            Reply("<search> a <answer> b </answer> c"), "<search> a <answer> b </answer>", id="an open search before it"
        ),
        pytest.param(
            Reply("<answer> a </answer><search> b"),
            "<answer> a </answer><search> b</search>",
            id="a search after the answer",
        ),
        pytest.param(Reply("a"), "a", id="neither"),
    ],
)
def test_a_turn_ends_as_in_the_original(reply: Reply, turn: str) -> None:
    assert _cut(reply.output()) == turn


TAGGED = st.lists(st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", " ", "a", "\n"])).map("".join)


@given(TAGGED)
def test_actions_are_those_of_the_original_expression(text: str) -> None:
    match = re.search(r"<(search|answer)>(.*?)</\1>", text, re.DOTALL)
    assert _action(text) == ((match[1], match[2].strip()) if match else (None, ""))


@given(TAGGED)
def test_answers_are_those_of_the_original_expression(text: str) -> None:
    assert _answers_in(text) == re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)


class TestScores:
    @pytest.mark.parametrize(
        ("answer", "gold", "is_right"),
        [
            ("the  Beatles!", "Beatles", True),
            ("Beatles, The", "beatles", True),
            ("The Beatles of Liverpool", "Beatles", False),
            ("", "A+", False),
            ("the", "A+", False),
            (" a+", "A+", True),
            ("---", "---", True),
            ("...", "---", False),
        ],
    )
    def test_exact_match(self, answer: str, gold: str, is_right: bool) -> None:
        assert matches(answer, gold) is is_right

    def test_the_original_counts_answers_that_contain_a_gold_one(self, context: Files) -> None:
        reply = "<answer> It was Mary Shelley in 1818. </answer>"
        assert converse(suite_of(context), reply)[1].metrics["em"] == (0.0, 1.0)
        assert converse(suite_of(context, match="contains"), reply)[1].metrics["em"] == (1.0, 1.0)

    def test_f1_is_that_of_the_best_gold_answer(self, context: Files) -> None:
        _, score = converse(suite_of(context), "<answer> Mary Wollstonecraft </answer>")
        assert score.metrics == {"em": (0.0, 1.0), "f1": (pytest.approx(0.8), 1.0)}

    @given(*[st.lists(st.sampled_from(["ape", "bee", "cat", "the", "Bee."]), min_size=1).map(" ".join)] * 2)
    def test_f1_is_the_harmonic_mean(self, answer: str, gold: str) -> None:
        answered, expected = comparable(answer), comparable(gold)
        common = (Counter(answered.split()) & Counter(expected.split())).total()
        precision, recall = common / len(answered.split()), common / len(expected.split())
        harmonic = 2 * precision * recall / (precision + recall) if common else 0.0
        assert f1(answered, expected) == pytest.approx(harmonic)

    def test_the_last_answer_counts(self, context: Files) -> None:
        _, score = converse(suite_of(context), "<search> <answer> 1 </answer> </search>", ANSWER)
        assert score.parsed == "Mary Shelley"

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("", id="empty"),
            pytest.param("a" * 1_000_000, id="enormous"),
            pytest.param("<answer>" * 125_000, id="answers that never end"),
            pytest.param("<search>" * 125_000, id="searches that never end"),
            pytest.param("<search>" + "frankenstein " * 80_000, id="an enormous query"),
            pytest.param("<answer>" + "the " * 250_000 + "</answer>", id="an enormous answer"),
            pytest.param("</answer></search>" * 50_000, id="ends without beginnings"),
            pytest.param("<search>\ud800\x00</search>", id="a search that is no text"),
            pytest.param("<answer>\udcff\x00</answer>", id="an answer that is no text"),
            pytest.param("[" * 100_000 + "]" * 100_000, id="nested"),
        ],
    )
    def test_broken_replies_are_wrong(self, context: Files, text: str) -> None:
        suite = suite_of(context)
        score = attempt(suite, "nq", first(suite), [text] * 6)
        assert score.metrics == {"em": (0.0, 1.0), "f1": (0.0, 1.0)}

    @pytest.mark.parametrize("replies", [[None], ["<search> frankenstein", None]])
    def test_a_failed_request_is_no_answer(self, context: Files, replies: list[str | None]) -> None:
        suite = suite_of(context)
        with pytest.raises(EndpointError):
            attempt(suite, "nq", first(suite), replies)


class TestQuestions:
    @pytest.mark.parametrize(
        ("task", "records", "keys"),
        [
            pytest.param("nq", QUESTIONS, ["1", "2", "3"], id="NQ-open"),
            pytest.param(
                "nq",
                [{"id": "test_0", "question": "who", "golden_answers": ["me"]}],
                ["test_0"],
                id="FlashRAG's NQ",
            ),
            pytest.param(
                "2wiki",
                [{"id": "dev_0", "question": "Who?", "golden_answers": ["yes"], "metadata": {"type": "comparison"}}],
                ["dev_0"],
                id="FlashRAG's 2WikiMultiHopQA",
            ),
        ],
    )
    def test_gold_is_right_in_every_layout(
        self, tmp_path: Path, task: str, records: list[dict[str, Any]], keys: list[str]
    ) -> None:
        name = "wiki" if task == "2wiki" else task
        documents = lines(tmp_path / "documents.jsonl", DOCUMENTS)
        suite = suite_of({name: lines(tmp_path / "data.jsonl", records), "documents": documents})
        items = list(suite.items(task))
        assert [item.key for item in items] == keys
        for item in items:
            assert attempt(suite, task, item, gold_of(suite, task, item)).metrics == {
                "em": (1.0, 1.0),
                "f1": (1.0, 1.0),
            }

    def test_the_original_file_of_2wiki(self, tmp_path: Path) -> None:
        path = tmp_path / "dev.json"
        records = [
            {
                "_id": key,
                "type": "compositional",
                "question": f"Who is {key}?",
                "context": [["T", ["S."]]],
                "answer": key,
            }
            for key in ("8813f87c0bdd11eba7f7acde48001122", "228546780bdd11eba7f7acde48001122")
        ]
        path.write_text(json.dumps(records, indent=1), encoding="utf-8")
        suite = suite_of({"wiki": path, "documents": lines(tmp_path / "documents.jsonl", DOCUMENTS)})
        items = list(suite.items("2wiki"))
        assert [item.key for item in items] == [record["_id"] for record in records]
        assert main_metric(suite, "2wiki", items[0], gold_of(suite, "2wiki", items[0])) == 1.0
        assert main_metric(suite, "2wiki", items[0], gold_of(suite, "2wiki", items[1])) == 0.0

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b"", "holds no record"),
            (b"{", "line 1: is not JSON"),
            (b'{"question": "caf\xe9?", "answer": "x"}', "is not UTF-8"),
            (b'{"answer": "x"}', "line 1: lacks question"),
            (b'{"question": "x"}', "record 1: needs golden_answers or answer"),
            (b'{"question": "x", "answer": []}', "record 1: needs golden_answers or answer"),
            (b'{"question": "x", "answer": ["y", 3]}', "record 1: needs golden_answers or answer"),
            (b'{"question": "x", "answer": " "}', "record 1: needs golden_answers or answer"),
            (b'{"question": " ", "answer": "x"}', "record 1: question is empty"),
            (b'{"id": 1, "question": "x", "answer": "y"}\n' * 2, "ids occur more than once: '1'"),
        ],
    )
    def test_bad_files_are_refused(self, tmp_path: Path, content: bytes, problem: str) -> None:
        path = tmp_path / "nq.jsonl"
        path.write_bytes(content)
        suite = suite_of({"nq": path, "documents": lines(tmp_path / "documents.jsonl", DOCUMENTS)})
        with pytest.raises(EvaluationError, match=re.escape(problem)) as caught:
            list(suite.items("nq"))
        assert str(path) in str(caught.value)


class TestCheck:
    def test_all_is_there(self, context: Files) -> None:
        suite = suite_of(context)
        suite.check(["nq"])

    def test_what_is_missing_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(EvaluationError, match="--data documents=FILE"):
            suite_of({}).check(["nq"])
        documents = lines(tmp_path / "documents.jsonl", DOCUMENTS)
        with pytest.raises(EvaluationError, match=r"absent\.jsonl: No such file"):
            suite_of({"nq": tmp_path / "absent.jsonl", "documents": documents}).check(["nq"])

    @pytest.mark.parametrize("engine", ["google", "ftp://host/retrieve", ""])
    def test_unknown_engines_are_refused(self, engine: str) -> None:
        with pytest.raises(EvaluationError, match="ramerge/search: engine"):
            suite_of({}, engine=engine).check(["nq"])


class TestDocuments:
    def test_layouts(self, tmp_path: Path) -> None:
        records = [
            {"id": "0", "contents": '"A title"\nText,\nmore.'},
            {"contents": "One line only"},
            {"title": "Title", "text": "Text."},
            {"text": "Text."},
        ]
        assert read_documents(lines(tmp_path / "documents.jsonl", records)) == [
            RetrievedDocument("A title", "Text,\nmore."),
            RetrievedDocument("", "One line only"),
            RetrievedDocument("Title", "Text."),
            RetrievedDocument("", "Text."),
        ]

    def test_other_layouts_are_refused(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "documents.jsonl", [{"text": "x"}, {"body": "x"}, {"title": 1, "text": "x"}])
        with pytest.raises(EvaluationError) as caught:
            open_retriever("bm25", path)
        assert [problem.split(": ")[0] for problem in caught.value.problems] == [
            f"{path}, record 2",
            f"{path}, record 3",
        ]

    def test_an_absent_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(EvaluationError, match="absent"):
            open_retriever("bm25", tmp_path / "absent")

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            ("[" * 900 + "]" * 900, "line 1: is nested more than 100 deep"),
            ("9" * 5000, "line 1: holds a number of more than 4,300 digits"),
            ('"\\ud800"', "line 1: holds half of a surrogate pair"),
        ],
    )
    def test_odd_documents_are_refused_by_line(self, tmp_path: Path, value: str, problem: str) -> None:
        path = tmp_path / "documents.jsonl"
        path.write_text(f'{{"contents": "x", "more": {value}}}\n')
        with pytest.raises(EvaluationError, match=problem):
            read_documents(path)

    def test_an_index_is_made_again_only_for_other_documents(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "documents.jsonl", DOCUMENTS)
        index = open_retriever("bm25", path)
        assert open_retriever("bm25", path) is index
        lines(path, DOCUMENTS[:1])
        os.utime(path, ns=(1, 1))
        assert open_retriever("bm25", path) is not index


class TestBM25:
    def test_the_best_comes_first(self) -> None:
        index = BM25(
            [
                RetrievedDocument("Moon", "a moon"),
                RetrievedDocument("Sun", "a sun and a moon"),
                RetrievedDocument("", "nothing"),
            ]
        )
        assert [each.title for each in asyncio.run(index.search("the Moon?", 5))] == ["Moon", "Sun"]
        assert [each.title for each in asyncio.run(index.search("the Moon?", 1))] == ["Moon"]

    def test_documents_may_hold_no_words(self) -> None:
        assert asyncio.run(BM25([RetrievedDocument("", "!"), RetrievedDocument("", "the")]).search("moon", 2)) == []

    def test_searches_may_run_at_the_same_time(self) -> None:
        index = BM25([RetrievedDocument(f"word{number}", "text") for number in range(200)])

        async def all_at_once() -> list[Sequence[RetrievedDocument]]:
            return await asyncio.gather(*(index.search(f"word{number}", 3) for number in range(200)))

        found = asyncio.run(all_at_once())
        assert [documents[0].title for documents in found] == [f"word{number}" for number in range(200)]


class Server(HTTPServer):
    """Answers every request with `status` and `body`, and keeps what it was sent.

    `failures` more are answered with the status, and then all with 200.
    """

    status = 200
    failures: int | None = None
    body = b""
    packing = ""
    received: list[Any]


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        server: Server

        def do_POST(self) -> None:
            self.server.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if self.server.failures is not None:
                self.server.failures -= 1
            recovered = self.server.failures is not None and self.server.failures < 0
            self.send_response(200 if recovered else self.server.status)
            self.send_header("Content-Length", str(len(self.server.body)))
            self.end_headers()
            with suppress(ConnectionError):  # who asked may have heard enough
                self.wfile.write(self.server.body)

        def log_message(self, *_: Any) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as found:
        found.received = []
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}/retrieve"


def search_once(url: str, query: str, k: int) -> Sequence[RetrievedDocument]:
    return asyncio.run(RetrievalServer(url).search(query, k))


class TestRetriever:
    def test_speaks_the_format_of_search_r1(self, server: Server) -> None:
        server.body = json.dumps({"result": [[{"document": each, "score": 1.5} for each in DOCUMENTS]]}).encode()
        assert [each.title for each in search_once(address(server), "moon", 2)] == ["Frankenstein", "Apollo 11"]
        assert server.received == [{"queries": ["moon"], "topk": 2, "return_scores": True}]

    def test_serves_a_suite(self, context: Files, server: Server) -> None:
        server.body = json.dumps({"result": [[{"document": DOCUMENTS[0]}]]}).encode()
        suite = suite_of({"nq": context["nq"]}, engine=address(server))
        suite.check(["nq"])
        chat, score = converse(suite, "<search> who", ANSWER)
        assert chat.asked[1]["messages"][-1]["content"] == f"<information>{FRANKENSTEIN}</information>"
        assert score.metrics["em"] == (1.0, 1.0)

    @pytest.mark.parametrize(
        ("status", "body", "problem"),
        [
            (404, b"", "status 404"),
            (200, b"<html>", "something else than Search-R1's format"),
            (200, b"[]", "something else"),
            (200, b'{"result": []}', "something else"),
            (200, b'{"result": [[{"contents": "x"}]]}', "something else"),
            (200, b'{"result": [[{"document": {"body": "x"}}]]}', "something else"),
            (200, b'{"result": [[{"document": "x"}]]}', "something else"),
            (200, b"\xff\xfe\x00", "something else"),
            (200, b"[" * 100_000, "something else"),
            (200, b'{"result": ' + b"[" * 500 + b"]" * 500 + b"}", "something else"),
        ],
    )
    def test_what_is_no_answer_fails_the_sample(self, server: Server, status: int, body: bytes, problem: str) -> None:
        server.status, server.body = status, body
        with pytest.raises(EndpointError, match=problem):
            search_once(address(server), "x", 5)
        assert len(server.received) == 1
        with pytest.raises(EvaluationError, match=problem):
            RetrievalServer(address(server)).check()

    def test_a_server_that_fails_is_asked_again(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ramerge_eval.tasks.retrievers._FIRST_WAIT", 0.001)
        server.status, server.failures = 503, 3
        server.body = json.dumps({"result": [[{"document": DOCUMENTS[0]}]]}).encode()
        assert len(search_once(address(server), "x", 5)) == 1
        assert len(server.received) == 4
        server.failures = 4
        with pytest.raises(EndpointError, match="status 503"):
            search_once(address(server), "x", 5)
        assert len(server.received) == 8
        server.failures = 1
        with pytest.raises(EvaluationError, match="status 503"):
            RetrievalServer(address(server)).check()
        assert len(server.received) == 9

    @pytest.mark.parametrize("place", ["me:secret@127.0.0.1:8000", "me@127.0.0.1:8000"])
    def test_an_address_with_a_password_is_refused_and_not_shown(self, context: Files, place: str) -> None:
        with pytest.raises(EvaluationError, match="user or password") as caught:
            suite_of(context, engine=f"http://{place}/retrieve").check(["nq"])
        assert place not in str(caught.value)

    def test_an_at_sign_elsewhere_is_no_password(self, context: Files, server: Server) -> None:
        server.body = json.dumps({"result": [[]]}).encode()
        suite_of(context, engine=f"{address(server)}?for=me@host").check(["nq"])

    def test_an_absent_server_fails_the_check_and_samples(
        self, context: Files, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ramerge_eval.tasks.retrievers._FIRST_WAIT", 0.001)
        server.body = json.dumps({"result": [[]]}).encode()
        suite = suite_of(context, engine=address(server))
        suite.task("nq")
        server.shutdown()
        server.server_close()
        with pytest.raises(EvaluationError, match="the search failed"):
            suite.check(["nq"])
        with pytest.raises(EndpointError, match="the search failed"):
            converse(suite, "<search> who")

    def test_an_impossible_address_is_refused(self) -> None:
        with pytest.raises(EvaluationError, match="the search failed"):
            RetrievalServer("http://[").check()


def real_file(name: str) -> Path:
    if "RAMERGE_EVAL_DATA" not in os.environ:
        pytest.skip("RAMERGE_EVAL_DATA names no folder with evaluation data")
    return Path(os.environ["RAMERGE_EVAL_DATA"]) / name


class TestRealData:
    def test_gold_is_right_and_the_answer_of_the_next_question_wrong(self, tmp_path: Path) -> None:
        suite = suite_of({"nq": real_file("nq_open_dev.jsonl"), "documents": lines(tmp_path / "d", DOCUMENTS)})
        items = list(suite.items("nq"))
        assert len({item.key for item in items}) == 3610
        own = [main_metric(suite, "nq", item, gold_of(suite, "nq", item)) for item in items]
        other = [
            main_metric(suite, "nq", item, gold_of(suite, "nq", following))
            for item, following in zip(items, items[1:] + items[:1], strict=True)
        ]
        assert set(own) == {1.0}
        assert sum(other) <= 1

    def test_bm25_finds_the_paragraphs_of_hotpotqa(self, tmp_path: Path) -> None:
        questions = json.loads(real_file("hotpot_dev_distractor_part.json").read_text(encoding="utf-8"))
        paragraphs = {
            title: "".join(sentences)
            for each in questions
            for title, sentences in zip(each["context"]["title"], each["context"]["sentences"], strict=True)
        }
        records = [{"title": title, "text": text} for title, text in paragraphs.items()]
        index = open_retriever("bm25", lines(tmp_path / "documents.jsonl", records))

        async def is_found(question: dict[str, Any]) -> bool:
            found = {document.title for document in await index.search(question["question"], 5)}
            return not found.isdisjoint(question["supporting_facts"]["title"])

        async def share() -> int:
            return sum([await is_found(question) for question in questions])

        assert asyncio.run(share()) >= 90
