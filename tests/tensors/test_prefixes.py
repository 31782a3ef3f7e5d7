"""Names under the prefixes of another model, found from names and shapes."""

from ramerge.core.tensors.prefixes import align


def layers(stem: str, count: int, width: int = 4) -> dict[str, tuple[int, ...]]:
    parts = {"self_attn.q_proj.weight": (width, width), "norm.weight": (width,)}
    return {f"{stem}{layer}.{name}": shape for layer in range(count) for name, shape in parts.items()}


def test_neighbors_of_a_stack_move_along() -> None:
    ours = layers("model.layers.", 2) | {"model.embed_tokens.weight": (9, 4), "lm_head.weight": (9, 4)}
    theirs = {name.replace("model.", "a.b.model."): shape for name, shape in ours.items() if name != "lm_head.weight"}
    theirs |= {"a.b.lm_head.weight": (9, 4), "other.weight": (9, 4)}
    names, prefixes = align(ours, theirs)
    assert set(names.values()) == theirs.keys() - {"other.weight"} and prefixes == {"": "a.b."}


def test_stack_with_matching_shapes_is_taken() -> None:
    ours = layers("layers.", 2)
    theirs = layers("talker.layers.", 2, 6) | layers("thinker.layers.", 2) | layers("mtp.layers.", 1)
    assert set(align(ours, theirs)[0].values()) == layers("thinker.layers.", 2).keys()


def test_of_equal_stacks_words_decide() -> None:
    ours, theirs = layers("layers.", 2), layers("talker.layers.", 2) | layers("thinker.layers.", 2)
    assert align(ours, theirs) == ({}, {})
    assert set(align(ours, theirs, preferences=["thinker"])[0].values()) == layers("thinker.layers.", 2).keys()


def test_two_stacks_are_not_the_same_one() -> None:
    ours, theirs = layers("x.layers.", 2) | layers("tower.layers.", 1), layers("model.layers.", 2)
    assert set(align(ours, theirs)[0]) == layers("x.layers.", 2).keys()


def test_stacks_of_both_models_stay() -> None:
    ours, theirs = layers("model.layers.", 1), layers("mtp.layers.", 1)
    assert align(ours, theirs, fixed_stacks={"model.layers."}) == ({}, {})
