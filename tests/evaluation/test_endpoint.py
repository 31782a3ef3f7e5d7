"""One request, and all that servers may answer."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from typing import Any

import pytest

pytest.importorskip("openai", reason="needs the extra eval")

from ramerge.evaluation import endpoint as module
from ramerge.evaluation.endpoint import Endpoint, EndpointAccess, GoneError, read, request
from ramerge.evaluation.suite import Reply
from ramerge.foundation.errors import EndpointError, EvaluationError
from tests.evaluation.server import Answer, Body, Server, completion, refusal, serving

BODY = request("stand-in", [{"role": "user", "content": "hello"}], temperature=0.5, top_p=0.9, max_tokens=5, seed=1)


def ask(server: Server, **options: Any) -> Reply:
    async def run() -> Reply:
        async with Endpoint(EndpointAccess(server.url, **{"retries": 0, **options})) as endpoint:
            return await endpoint.complete(BODY)

    return asyncio.run(run())


def check(server: Server, model: str = "stand-in", **options: Any) -> None:
    async def run() -> None:
        async with Endpoint(EndpointAccess(server.url, retries=0, **options)) as endpoint:
            await endpoint.check(model)

    asyncio.run(run())


def test_a_reply_has_text_tokens_and_reason() -> None:
    with serving("four") as server:
        reply = ask(server)
    assert (reply.text, reply.finish_reason, reply.prompt_tokens, reply.completion_tokens) == ("four", "stop", 7, 3)
    sent = {"model": "stand-in", "temperature": 0.5, "top_p": 0.9, "max_tokens": 5, "seed": 1}
    assert server.asked == [{**sent, "messages": [{"role": "user", "content": "hello"}]}]


def test_native_calls_are_read_also_where_arguments_are_an_object() -> None:
    calls = [{"function": {"name": "f", "arguments": '{"x": 1}'}}, {"function": {"name": "g", "arguments": {"y": 2}}}]
    with serving(lambda _: completion(None, message={"tool_calls": calls})) as server:
        reply = ask(server)
    assert reply.text == ""
    assert reply.tool_calls == (("f", '{"x": 1}'), ("g", '{"y": 2}'))


def test_keys_that_say_nothing_are_not_sent_and_extra_keys_win() -> None:
    body = request("m", [], temperature=0, top_p=1, max_tokens=5, extra_body={"max_tokens": None, "top_k": 40})
    assert body == {"model": "m", "messages": [], "temperature": 0, "top_p": 1, "top_k": 40}


def test_lone_surrogates_become_something_that_can_be_written() -> None:
    with serving(lambda _: Answer(body=completion("x").body.replace(b'"x"', b'"a\\ud800b"'))) as server:
        assert ask(server).text == "a?b"


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{}]}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {"content": 3}}]}',
        b'{"choices": [{"message": {"content": "x", "tool_calls": [{}]}}]}',
        b'{"error": "overloaded"}',
        b"<html>busy</html>",
        b"",
        b'{"choices": [{"message": {"cont',
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
def test_rubbish_is_an_error_that_shows_it(body: bytes) -> None:
    with (
        serving(lambda _: Answer(body=body)) as server,
        pytest.raises(EndpointError, match=r"answered with (something|a text) that is"),
    ):
        ask(server)


def test_rubbish_of_another_content_type_is_an_error() -> None:
    page = Answer(body=b"<html>sign in</html>", content_type="text/html")
    with serving(lambda _: page) as server, pytest.raises(EndpointError, match="sign in"):
        ask(server)


def test_enormous_answers_are_an_error() -> None:
    with serving("x" * 5_000_000) as server, pytest.raises(EndpointError, match="5,000,000 characters"):
        ask(server)


SMALL = 1_000_000
ZEROS = gzip.compress(bytes(100 * SMALL))
PACKED = {"Content-Encoding": "gzip"}
HEAVY = {
    "gzip that unpacks to a hundred times as much": Answer(body=ZEROS, headers=PACKED),
    "an error of gzip": Answer(400, ZEROS, headers=PACKED),
    "gzip in gzip": Answer(body=gzip.compress(ZEROS), headers={"Content-Encoding": "gzip, gzip"}),
    "deflate": Answer(body=zlib.compress(bytes(100 * SMALL)), headers={"Content-Encoding": "deflate"}),
    "a codec of Python that unpacks": Answer(
        body=zlib.compress(bytes(100 * SMALL)), content_type="text/plain; charset=zip"
    ),
    "no gzip": Answer(body=b"{}", headers=PACKED),
    "no end": Answer(body=b" " * 65536, endless=True),
    "an error without end": Answer(400, b" " * 65536, endless=True),
    "gzip of nothing without end": Answer(body=gzip.compress(b"") * 999, headers=PACKED, endless=True),
    "many values": Answer(body=b"[" + b"[]," * SMALL + b"0]"),
    "many strings": Answer(body=b"[" + b'"",' * (SMALL + 1) + b"0]"),
    "deep values": Answer(body=b"[" * 500 + b"]" * 500),
    "deep parts": Answer(
        body=b'{"choices": [{"message": {"content": [{"type": "text", "text": %s}]}}]}' % (b"[" * 900 + b"]" * 900)
    ),
    "a number of many digits": Answer(body=b'{"choices": %s}' % (b"9" * 5000)),
    "too many bytes": Answer(body=completion("x" * 5 * SMALL).body),
}


@pytest.mark.parametrize("answer", HEAVY.values(), ids=HEAVY)
@pytest.mark.parametrize("where", ["an answer", "the list of models"])
def test_what_is_heavy_is_refused_before_it_takes_memory(answer: Answer, where: str) -> None:
    with serving(lambda _: answer) as server:
        server.models = answer
        tracemalloc.start()
        try:
            if where == "an answer":
                with pytest.raises(EndpointError) as caught:
                    ask(server, retries=2, most_bytes=5 * SMALL)
                assert not isinstance(caught.value, GoneError)
                assert len(str(caught.value)) < 500
                assert len(server.asked) == 1
            else:
                check(server, most_bytes=5 * SMALL)
            assert tracemalloc.get_traced_memory()[1] < 40 * SMALL
        finally:
            tracemalloc.stop()


def test_an_answer_that_is_packed_is_read() -> None:
    body = gzip.compress(completion("four").body)
    with serving(lambda _: Answer(body=body, headers=PACKED)) as server:
        assert ask(server).text == "four"
    assert "accept-encoding: gzip\r" in server.headers[0].lower()


def test_answers_have_the_bytes_that_are_asked_for() -> None:
    with serving("x" * 100_000) as server:
        assert len(ask(server, most_bytes=101_000).text) == 100_000
        with pytest.raises(EndpointError, match="more than 99,000 bytes"):
            ask(server, most_bytes=99_000)


def test_answers_that_are_cut_off_are_tried_again() -> None:
    answers = iter([Answer(body=completion("four").body, cut=True), Answer(silent=True), completion("four")])
    with serving(lambda _: next(answers)) as server:
        assert ask(server, retries=2).text == "four"
    assert len(server.asked) == 3


def test_an_answer_that_is_always_cut_off_is_a_failed_request() -> None:
    cut = Answer(body=completion("four").body, cut=True)
    with serving(lambda _: cut) as server, pytest.raises(EndpointError, match="no answer") as caught:
        ask(server)
    assert not isinstance(caught.value, GoneError)


def test_busy_servers_are_asked_again() -> None:
    answers = iter([refusal(429, "slow down"), refusal(503, "busy"), completion("four")])
    with serving(lambda _: next(answers)) as server:
        assert ask(server, retries=2).text == "four"


def test_what_a_server_says_is_wrong_is_passed_on() -> None:
    long = refusal(400, "this model's maximum context length is 4096 tokens")
    with serving(lambda _: long) as server, pytest.raises(EndpointError, match="400: this model's maximum context"):
        ask(server)


def test_a_slow_answer_is_a_failed_request_while_the_server_is_there() -> None:
    slow = completion("late")
    slow.seconds = 5
    with serving(lambda _: slow) as server, pytest.raises(EndpointError, match="no answer") as caught:
        ask(server, timeout=0.3)
    assert not isinstance(caught.value, GoneError)


def test_an_answer_that_never_ends_is_a_failed_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", 0.0)
    drip = Answer(body=completion("four").body, drip=0.1)
    with serving(lambda _: drip) as server, pytest.raises(EndpointError, match="within 1 seconds"):
        ask(server, timeout=0.5, retries=1)


def test_no_proxy_leads_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving("four") as server:
        assert ask(server).text == "four"


def test_a_key_that_is_said_back_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMERGE_API_KEY", "very-secret")
    answer = refusal(400, "bad header Bearer very-secret")
    with serving(lambda _: answer) as server, pytest.raises(EndpointError, match=r"Bearer \.\.\.$"):
        ask(server)


def test_a_key_that_cannot_be_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMERGE_API_KEY", "two\nlines")
    with serving("x") as server, pytest.raises(EvaluationError, match="RAMERGE_API_KEY"):
        ask(server)


@pytest.mark.parametrize("usage", ["many", [1], None, 3])
def test_usage_of_another_form_is_no_failure(usage: Any) -> None:
    assert read(json.loads(completion("x").body) | {"usage": usage}, 0.0).text == "x"


def test_what_a_terminal_would_obey_is_not_passed_on() -> None:
    escape = refusal(400, "\x1b]0;gone\x07 bad")
    with serving(lambda _: escape) as server, pytest.raises(EndpointError) as caught:
        ask(server)
    assert str(caught.value) == "answered 400: ?]0;gone? bad"


@pytest.mark.parametrize("tokens", [10**120, -1, 1.5, "7", True, None])
def test_absurd_counts_of_tokens_are_none(tokens: Any) -> None:
    answer = json.loads(completion("x").body) | {"usage": {"prompt_tokens": tokens}}
    assert read(answer, 0.0).prompt_tokens == 0


def test_an_endpoint_that_is_gone_stops_everything() -> None:
    def close(_: Body) -> Answer:
        server.open = False
        return Answer(silent=True)

    with serving(close) as server, pytest.raises(GoneError, match="does not answer any more"):
        ask(server)


def test_nobody_there() -> None:
    with serving("x") as server:
        pass
    with pytest.raises(GoneError, match="cannot be reached"):
        check(server)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_names_the_variable(status: int) -> None:
    with serving(lambda _: refusal(status, "bad key")) as server, pytest.raises(GoneError, match="RAMERGE_API_KEY"):
        ask(server)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMERGE_API_KEY", "secret-1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-2")
    with serving("x") as server:
        ask(server)
    assert "Bearer secret-1" in server.headers[0]
    assert "secret-2" not in server.headers[0]


def test_another_variable_that_is_not_set_is_refused() -> None:
    with serving("x") as server, pytest.raises(EvaluationError, match="NO_SUCH_KEY"):
        ask(server, key_variable="NO_SUCH_KEY")


def test_a_model_that_is_not_served_is_refused_with_those_that_are() -> None:
    with (
        serving("x", models=["left", "right"]) as server,
        pytest.raises(GoneError, match="'up'; it serves left, right"),
    ):
        check(server, "up")


@pytest.mark.parametrize("models", [None, []])
def test_a_server_without_a_list_of_models_is_taken_at_its_word(models: list[str] | None) -> None:
    with serving("x", models=models) as server:
        check(server, "anything")


def test_an_unknown_model_stops_everything() -> None:
    with serving(lambda _: refusal(404, "no model stand-in")) as server, pytest.raises(GoneError, match="no model"):
        ask(server)


def test_no_more_requests_at_once_than_asked_for() -> None:
    under_way = most = 0

    def answer(_: Body) -> Answer:
        return completion("x")

    async def run(server: Server) -> None:
        nonlocal under_way, most
        async with Endpoint(EndpointAccess(server.url, concurrency=3)) as endpoint:
            plain = endpoint._post

            async def counted(body: Any) -> object:
                nonlocal under_way, most
                under_way += 1
                most = max(most, under_way)
                try:
                    return await plain(body)
                finally:
                    under_way -= 1

            endpoint._post = counted  # type: ignore[method-assign]
            await asyncio.gather(*[endpoint.complete(BODY) for _ in range(20)])

    with serving(answer) as server:
        asyncio.run(run(server))
    assert most == 3


def test_parts_of_content_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert read(json.loads(completion(None, message={"content": parts}).body), 0.0).text == "ab"
