"""The same recipe through mergekit and through ramerge.

`make peers` installs mergekit in an environment of its own and runs these tests. Without it they are skipped; another
mergekit is taken by its program:

    RAMERGE_MERGEKIT=venv/bin/mergekit-yaml python -m pytest tests/e2e/peers

They last passed on 22 November 2026, with mergekit 0.1.5, torch 2.13.0 (CPU) and transformers 5.23.0.

All methods agree in float32, but for what differs on purpose, which the recipes here avoid:

- Random draws. Of `dare_*` and `della*` the tests compare what does not depend on them: the share that is
  kept, and how much.
- Equal magnitudes at a bound (`ties`, `breadcrumbs*`) are all kept, and mergekit keeps some of them. Where signs cancel
  out exactly, the base stays, and mergekit elects +.
- `breadcrumbs*`: mergekit erases tensors from which it removes no largest element, those of fewer than 1 / gamma.
- `sce`, `model_stock`, `multislerp`: mergekit's bounds of 1e-6 and 1e-8 change the results of agents that moved little.
- `karcher`: arccos of a float32 cosine near 1 is noise; the tests' tolerance covers it.
- `arcee_fusion`: quartiles of tensors of more than a million elements are of a sample in mergekit, and divergences of
  nearly equal rows are noise there.
"""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import ramerge
from tests.checkpoints import read_checkpoint, write_checkpoint
from tests.reference import Stored

MERGEKIT = os.environ.get("RAMERGE_MERGEKIT")
pytestmark = [
    pytest.mark.full,  # mergekit
    pytest.mark.skipif(not MERGEKIT, reason="RAMERGE_MERGEKIT names no mergekit-yaml; see `make peers`"),
]

HIDDEN, INNER, LAYERS, VOCABULARY = 32, 64, 3, 64
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
}
MOVED = {"code": 0.3, "tool": 0.6, "memory": 0.9}

Weights = dict[str, NDArray[np.float32]]


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama."""
    layers = {f"model.layers.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in SHAPES.items()}
    ends = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN)}
    return {**layers, **ends, "model.norm.weight": (HIDDEN,)}


def base_weights() -> Weights:
    """Random weights."""
    rng = np.random.default_rng(1)
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes().items()}


def agent_weights(base: Weights, seed: int, moved: float) -> Weights:
    """The base with that share of elements moved: no two of a tensor equally far, so that no trimming is ambiguous, and
    each agent by steps of its own, so that no two agents cancel out."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, values in base.items():
        steps = (rng.permutation(values.size).reshape(values.shape) + 8) * np.sqrt(seed) * 2.0**-16
        signs = rng.choice([-1, 1], values.shape) * (rng.random(values.shape) < moved)
        weights[name] = (values + signs * steps).astype(np.float32)
    return weights


def save(folder: Path, weights: Weights) -> None:
    stored = {name: Stored("F32", values.view(np.uint32)) for name, values in weights.items()}
    write_checkpoint(folder, stored, config=CONFIG)


def load(folder: Path) -> Weights:
    stored = read_checkpoint(folder)
    assert {tensor.dtype for tensor in stored.values()} == {"F32"}
    return {name: tensor.bits.view(np.float32) for name, tensor in stored.items()}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    base = base_weights()
    save(folder / "base", base)
    for seed, (name, moved) in enumerate(MOVED.items(), 2):
        save(folder / name, agent_weights(base, seed, moved))
    # models of other bases: their angles to the others are not small
    for seed, (name, size) in enumerate({"far": 0.1, "wide": 0.05}.items(), 9):
        rng = np.random.default_rng(seed)
        save(
            folder / name,
            {key: values + rng.normal(0, size, values.shape).astype("f4") for key, values in base.items()},
        )
    return folder


def recipe(method: str, *models: str, base: bool = True, parameters: str = "{}") -> str:
    """A recipe; a model is its folder, with its parameters behind a space."""
    lines = [f"merge_method: {method}", *(["base_model: ./base"] if base else []), "models:"]
    for model in models:
        folder, _, own = model.partition(" ")
        lines += [f"  - model: ./{folder}", *([f"    parameters: {own}"] if own else [])]
    return "\n".join([*lines, f"parameters: {parameters}", "dtype: float32", ""])


AGENTS = tuple(MOVED)
WEIGHTED = ("code {weight: 0.5}", "tool {weight: 1.0}", "memory {weight: 0.3}")
OPPOSED = ("code {weight: 1}", "tool {weight: -0.5}", "memory {weight: 0.25}")
DENSITIES = (
    "base",
    "code {weight: 0.5, density: 0.8}",
    "tool {weight: 1.5, density: 0.333}",
    "memory {weight: 0.7, density: 0.05}",
)

# the recipe that is in most model cards
SLERP = (
    "{t: [{filter: self_attn, value: [0, 0.5, 0.3, 0.7, 1]}, "
    "{filter: mlp, value: [1, 0.5, 0.7, 0.3, 0]}, {value: 0.5}]}"
)

RECIPES = {
    "linear": recipe("linear", *WEIGHTED, base=False),
    "linear-sum": recipe("linear", *WEIGHTED, base=False, parameters="{normalize: false}"),
    "linear-opposed": recipe("linear", *OPPOSED, base=False),
    "linear-base-listed": recipe("linear", "base {weight: 2}", *WEIGHTED),
    "linear-base-added": recipe("linear", *WEIGHTED, parameters="{weight: 0.4}"),
    "task_arithmetic": recipe("task_arithmetic", *WEIGHTED),
    "task_arithmetic-lambda": recipe("task_arithmetic", *OPPOSED, parameters="{lambda: 0.4, density: 0.5}"),
    "task_arithmetic-normalize": recipe("task_arithmetic", *WEIGHTED, parameters="{normalize: true, lambda: 1.3}"),
    "task_arithmetic-no-sum": recipe(
        "task_arithmetic", "code {weight: 1}", "tool {weight: -1}", parameters="{normalize: true}"
    ),
    "ties": recipe("ties", *AGENTS, parameters="{weight: 1, density: 0.5}"),
    "ties-whole": recipe("ties", *WEIGHTED),
    "ties-weighted": recipe("ties", *WEIGHTED, parameters="{density: 0.2, lambda: 0.7, int8_mask: true}"),
    "ties-opposed": recipe("ties", *OPPOSED, parameters="{density: 0.7}"),
    "ties-sum": recipe("ties", *AGENTS, parameters="{weight: 0.6, density: 0.9, normalize: false, lambda: 1.1}"),
    "ties-densities": recipe("ties", *DENSITIES),
    "ties-densities-sum": recipe("ties", *DENSITIES, parameters="{normalize: off}"),
    "ties-one": recipe("ties", "tool", parameters="{weight: 0.5, density: 0.01}"),
    "ram": recipe("ram", *AGENTS),
    "ram-epsilon": recipe("ram", "base", *AGENTS, parameters="{epsilon: 3e-3}"),
    "ramplus_tl": recipe("ramplus_tl", *AGENTS),
    "ramplus_tl-all": recipe("ramplus_tl", *AGENTS, parameters="{r: 0.3, alpha: 1.5, epsilon: 2e-3}"),
    "breadcrumbs-whole": recipe("breadcrumbs", *WEIGHTED, parameters="{lambda: 0.5}"),
    # tensors of 32 elements lose none of their largest with a gamma of 0.01, and there mergekit erases them
    "breadcrumbs": recipe("breadcrumbs", *WEIGHTED, parameters="{density: 0.3, gamma: 0.1}"),
    "breadcrumbs-rescaled": recipe(
        "breadcrumbs", *WEIGHTED, parameters="{density: 0.4, gamma: 0.04, rescale: true, normalize: true}"
    ),
    "breadcrumbs-crowded": recipe("breadcrumbs", *WEIGHTED, parameters="{density: 0.9, gamma: 0.5}"),
    "breadcrumbs_ties": recipe("breadcrumbs_ties", *OPPOSED, parameters="{density: 0.6, gamma: 0.05}"),
    "breadcrumbs_ties-mean": recipe(
        "breadcrumbs_ties",
        "code {weight: 0.5, density: 0.8, gamma: 0.05}",
        "tool {weight: 1.5, density: 0.4, gamma: 0.2}",
        parameters="{normalize: true, lambda: 1.1}",
    ),
    "della-whole": recipe("della", *WEIGHTED, parameters="{lambda: 0.9}"),
    "della-nothing": recipe("della", "code {weight: 1, density: 0}", "tool {weight: 0.5}"),
    "della_linear-whole": recipe("della_linear", *OPPOSED, parameters="{normalize: true}"),
    # where mean squares sum to less than 1e-6, mergekit weighs all agents alike
    "sce": recipe("sce", "far", "wide"),
    "sce-selected": recipe("sce", "far", "wide", "tool", parameters="{select_topk: 0.3, int8_mask: true}"),
    "sce-nothing": recipe("sce", *AGENTS, parameters="{select_topk: 0}"),
    "sce-one": recipe("sce", "tool"),
    "slerp": recipe("slerp", "tool", parameters="{t: 0.3}"),
    "slerp-base-last": recipe("slerp", "memory", "base", parameters="{t: 0.8}"),
    "slerp-far": recipe("slerp", "far", parameters="{t: 0.3}"),
    "nuslerp": recipe("nuslerp", *WEIGHTED[:2], base=False),
    "nuslerp-far": recipe("nuslerp", "far {weight: 1}", "tool {weight: 2}", base=False),
    "nuslerp-base": recipe("nuslerp", *WEIGHTED[:2]),
    "nuslerp-rows": recipe("nuslerp", *WEIGHTED[:2], parameters="{nuslerp_flatten: false}"),
    "nuslerp-columns": recipe("nuslerp", *WEIGHTED[1:], parameters="{nuslerp_flatten: false, nuslerp_row_wise: true}"),
    "multislerp": recipe("multislerp", *WEIGHTED, base=False),
    "multislerp-base": recipe("multislerp", *WEIGHTED, "far {weight: 0.2}"),
    "multislerp-sum": recipe("multislerp", *OPPOSED, parameters="{normalize_weights: false, eps: 1e-7}"),
    "karcher": recipe("karcher", *AGENTS, base=False),
    "karcher-base": recipe("karcher", *AGENTS, "far"),
    "karcher-steps": recipe("karcher", "far", "tool", "base", parameters="{max_iter: 1, tol: 1e-3}"),
    "model_stock": recipe("model_stock", *AGENTS),
    "model_stock-two": recipe("model_stock", "base", "tool", "far"),
    "model_stock-rows": recipe("model_stock", *AGENTS, parameters="{filter_wise: true}"),
    "arcee_fusion": recipe("arcee_fusion", "far"),
    "passthrough": recipe("passthrough", "tool", base=False),
    "passthrough-scale": recipe("passthrough", "tool {scale: 0.5}", base=False),
    "gradient": recipe("linear", "code {weight: [1, 0]}", "tool {weight: [0.2, 0.5, 1]}", base=False),
    "gradient-filter": recipe("slerp", "far", parameters=SLERP),
    "filter-by-model": recipe(
        "ties",
        "code {weight: 1, density: {filter: mlp, value: 0.3}}",
        "tool {weight: [{filter: self_attn, value: [0, 1]}, {filter: norm, value: 0.5}], density: 0.9}",
        parameters="{weight: 0.7, density: [{filter: q_proj, value: 0.5}, {value: [0.6, 0.8]}]}",
    ),
    "filter-passthrough": recipe(
        "passthrough", "tool {scale: [{filter: o_proj, value: 0}, {filter: down_proj, value: 0.5}]}", base=False
    ),
}


DROPPING = {
    "rescaled": "{density: 0.5}",
    "mean": "{density: 0.8, normalize: true}",
    "unscaled": "{density: 0.5, rescale: false}",
}
AT_RANDOM = {
    f"{method}-{variant}": recipe(method, *WEIGHTED, parameters=parameters)
    for method in ("dare_linear", "dare_ties", "della_linear", "della")
    for variant, parameters in DROPPING.items()
}

# mergekit takes seconds to start, so one process runs its program for all recipes
RUN = """
import sys
from mergekit.scripts.run_yaml import main
for name in sys.argv[1:]:
    options = ["--no-copy-tokenizer", "--quiet", "--no-write-model-card", "--random-seed", "1"]
    main.main([name + ".yaml", name + "-mergekit", *options], standalone_mode=False)
"""


@pytest.fixture(scope="module")
def done(checkpoints: Path) -> Path:
    """Where mergekit has merged all recipes."""
    recipes = {**RECIPES, **AT_RANDOM}
    for name, text in recipes.items():
        (checkpoints / f"{name}.yaml").write_text(text)
    program = Path(shutil.which(str(MERGEKIT)) or str(MERGEKIT)).absolute()
    ran = subprocess.run(
        [str(program.parent / "python"), "-c", RUN, *recipes],
        cwd=checkpoints,  # mergekit takes paths relative to where it runs
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return checkpoints


def run_both(folder: Path, name: str) -> tuple[Weights, Weights]:
    """The weights that mergekit has made of a file, and those that ramerge makes of it."""
    ramerge.merge(folder / f"{name}.yaml", folder / f"{name}-ramerge")
    both = load(folder / f"{name}-mergekit"), load(folder / f"{name}-ramerge")
    assert set(both[0]) == set(both[1]) == set(shapes())
    return both


@pytest.mark.parametrize("name", RECIPES)
def test_the_same_weights(name: str, done: Path) -> None:
    theirs, ours = run_both(done, name)
    for tensor, expected in theirs.items():
        assert np.allclose(ours[tensor], expected, rtol=1e-5, atol=1e-6), tensor


def changes(weights: Weights, base: Weights) -> NDArray[np.float64]:
    """What a merge changed in the base, all tensors in one row."""
    return np.concatenate([(weights[name].astype(np.float64) - base[name]).ravel() for name in sorted(base)])


@pytest.mark.parametrize("name", AT_RANDOM)
def test_what_is_dropped_at_random(name: str, done: Path) -> None:
    method, variant = name.split("-")
    theirs, ours = run_both(done, name)
    base = load(done / "base")
    full = sum(
        weight * changes(load(done / agent), base)
        for agent, weight in {"code": 0.5, "tool": 1.0, "memory": 0.3}.items()
    )
    moved = [changes(weights, base) for weights in (theirs, ours)]
    # the tools draw other elements; for DARE, mergekit scales each tensor to its norm, and ramerge by 1 / (1 - p)
    shares = [np.mean(change != 0) for change in moved]
    assert abs(shares[0] - shares[1]) < 0.02
    along = [change @ full / (full @ full) for change in moved]
    assert abs(along[0] - along[1]) < 0.05 * abs(along[0])
    sizes = [np.abs(change).mean() for change in moved]
    assert abs(sizes[0] - sizes[1]) < 0.05 * sizes[0]
    if method == "dare_linear":
        expected = {"rescaled": 1.0, "mean": 1 / 1.8, "unscaled": 0.5}[variant]
        assert abs(along[1] - expected) < 0.05 * expected


def test_no_two_elements_moved_equally_far() -> None:
    base = base_weights()
    for seed, moved in enumerate(MOVED.values(), 2):
        for name, values in agent_weights(base, seed, moved).items():
            far = np.abs(values - base[name])[values != base[name]]
            assert len(np.unique(far)) == far.size, name
