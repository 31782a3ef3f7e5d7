"""How long a plan of the largest models takes: only headers are read, so the files need not hold weights."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import command_line, run, script, spread, tell
from ramerge.core.tensors.header import encode_header

_BAR_MB = 300
_SECONDS = {"one": 3.0, "trillion": 10.0}
_BLOCK = 128


@dataclass(frozen=True)
class Shape:
    """Dimensions of models like DeepSeek-V3: latent attention, and experts after a few dense layers."""

    layers: int
    experts: int
    expert: int
    shards: int
    float8: bool
    hidden_size: int = 7168
    dense: int = 3
    intermediate: int = 18432
    heads: int = 128
    query_rank: int = 1536
    rank: int = 512
    vocabulary: int = 129_280


# DeepSeek-V3 as it is published, and one of a trillion parameters in bfloat16.
SHAPES = {
    "DeepSeek-V3": Shape(layers=61, experts=256, expert=2048, shards=163, float8=True),
    "1T": Shape(layers=61, experts=280, expert=2816, shards=200, float8=False),
}
_TITLES = {
    "one": "one DeepSeek-V3",
    "four": "DeepSeek-V3, and three agents of it",
    "trillion": "a trillion parameters in bfloat16, and three agents of it",
}


def measure(options: Options) -> dict[str, Any]:
    """Whole processes of `ramerge plan` with warm caches, watched."""
    deepseek, trillion = (_family(name, options.work) for name in SHAPES)
    commands = {"one": _plan([deepseek[0]]), "four": _plan(deepseek), "trillion": _plan(trillion)}
    models = {"one": deepseek[:1], "four": deepseek, "trillion": trillion}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for command in commands.values():
        run(command)
    for turn in range(options.runs):
        for name, command in commands.items():
            runs[name].append(run(command, watch=True).to_dict())
            duration, peak = runs[name][-1]["seconds"], runs[name][-1]["anonymous"] / 1e6
            tell(f"huge: run {turn + 1}, {name}: {duration:.2f} s, {peak:.0f} MB")
    return {
        "runs": runs,
        "commands": {name: command_line(command) for name, command in commands.items()},
        "models": {name: _about(folders) for name, folders in models.items()},
    }


def _plan(folders: list[Path]) -> list[str]:
    base, *agents = folders
    models = ["--base", str(base), *(word for each in agents for word in ("--agent", f"{each.name}={each}"))]
    return [script("ramerge"), "plan", *(models if agents else [str(base)]), "--no-cache"]


def _about(folders: list[Path]) -> dict[str, int]:
    index = json.loads((folders[0] / "model.safetensors.index.json").read_text())
    return {
        "models": len(folders),
        "tensors": len(index["weight_map"]),
        "shards": len(set(index["weight_map"].values())),
        "bytes": sum(path.stat().st_size for folder in folders for path in folder.glob("*.safetensors")),
    }


# --- the files --------------------------------------------------------------------------------------------------------


def _family(name: str, work: Path) -> list[Path]:
    """Four checkpoints of headers, and behind them a hole where weights would be."""
    home = work / f"headers-{name.lower()}"
    folders = [home / each for each in ("base", "code", "tool", "memory")]
    note, settings = home / "made.json", repr(SHAPES[name])
    if not note.is_file() or note.read_text() != settings:
        machine.remove(home)
        for folder in folders:
            folder.mkdir(parents=True)
            _write(folder, SHAPES[name])
        note.write_text(settings)
    return folders


def _write(folder: Path, shape: Shape) -> None:
    shards, total = _in_shards(shape)
    places: dict[str, str] = {}
    for number, entries in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):06}.safetensors"
        places |= {entry[0]: name for entry in entries}
        header = encode_header(entries, {"format": "pt"})
        with (folder / name).open("wb") as file:
            file.write(header)
            file.truncate(len(header) + sum(entry[3] for entry in entries))
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config: dict[str, Any] = {"model_type": "deepseek_v3", "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    if shape.float8:
        config["quantization_config"] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [_BLOCK, _BLOCK],
        }
    (folder / "config.json").write_text(json.dumps(config))


Entry = tuple[str, str, tuple[int, ...], int]


def _in_shards(shape: Shape) -> tuple[list[list[Entry]], int]:
    """The tensors, in order, in shards of about the same size; and the bytes of all."""
    entries = list(_entries(shape))
    total, before = sum(entry[3] for entry in entries), 0
    shards: list[list[Entry]] = [[] for _ in range(shape.shards)]
    for entry in entries:
        shards[before * shape.shards // total].append(entry)
        before += entry[3]
    return [shard for shard in shards if shard], total


def _entries(shape: Shape) -> Iterator[Entry]:
    for name, size, is_linear in _tensors(shape):
        if shape.float8 and is_linear:
            yield _entry(name, "F8_E4M3", size)
            yield _entry(f"{name}_scale_inv", "F32", tuple(-(-extent // _BLOCK) for extent in size))
        else:
            yield _entry(name, "BF16", size)


def _entry(name: str, dtype: str, size: tuple[int, ...]) -> Entry:
    elements = 1
    for extent in size:
        elements *= extent
    return name, dtype, size, elements * {"F8_E4M3": 1, "BF16": 2, "F32": 4}[dtype]


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Names, shapes, and whether a tensor is the weight of a linear layer, which float8 is for."""
    hidden_size, heads = shape.hidden_size, shape.heads
    yield "model.embed_tokens.weight", (shape.vocabulary, hidden_size), False
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", (hidden_size,), False
        attention = {
            "q_a_proj": (shape.query_rank, hidden_size),
            "q_b_proj": (heads * 192, shape.query_rank),
            "kv_a_proj_with_mqa": (shape.rank + 64, hidden_size),
            "kv_b_proj": (heads * 256, shape.rank),
            "o_proj": (hidden_size, heads * 128),
        }
        for part, size in attention.items():
            yield f"{name}.self_attn.{part}.weight", size, True
        yield f"{name}.self_attn.q_a_layernorm.weight", (shape.query_rank,), False
        yield f"{name}.self_attn.kv_a_layernorm.weight", (shape.rank,), False
        if layer < shape.dense:
            yield from _feed_forward(f"{name}.mlp", hidden_size, shape.intermediate)
        else:
            yield f"{name}.mlp.gate.weight", (shape.experts, hidden_size), False
            for expert in range(shape.experts):
                yield from _feed_forward(f"{name}.mlp.experts.{expert}", hidden_size, shape.expert)
            yield from _feed_forward(f"{name}.mlp.shared_experts", hidden_size, shape.expert)
        yield f"{name}.post_attention_layernorm.weight", (hidden_size,), False
    yield "model.norm.weight", (hidden_size,), False
    yield "lm_head.weight", (shape.vocabulary, hidden_size), False


def _feed_forward(name: str, hidden_size: int, inner: int) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    for part, size in {
        "gate_proj": (inner, hidden_size),
        "up_proj": (inner, hidden_size),
        "down_proj": (hidden_size, inner),
    }.items():
        yield f"{name}.{part}.weight", size, True


# --- the tables -------------------------------------------------------------------------------------------------------


def render(by_size: Mapping[str, RawResults]) -> str:
    """A table of times and memory, and the bars."""
    data = by_size[""].data
    durations = {name: spread([one["seconds"] for one in runs]) for name, runs in data["runs"].items()}
    memory = {name: spread([one["anonymous"] / 1e6 for one in runs]) for name, runs in data["runs"].items()}
    rows = []
    for name, about in data["models"].items():
        size = f"{about['bytes'] / 1e9:,.0f}"
        rows.append((_TITLES[name], size, f"{about['tensors']:,}", durations[name].text(), memory[name].text(0)))
    text = (
        "Whole processes of `ramerge plan --no-cache` were timed with warm caches. The files have the headers of "
        "real models and a hole in place of their weights. Memory is without mapped files (RssAnon + RssShmem, "
        "polled every 10 ms). DeepSeek-V3 is in float8, as published; half of its tensors are scales."
    )
    goals = [
        Bar(f"huge.{name}", f"{_TITLES[name]}: seconds", durations[name], limit, unit="s")
        for name, limit in _SECONDS.items()
    ]
    goals.append(Bar("huge.memory", f"{_TITLES['one']}: memory", memory["one"], _BAR_MB, digits=0, unit="MB"))
    head = ("what", "GB of all models", "tensors of each", "seconds", "memory in MB")
    return "\n\n".join([text, table(head, rows), bars(goals)])


SECTION = Section("huge", "Plans of the largest models", has_sizes=False, measure=measure, render=render)
