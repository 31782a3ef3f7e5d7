"""Text that strangers wrote: on the terminal, in the card, in tables and in JSON."""

import csv
import io
import json
import sys
from pathlib import Path

import pytest

import ramerge
from ramerge.analysis.tables import csv_files
from ramerge.cli.progress import shown
from ramerge.core.foundation.errors import CheckpointError, RamergeError
from ramerge.core.foundation.files import write_files
from ramerge.core.foundation.jsontext import JsonLimits, dumped, parse
from ramerge.core.foundation.progress import Progress
from ramerge.core.foundation.text import (
    MOST,
    brief,
    csv_cell,
    decimals,
    enumerated,
    markdown,
    message,
    one_line,
    quantity,
    quoted,
    unknown,
    without_secrets,
)
from ramerge.core.tensors.header import read_header
from tests.checkpoints import recipe, simple, write_checkpoint, write_simple
from tests.cli.test_cli import ramerge as command
from tests.messages import Messages

LIMITS = JsonLimits(10_000, 1000)
CLEAR = "\x1b[2J\x1b[Hready to merge"


def test_numbers_and_lists_in_sentences() -> None:
    assert [decimals(value, 2) for value in (-0.004, -0.006, 0.0, 1.005, 2.0)] == [
        "0.00",
        "-0.01",
        "0.00",
        "1.00",
        "2.00",
    ]
    assert [enumerated(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert [quantity(count, "tensor") for count in (0, 1, 1000)] == ["0 tensors", "1 tensor", "1,000 tensors"]
    assert [quantity(count, "matrix is", "matrices are") for count in (1, 2)] == ["1 matrix is", "2 matrices are"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Größe 漢字 עברית 😀", "Größe 漢字 עברית 😀"),
        (CLEAR, "\\x1b[2J\\x1b[Hready to merge"),
        ("\x9b2J\x07\x7f\b", "\\x9b2J\\x07\\x7f\\x08"),
        ("\u202egnp.exe\u2066\u200f", "\\u202egnp.exe\\u2066\\u200f"),
        ("a\u200bb\u00adc\ufeff\u2060", "a\\u200bb\\xadc\\ufeff\\u2060"),
        ("\u3164\u115f\ufe0f\u034f\U000e0100", "\\u3164\\u115f\\ufe0f\\u034f\\U000e0100"),
        ("a\nerror: b\r\u2028\u0085", "a\\nerror: b\\r\\u2028\\x85"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_is_obeyed_or_invisible_is_escaped(text: str, shown: str) -> None:
    assert one_line(text) == shown
    assert one_line(shown) == shown
    assert quoted(text).isprintable()


def test_messages_are_brief_and_only_ours_begin_lines() -> None:
    assert message("x: wrong\n    5 | a: [\nerror: forged") == "x: wrong\n    5 | a: [\\nerror: forged"
    assert len(brief("x" * 10**7)) < MOST + 100
    error = RamergeError(f"{CLEAR} {number} {'x' * 3000}" for number in range(1500))
    assert len(error.problems) == 1001 and error.problems[-1] == "and 500 more"
    assert len(str(error)) < 1001 * (MOST + 100) and "\x1b" not in str(error)


def test_the_terminal_gets_nothing_to_obey(tmp_path: Path) -> None:
    names = write_simple(tmp_path, {"code": 0.1})
    write_checkpoint(tmp_path / "base", simple(0), config={"model_type": "a", "hidden_act": "silu"})
    config = {"model_type": "a", "hidden_act": f"b{CLEAR}", f"{CLEAR}\nnote: fine": 1}
    write_checkpoint(tmp_path / "code", simple(1, moved=0.1), config=config)
    (tmp_path / f"base/{CLEAR}\nready to merge").write_text("x")
    agents = ["--base", tmp_path / "base", "--agent", f"code={tmp_path / names[0]}"]
    found = command("plan", *agents)
    assert found.returncode == 2
    assert "\\x1b[2J" in found.stdout
    assert "\\u001b[2J" in found.stderr
    for stream in (found.stdout, found.stderr):
        assert all(line.isprintable() for line in stream.splitlines())
        assert "ready to merge" not in stream.splitlines() and "note: fine" not in stream.splitlines()
    values = json.loads(command("plan", *agents, "--json").stdout)
    assert f"{CLEAR}\nready to merge" in values["companions"]


def test_an_architecture_of_any_name_in_an_error(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", simple(0), config={"model_type": "a"})
    write_checkpoint(tmp_path / "code", simple(1), config={"model_type": f"b{CLEAR}\nready to merge"})
    found = command("plan", "--base", tmp_path / "base", "--agent", f"code={tmp_path / 'code'}")
    assert found.returncode == 2 and "\\x1b[2J" in found.stderr
    assert all(line.isprintable() and line != "ready to merge" for line in found.stderr.splitlines())


def test_a_quantization_of_any_name_in_an_error(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", simple(0))
    declared = {"quantization_config": {"quant_method": f"{CLEAR}\nready to merge"}}
    write_checkpoint(tmp_path / "code", simple(1, moved=0.1), config=declared)
    found = command("plan", "--base", tmp_path / "base", "--agent", f"code={tmp_path / 'code'}")
    assert found.returncode == 2 and "\\x1b[2J" in found.stderr
    assert all(line.isprintable() and line != "ready to merge" for line in found.stderr.splitlines())


def test_a_shard_of_any_name_in_an_error(tmp_path: Path) -> None:
    place = write_checkpoint(tmp_path / "m", simple(0), shards=2)
    index = place / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    values["weight_map"]["x"] = f"{CLEAR}\nerror: all is well.safetensors"
    index.write_text(json.dumps(values))
    found = command("plan", "--base", place, "--agent", f"a={place}")
    assert "\x1b" not in found.stderr
    assert not any(line.startswith("error: all is well") for line in found.stderr.splitlines())


def test_names_that_are_no_unicode(tmp_path: Path, messages: Messages) -> None:
    place = write_checkpoint(tmp_path / "m", simple(0), shards=2)
    (place / "config.json").write_text('{"model_type": "a\\ud800"}')
    index = place / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("layers.0", "layers.\\udc00"))
    found = command("plan", "--base", place, "--agent", f"a={place}")
    assert found.returncode == 2
    messages.check(found.stderr)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_show_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with shown(quiet=False) as listen:
        listen(Progress("[red]x[/red]", 1, 2))
    assert "[red]x[/red]" in screen.getvalue()


def test_the_card_shows_names_as_they_are(tmp_path: Path) -> None:
    name = "<img src=x>`[a](javascript:b)|*"
    write_simple(tmp_path, {"code": 0.1})
    source = recipe(tmp_path, ["code"])
    ramerge.merge(source | {"agents": {name: str(tmp_path / "code")}}, tmp_path / 'out"\n# forged <b>')
    text = (tmp_path / 'out"\n# forged <b>' / "README.md").read_text()
    assert f"| {markdown(name)} |" in text
    assert "<img" not in text.replace("\\<img", "") and "\n# forged" not in text
    assert '("out\\"\\n# forged <b>")' in text


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_cells_are_no_formulas(name: str) -> None:
    assert csv_cell(name) == f"'{one_line(name)}"
    assert csv_cell("a=1") == "a=1"
    assert csv_cell(-1.5) == -1.5


@pytest.mark.full
def test_tables_hold_no_formulas(tmp_path: Path) -> None:
    tensors = simple(0)
    names = dict(zip(tensors, ("=cmd|' /C calc'!A0", "b", "c"), strict=True))
    for folder, moved in (("base", 0.0), ("@code", 0.1)):
        write_checkpoint(tmp_path / folder, {names[key]: one for key, one in simple(0, moved=moved).items()})
    write_files(csv_files(ramerge.analyze(recipe(tmp_path, ["@code"])).tables(), tmp_path / "csv"))
    for path in (tmp_path / "csv").iterdir():
        cells = [cell for row in csv.reader(path.read_text().splitlines()) for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "@"))]
    assert "'=cmd" in (tmp_path / "csv/agents.csv").read_text()


def test_json_is_exact_and_has_nothing_to_obey() -> None:
    names = {"Größe 漢字": "\x9b2J\u202e\udcff\x7f\u2028😀\ue000\U000e0001"}
    text = dumped(names)
    assert json.loads(text) == names
    assert "Größe 漢字" in text and "😀" in text
    assert all(line.isprintable() for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b" " * 10_001, "more than the 10,000"),
        (b"[" + b"1," * 1000 + b"1]", "too many values"),
        (b'[""' + b',""' * 2500 + b"]", "too many values"),
        (b"[" * 65 + b"]" * 65, "nested more than 64"),
        (b"1" * 101, "more than 100 digits"),
        (b'{"a": 1.' + b"1" * 5000 + b"}", "more than 100 digits"),
        (b'{"' + b"x" * 1025 + b'": 1}', "key of more than 1,024"),
        (b'{"' + b'\\"' * 1025 + b'": 1}', "key of more than 1,024"),
        (b'"\\ud800"', "surrogate"),
        (b'"\\ude00\\ud83d"', "surrogate"),
        (b'"\\\\\\ud83d"', "surrogate"),
        (b'"\xed\xa0\x80"', "is not UTF-8"),
        (b'{"a": }', "is not JSON .Expecting value, column 7.$"),
        (b'{\n"a": }', "is not JSON .Expecting value, line 2, column 6.$"),
        (b"[NaN]", "not a finite number"),
        (b"[1e999]", "not a finite number"),
    ],
)
def test_json_is_bounded_before_it_is_parsed(text: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(text, LIMITS, constants=False)


@pytest.mark.parametrize(
    "text", [b'"\\ud83d\\ude00"', b'"\\\\ud800"', b'"[[[,,,:::"', b'{"a\\"[": "\\\\"}', b"-0", b"[NaN, 1e999]"]
)
def test_what_is_good_json_is_taken(text: bytes) -> None:
    assert str(parse(text, LIMITS)) == str(json.loads(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'"\\ud800x"', "?x"),
        (b'["\\ude00\\ud83d", "\\ud83d\\ude00"]', ["??", "\U0001f600"]),
        (b'{"\\\\ud800\\\\\\ud83d\\n": "\\ud83d\\ud83d\\ude00"}', {"\\ud800\\?\n": "?\U0001f600"}),
    ],
)
def test_halves_of_surrogate_pairs_become_question_marks(text: bytes, value: object) -> None:
    assert parse(text, LIMITS, halves="replace") == value


def test_an_error_of_a_header_is_short(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m", {}) / "model.safetensors"
    text = json.dumps({f"{CLEAR}{place}": {"dtype": "x" * 3000} for place in range(2000)}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(CheckpointError) as raised:
        read_header(path)
    assert len(str(raised.value)) < 100_000 and "\x1b" not in str(raised.value)


@pytest.mark.parametrize("name", ["ramplus", "ram_plus", "RAM-Plus", "ramp", "rampp"])
def test_a_plus_in_words_is_a_plus(name: str) -> None:
    assert unknown("method", name, ["ram", "ram+", "ram+s"]).endswith("did you mean 'ram+'?")


@pytest.mark.parametrize(
    "address",
    [
        "s3://b/k?tok=SEKRET",
        "http://127.0.0.1:9/a b?SEKRET",
        "https://h/a b?x c?SEKRET",
        "s3:/b/k?SEKRET",
        "HTTPS:/h/k?SEKRET",
        "https//h/k?SEKRET",
        "http:/me:SEKRET@h/k",
        "http://me:SE@KRET@h/k",
        "http://me:SE?KRET@h/k",
        "https://h/k#SEKRET",
        "https://h?a@SEKRET",
    ],
)
def test_secrets_of_an_address_are_not_shown(address: str) -> None:
    for text in (address, f"--agent x={address}: no such model", quoted(address), message(f"x: {address!r}; why")):
        bare = without_secrets(text)
        assert "KRET" not in bare
        assert "SE" not in bare


@pytest.mark.parametrize("address", ["s3://b/k?tok=SEKRET", "s3://me:SEKRET@b/k", "s3:/b/k?SEKRET"])
def test_a_plan_shows_no_secrets_of_an_address(address: str) -> None:
    plan = ramerge.plan({"base": address, "agents": {"x": address}}).to_dict()
    assert "SEKRET" not in json.dumps(plan)


@pytest.mark.parametrize("text", ["what? no", "a?b#c", "https://h/k: is it gone? see b", "me@h", "https://h/o/m@main"])
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert without_secrets(text) == text
