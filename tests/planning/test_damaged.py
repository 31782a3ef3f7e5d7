"""Files next to the weights that hold no JSON: the output gets them, and nothing of them is compared."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.foundation.jsontext import JsonLimits, damage
from tests.checkpoints import floats, recipe, write_checkpoint
from tests.messages import Messages

DAMAGES = {
    b"": "is empty",
    b" \n": "is empty",
    bytes(3000): "holds zeros only",
    b"{": "is not JSON",
    b"null": "is not a JSON object",
    b"[]": "is not a JSON object",
    '{"a": "\u00e9"}'.encode("utf-16"): "is not UTF-8, but UTF-16",
    b'{"a": "\xe9"}': "is not UTF-8",
    b"\xef\xbb\xbf{}": "begins with a byte order mark",
    b"[" * 100_000 + b"]" * 100_000: "is nested more than 64 deep",
}


def models(folder: Path) -> dict:
    """A recipe of a base and two agents that have the same tokens, templates and end tokens."""
    for name, seed in (("base", 0), ("a", 1), ("b", 2)):
        weights = np.random.default_rng(seed).normal(0, 0.02, (8, 4))
        write_checkpoint(
            folder / name, {"model.embed_tokens.weight": floats(weights, "BF16")}, config={"vocab_size": 8}
        )
        vocabulary = {f"t{number}": number for number in range(8)}
        (folder / name / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
        (folder / name / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ a }}"}))
        (folder / name / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    return recipe(folder, ["a", "b"], "linear")


@pytest.mark.parametrize("content", DAMAGES, ids=list(map(str, range(len(DAMAGES)))))
def test_every_damage_of_the_base_is_a_warning(content: bytes, tmp_path: Path, messages: Messages) -> None:
    source = models(tmp_path)
    for name, what in (
        ("tokenizer.json", "tokens of the base are"),
        ("tokenizer_config.json", "tokens and chat template of the base are"),
        ("generation_config.json", "end tokens of the base are"),
        ("preprocessor_config.json", ""),
    ):
        path = tmp_path / "base" / name
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(content)
        plan = ramerge.plan(source)
        assert plan.problems == ()
        (warning,) = plan.warnings
        assert f"{path}: {DAMAGES[content]}" in warning
        messages.check(warning)
        assert what in warning and ("companions: a" in warning) == bool(what)
        # no message takes the file as one that says something else
        assert not [note for note in plan.notes if "companions:" in note]
        (problem,) = ramerge.plan(source, options=ramerge.Options(strict=True)).problems
        assert DAMAGES[content] in problem
        path.unlink() if before is None else path.write_bytes(before)
    assert ramerge.plan(source).warnings == ()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("tokenizer.json", "tokens of b are"),
        ("tokenizer_config.json", "tokens and chat template of b are"),
        ("generation_config.json", "end tokens of b are"),
    ],
)
def test_what_an_agent_does_not_tell_is_said(name: str, what: str, tmp_path: Path, messages: Messages) -> None:
    source = models(tmp_path)
    (tmp_path / "b" / name).write_text('{"truncated": ')
    plan = ramerge.plan(source)
    (warning,) = plan.warnings
    assert f"{tmp_path / 'b' / name}: is not JSON" in warning
    assert f"{what} not compared with the other models'" in warning
    assert "copied to the output" not in warning
    assert not [note for note in plan.notes if "companions:" in note]
    # an accepted choice of files compares tokens only
    chosen = ramerge.plan(source | {"companions": "base"}).warnings
    assert len(chosen) == (name != "generation_config.json")
    (warning,) = ramerge.plan(source | {"companions": "b"}).warnings
    messages.check(warning)


def test_tokens_of_other_agents_are_compared(tmp_path: Path, messages: Messages) -> None:
    source = models(tmp_path)
    (tmp_path / "a/tokenizer.json").write_text("")
    text = (tmp_path / "b/tokenizer.json").read_text().replace("t3", "other")
    (tmp_path / "b/tokenizer.json").write_text(text)
    plan = ramerge.plan(source)
    messages.check(*plan.problems, *plan.warnings)


def test_vocabularies_that_are_no_json(tmp_path: Path, messages: Messages) -> None:
    source = models(tmp_path)
    (tmp_path / "base/tokenizer.model").write_bytes(b"")
    (tmp_path / "base/notes.txt").write_bytes(b"")
    (warning,) = ramerge.plan(source).warnings
    messages.check(warning)


SMALL = JsonLimits(size=1000, signs=100)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\n{%b}\n" % (b'"a": 1, ' * 500), None),  # as its size permits to tell
        (b"{%b}" % ("\u00e9".encode() * (3 << 19)), None),
        (b"x{%b}" % (b"1, " * 500), "does not begin with {"),
        (b"{%b" % (b"1, " * 500), "does not end with }"),
        (b"{%b}" % bytes(2 << 20), "holds zeros"),
        (b"{%b\xff}" % (b"1" * (2 << 20)), "is not UTF-8"),
        ("{1}".encode("utf-16") * 900, "UTF-16"),
        (b" " * 3000 + b"{}", "white space"),
        (b'{"a": "\\ud800"}', None),  # tokens may be halves of pairs
        (b'{"a": 1, "a": 2}', None),
    ],
)
def test_large_files_are_looked_at(content: bytes, reason: str | None) -> None:
    found = damage(io.BytesIO(content), SMALL)
    assert (found is None) == (reason is None) and (reason or "") in (found or "")


def test_large_tokenizers_are_read_in_parts() -> None:
    sizes: list[int] = []

    class Counted(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            sizes.append(size or 0)
            return super().read(size)

    assert damage(Counted(b"{" + b" " * (5 << 20) + b"}"), SMALL) is None
    assert 0 < max(sizes) <= 1 << 20 and min(sizes) > 0
