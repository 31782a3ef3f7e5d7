"""Embeddings with different numbers of rows: common rows are merged, and others come from where they are."""

import json
from pathlib import Path

import numpy as np
import pytest

import ramerge
from tests.checkpoints import floats, read_checkpoint, recipe, write_checkpoint
from tests.messages import Messages
from tests.reference import Stored

COMMON = {"vocabulary": "common"}
TOKENS = [f"t{number}" for number in range(8)]


def model(seed: int, rows: int, dtype: str = "BF16", *, tied: bool = False) -> dict[str, Stored]:
    base, rng = np.random.default_rng(0).normal(0, 0.02, (3, 16, 4)), np.random.default_rng(seed)
    moved = base + rng.normal(0, 1e-2, base.shape) * (seed > 0)
    found = {"model.embed_tokens.weight": moved[0, :rows], "model.layers.0.w": moved[1]}
    return {
        name: floats(v, dtype) for name, v in (found if tied else found | {"lm_head.weight": moved[2, :rows]}).items()
    }


def write(folder: Path, seed: int, rows: int, added: list[str] | None = None, **more: object) -> Path:
    write_checkpoint(folder, model(seed, rows, **more), config={"vocab_size": rows, "torch_dtype": "bfloat16"})
    vocabulary = {token: number for number, token in enumerate(TOKENS)}
    tokens = [{"id": len(TOKENS) + place, "content": text} for place, text in enumerate(added or [])]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": tokens}))
    return folder


def numbers(folder: Path, name: str) -> np.ndarray:
    return read_checkpoint(folder)[name].bits


@pytest.mark.parametrize("method", ["ram+", "linear", "ties"])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight"])
def test_padded_base_and_new_tokens(method: str, name: str, tmp_path: Path) -> None:
    write(tmp_path / "base", 0, 12)
    write(tmp_path / "a", 1, 10)
    write(tmp_path / "b", 2, 14, ["<x>", "<y>", "<z>", "<u>", "<v>"], dtype="F32")
    source = recipe(tmp_path, ["a", "b"], method, allow=COMMON)
    made = ramerge.plan(source)
    assert made.problems == ()
    assert any("rows 12 to 13 are in b only" in note for note in made.notes)
    record = ramerge.merge(source, tmp_path / "out")
    assert record.tensors == 3
    found = numbers(tmp_path / "out", name)
    assert found.shape == (14, 4)
    # rows that only b has are b's, rounded to the base's dtype
    assert (found[12:] == floats(model(2, 14, "F32")[name].numbers(np.float64)[12:]).bits).all()
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["vocab_size"] == 14
    assert "<v>" in (tmp_path / "out/tokenizer.json").read_text()
    # the common rows are those of a merge of models that have only these
    for model_name, seed in (("base", 0), ("a", 1), ("b", 2)):
        dtype = "F32" if model_name == "b" else "BF16"
        write_checkpoint(tmp_path / "cut" / model_name, model(seed, 10, dtype))
    if method == "linear":  # what other methods count of the model depends on all rows
        ramerge.merge(recipe(tmp_path / "cut", ["a", "b"], method), tmp_path / "cut" / "out")
        assert (numbers(tmp_path / "cut" / "out", name) == found[:10]).all()


def test_first_agent_has_rows_without_base(tmp_path: Path) -> None:
    agents = {name: str(write(tmp_path / name, seed, rows)) for name, seed, rows in (("a", 1, 10), ("b", 2, 14))}
    notes = ramerge.plan({"method": "linear", "agents": agents, "allow": COMMON}).notes
    assert "lm_head.weight: rows 0 to 9 are in a, b" in notes
    assert "lm_head.weight: rows 10 to 13 are in b only" in notes
    agents = dict(reversed(agents.items()))
    assert (
        "lm_head.weight: rows 10 to 13 are in b only"
        in ramerge.plan({"method": "linear", "agents": agents, "allow": COMMON}).notes
    )


@pytest.mark.parametrize("rule", [{"take": "a"}, {"keep": "base"}])
def test_embeddings_with_importances_are_refused_whatever_the_rule(
    rule: dict[str, str], tmp_path: Path, messages: Messages
) -> None:
    write(tmp_path / "base", 0, 10)
    for seed, name in enumerate(("a", "b"), 1):
        write(tmp_path / name, seed, 8 + 2 * seed)
        importances = {
            key: floats(np.ones(tensor.bits.shape), "F32") for key, tensor in model(seed, 8 + 2 * seed).items()
        }
        write_checkpoint(tmp_path / f"{name}-importance", importances)
    agents = {
        name: {"model": str(tmp_path / name), "importance": str(tmp_path / f"{name}-importance")} for name in "ab"
    }
    source = {
        **recipe(tmp_path, [], "fisher", allow=COMMON, rules=[{"match": "*embed*", **rule}]),
        "agents": agents,
    }
    with messages.raises(ramerge.PlanError):
        ramerge.merge(source, tmp_path / "out")


@pytest.mark.full
def test_an_agent_without_padding(tmp_path: Path) -> None:
    write(tmp_path / "base", 0, 14)
    write(tmp_path / "a", 1, 9)
    ramerge.merge(recipe(tmp_path, ["a"], "task_arithmetic", allow=COMMON), tmp_path / "out")
    found, base = (numbers(tmp_path / one, "lm_head.weight") for one in ("out", "base"))
    assert (found[9:] == base[9:]).all() and not (found[:9] == base[:9]).all()
    assert (tmp_path / "out/config.json").read_bytes() == (tmp_path / "base/config.json").read_bytes()


@pytest.mark.full
def test_whole_tensors_and_cached_counts(tmp_path: Path) -> None:
    write(tmp_path / "base", 0, 10)
    for name, seed in (("a", 1), ("b", 2)):
        write(tmp_path / name, seed, 12 + seed)
    source = recipe(tmp_path, ["a", "b"], allow=COMMON)
    found = {one.name: one.data for one in ramerge.plan(source).tensors()}
    ramerge.merge(source, tmp_path / "out")
    ramerge.merge(source, tmp_path / "again")
    for name, tensor in read_checkpoint(tmp_path / "out").items():
        assert found[name].tobytes() == tensor.bits.tobytes()
        assert numbers(tmp_path / "again", name).tobytes() == tensor.bits.tobytes()
    ramerge.analyze(source)


def test_other_tokens_are_refused_by_name(tmp_path: Path, messages: Messages) -> None:
    write(tmp_path / "base", 0, 8)
    write(tmp_path / "a", 1, 10, ["<call>"])
    write(tmp_path / "b", 2, 10, ["<think>"])
    (problem,) = ramerge.plan(recipe(tmp_path, ["a", "b"], allow=COMMON)).problems
    messages.check(problem)
    TOKENS[3] = "other"
    try:
        write(tmp_path / "b", 2, 10, ["<call>"])
    finally:
        TOKENS[3] = "t3"
    (problem,) = ramerge.plan(recipe(tmp_path, ["a", "b"], allow=COMMON)).problems
    messages.check(problem)


def test_equal_numbers_of_rows_with_other_tokens(tmp_path: Path) -> None:
    write(tmp_path / "base", 0, 10)
    write(tmp_path / "a", 1, 10, ["<call>"])
    write(tmp_path / "b", 2, 10, ["<think>"])
    assert "8 is '<think>'" in str(ramerge.plan(recipe(tmp_path, ["a", "b"], allow=COMMON)).problems)


def vocabulary(folder: Path, tokens: dict[str, int], added: dict[str, int] | None = None) -> None:
    """A tokenizer with these tokens, as transformers saves one."""
    extra = [{"id": row, "content": text, "special": True} for text, row in (added or {}).items()]
    text = json.dumps({"added_tokens": extra, "model": {"vocab": tokens, "merges": [["vocab", ": {"]]}}, indent=2)
    (folder / "tokenizer.json").write_text(text)


def trio(folder: Path) -> dict[str, object]:
    """A padded base and two agents; a recipe that does not speak of tokens."""
    for seed, name in enumerate(("base", "code", "tool")):
        write(folder / name, seed, 12)
    return recipe(folder, ["code", "tool"], dtype="float32")


def test_conflicting_tokens_of_agents_are_refused(tmp_path: Path, messages: Messages) -> None:
    source = trio(tmp_path)
    write(tmp_path / "code", 1, 12, ["<call>"])
    write(tmp_path / "tool", 2, 12, ["<think>"])
    plan = ramerge.plan(source)
    (problem,) = plan.problems
    messages.check(problem)
    with pytest.raises(ramerge.PlanError, match="different_tokens"):
        ramerge.merge(source, tmp_path / "out")
    allowed = ramerge.plan(source | {"allow": {"different_tokens": True}})
    assert allowed.problems == () and any("8 is '<think>'" in note for note in allowed.notes)


def test_conflicting_tokens_with_base_are_refused(tmp_path: Path, messages: Messages) -> None:
    source = trio(tmp_path)
    changed = {token: row for row, token in enumerate([*TOKENS[:3], "<think>", *TOKENS[4:]])}
    vocabulary(tmp_path / "code", changed)
    (problem,) = ramerge.plan(source).problems
    messages.check(problem)


def test_new_tokens_warn_of_the_output_tokenizer(tmp_path: Path, messages: Messages) -> None:
    source = {**trio(tmp_path), "method": "linear"}  # RAM warns of agents that are this dense, too
    write(tmp_path / "code", 1, 12, ["<call>", "</call>"])
    (warning,) = ramerge.merge(source, tmp_path / "out").warnings
    messages.check(warning)
    assert "<call>" not in (tmp_path / "out/tokenizer.json").read_text()
    assert ramerge.plan(source, options=ramerge.Options(strict=True)).problems == (warning,)
    for chosen, has in (("code", True), ("base", False)):
        record = ramerge.merge(
            source | {"companions": chosen}, tmp_path / "by" / chosen, options=ramerge.Options(strict=True)
        )
        assert record.warnings == ()
        assert ("<call>" in (tmp_path / "by" / chosen / "tokenizer.json").read_text()) == has


@pytest.mark.parametrize("files", ["older", "decoder", "scored", "escaped", "indented"])
def test_forms_of_a_tokenizer_are_the_same(files: str, tmp_path: Path, messages: Messages) -> None:
    """Each form has the base's tokens, and one more; or another in row 3."""
    source = trio(tmp_path)
    for odd in (False, True):
        tokens = {("x" if odd and row == 3 else token): row for row, token in enumerate(TOKENS)}
        place, added = tmp_path / "code", {"<é>": 8}
        (place / "tokenizer.json").unlink(missing_ok=True)
        if files == "older":
            (place / "vocab.json").write_text(json.dumps(tokens))
            (place / "added_tokens.json").write_text(json.dumps(added))
        elif files == "decoder":
            vocabulary(place, tokens)
            config = {"added_tokens_decoder": {"8": {"content": "<é>", "special": True}}, "chat_template": "x" * 9}
            (place / "tokenizer_config.json").write_text(json.dumps(config))
        elif files == "scored":
            pairs = [[token, -float(row)] for token, row in tokens.items()]
            model = {"type": "Unigram", "unk_id": 0, "vocab": pairs}
            text = json.dumps({"added_tokens": [{"id": 8, "content": "<é>"}], "model": model})
            (place / "tokenizer.json").write_text(text)
        else:
            model = {"type": "BPE", "vocab": {"vocab": 9, **tokens}, "merges": ['a "vocab": {"z": 1}']}
            values = {"added_tokens": [{"id": 8, "content": "<é>"}], "model": model}
            text = json.dumps(values, ensure_ascii=files == "escaped", indent=2 if files == "indented" else None)
            (place / "tokenizer.json").write_text(text, encoding="utf-8")
        plan = ramerge.plan(source)
        assert bool(plan.problems) == odd and ("3 is 'x', but 't3' in base" in str(plan.problems)) == odd
        if not odd:
            messages.check(plan.warnings[0])


def test_equal_tokenizers_are_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ramerge.core.planning.tokens import TokenReader

    source = trio(tmp_path)
    monkeypatch.setattr(TokenReader, "tokens_of", None)
    assert ramerge.plan(source).problems == ()


@pytest.mark.needs("tokenizers")
def test_a_real_tokenizer(tmp_path: Path) -> None:
    import tokenizers

    source = trio(tmp_path)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>"], show_progress=False)
    made.train_from_iterator(['der "Fluß" \\ vocab: {fließt} 東京 ' * 9], trainer)
    for name in ("base", "code", "tool"):
        made.save(str(tmp_path / name / "tokenizer.json"), pretty=name == "tool")
    assert not ramerge.plan(source).problems
    rows = made.get_vocab_size()
    made.add_special_tokens(["<call>"])
    made.save(str(tmp_path / "code/tokenizer.json"))
    assert f"'<call>' in row {rows}" in ramerge.plan(source).warnings[0]
    from ramerge.core.formats.open import open_checkpoint
    from ramerge.core.planning.tokens import TokenReader

    found = TokenReader().tokens_of(open_checkpoint(tmp_path / "code"))
    assert {token.decode(): row for row, token in found.items()} == made.get_vocab()


def test_another_chat_template_is_noted(tmp_path: Path, messages: Messages) -> None:
    source = trio(tmp_path)
    (tmp_path / "base/tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ a }}\n"}))
    (tmp_path / "code/chat_template.jinja").write_text("{{ b }}")
    (tmp_path / "tool/chat_template.jinja").write_text("{{ a }}")
    messages.check(*(note for note in ramerge.plan(source).notes if "template" in note))
    chosen = source | {"companions": "code"}
    assert not [note for note in ramerge.plan(chosen).notes if "template" in note]
    ramerge.merge(chosen, tmp_path / "out")
    assert (tmp_path / "out/chat_template.jinja").read_text() == "{{ b }}"
    (tmp_path / "base/tokenizer_config.json").unlink()
    messages.check(*(note for note in ramerge.plan(source).notes if "template" in note))


MERGES = ["a b", "ab c", 'q \\u0120"']
SPLIT = {"type": "Split", "pattern": {"Regex": "\\\\p{N}{1,3}"}}


@pytest.mark.parametrize(
    ("merges", "more", "said"),
    [
        (MERGES[::-1], {}, "other merges"),
        (MERGES[:2], {}, "other merges"),
        (MERGES, {"pre_tokenizer": SPLIT | {"invert": True}}, "another pre-tokenizer"),
        (MERGES, {"pre_tokenizer": None}, "another pre-tokenizer"),
        (MERGES, {"normalizer": {"type": "NFC"}}, "another normalizer"),
        ([], {"pre_tokenizer": None}, "other merges and another pre-tokenizer"),
        ([each.split(" ") for each in MERGES], {"padding": None}, ""),  # written in another way
    ],
)
def test_a_tokenizer_that_splits_otherwise_is_noted(merges: list, more: dict, said: str, tmp_path: Path) -> None:
    source = trio(tmp_path)
    for name in ("base", "code", "tool"):
        own = {"merges": merges, **more} if name == "code" else {"merges": MERGES}
        made = {"normalizer": None, "pre_tokenizer": SPLIT, **own}
        made["model"] = {
            "type": "BPE",
            "vocab": {token: n for n, token in enumerate(TOKENS)},
            "merges": made.pop("merges"),
        }
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(made, indent=2 if name == "code" else None))
    found = [note for note in ramerge.plan(source).notes if "splits text" in note]
    wanted = (
        f"code: its tokenizer splits text in another way ({said}), and the output gets that of the base; companions: "
    )
    assert found == ([f"{wanted}code takes tokenizer and template of code"] if said else [])
    assert not [n for n in ramerge.plan(source | {"companions": "tool"}).notes if "splits text" in n]


def test_merges_of_a_file_of_their_own(tmp_path: Path) -> None:
    source = trio(tmp_path)
    for name in ("base", "code", "tool"):
        (tmp_path / name / "tokenizer.json").unlink()
        (tmp_path / name / "vocab.json").write_text(json.dumps({token: n for n, token in enumerate(TOKENS)}))
        (tmp_path / name / "merges.txt").write_text("#version: 0.2\na b\n" + ("a c\n" if name == "tool" else ""))
    (note,) = [note for note in ramerge.plan(source).notes if "splits text" in note]
    assert note.startswith("tool: its tokenizer splits text in another way (other merges)")


@pytest.mark.parametrize(
    ("base", "code", "said"),
    [(7, 5, True), (7, [7], False), ([7, 5], [5, 7], False), ([7, 5], 7, True), (None, 7, False), (7, "x", False)],
)
def test_another_end_of_answers_is_noted(base: object, code: object, said: bool, tmp_path: Path) -> None:
    source = trio(tmp_path)
    (tmp_path / "base/generation_config.json").write_text(json.dumps({"eos_token_id": base}))
    (tmp_path / "code/generation_config.json").write_text(json.dumps({"eos_token_id": code, "top_p": 0.9}))
    found = [note for note in ramerge.plan(source).notes if "generation_config.json" in note]
    assert len(found) == said
    if said:
        assert found[0].startswith("code: generation_config.json ends answers at eos_token_id")
        assert found[0].endswith("companions: code takes generation config and tokenizer of code")


@pytest.mark.parametrize(
    "text", [b"[" * 10_000, b'{"pre_tokenizer": {' * 50_000, b'{"merges": [["a", "b"], 5', b"\xff"]
)
def test_a_broken_tokenizer_breaks_nothing(text: bytes, tmp_path: Path) -> None:
    source = trio(tmp_path)
    (tmp_path / "code/tokenizer.json").write_bytes(text)
    assert not ramerge.plan(source).problems


def test_base_without_tokenizer_is_noted(tmp_path: Path) -> None:
    source = trio(tmp_path)
    (tmp_path / "base/tokenizer.json").unlink()
    (note,) = [note for note in ramerge.merge(source, tmp_path / "out").notes if "no tokenizer" in note]
    assert "companions: code takes that of code" in note
    card = (tmp_path / "out/README.md").read_text()
    assert "AutoModelForCausalLM.from_pretrained" in card and "AutoTokenizer" not in card
    ramerge.merge(source | {"companions": "code"}, tmp_path / "with" / "out")
    assert "AutoTokenizer.from_pretrained" in (tmp_path / "with/out/README.md").read_text()


def test_rules_choose_whose_rows(tmp_path: Path) -> None:
    for name, seed, rows in (("base", 0, 4), ("a", 1, 6), ("b", 2, 8)):
        write(tmp_path / name, seed, rows)
    taken = recipe(tmp_path, ["a", "b"], allow=COMMON, rules=[{"match": "*", "take": "b"}])
    ramerge.merge(taken, tmp_path / "out")
    assert (numbers(tmp_path / "out", "lm_head.weight") == numbers(tmp_path / "b", "lm_head.weight")).all()


def test_not_without_being_asked(tmp_path: Path, messages: Messages) -> None:
    write(tmp_path / "base", 0, 8)
    write(tmp_path / "a", 1, 10)
    text = str(ramerge.plan(recipe(tmp_path, ["a"])).problems)
    messages.check(text)
    write(tmp_path / "a", 1, 9)
    text = str(ramerge.plan(recipe(tmp_path, ["a"])).problems)
    messages.check(text)
    ramerge.delta(tmp_path / "base", tmp_path / "a", tmp_path / "delta")
    _, config = ramerge.plan(recipe(tmp_path, ["delta"])).problems
    assert f"{tmp_path / 'delta/companions/config.json'} does not fit the base's" in config
