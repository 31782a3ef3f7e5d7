"""Checkpoints with the shapes of Qwen2.5 and seeded random weights: a base and three agents that moved parts of it.

Written in one streaming pass, so that memory stays small at every size, and kept for later runs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import run, script

# Agents of the paper: coding, tool use, memory; the share of elements that each moved (section 3.1).
DENSITIES = {"code": 0.032, "tool": 0.462, "memory": 0.543}

_CHUNK = 1 << 21
_BLOCK = 128
_SEED = 2601_13572
# Raise it when the generator changes, so that files of an older one are not taken for the new one's.
_VERSION = 2
# A step where one bf16 unit in the last place is smaller: still larger than RAM's epsilon, 1e-5, after rounding.
_SMALLEST_STEP = np.float32(2.0**-15)


@dataclass(frozen=True)
class Shape:
    """Dimensions of a Qwen2.5 model."""

    hidden_size: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    vocabulary: int = 151_936


SHAPES = {
    "tiny": Shape(hidden_size=64, intermediate=128, layers=2, heads=4, key_value_heads=2, vocabulary=512),
    "0.1B": Shape(hidden_size=512, intermediate=1536, layers=8, heads=8, key_value_heads=2),
    "0.5B": Shape(hidden_size=896, intermediate=4864, layers=24, heads=14, key_value_heads=2),
    "1.5B": Shape(hidden_size=1536, intermediate=8960, layers=28, heads=12, key_value_heads=2),
}


@dataclass(frozen=True)
class Family:
    """A base, its agents, and importances of their parameters, on disk."""

    base: Path
    agents: dict[str, Path]

    @property
    def importances(self) -> dict[str, Path]:
        """Where `importances` puts them, by agent."""
        return {name: folder.with_name(f"{folder.name}-fisher") for name, folder in self.agents.items()}

    @property
    def folders(self) -> list[Path]:
        """Base and agents."""
        return [self.base, *self.agents.values()]

    @property
    def weights(self) -> list[Path]:
        """Every safetensors file of the base and the agents."""
        return _weights(self.folders)

    @property
    def importance_weights(self) -> list[Path]:
        """Every safetensors file of the importances."""
        return _weights(self.importances.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(path.stat().st_size for path in self.weights)


def family(size: str, work: Path, densities: Mapping[str, float] = DENSITIES, ending: str = "") -> Family:
    """The checkpoints of a size under `work`, made if they are not there; other densities need another `ending`."""
    home = work / f"qwen2.5-{size.lower()}{ending}"
    target = Family(home / "base", {name: home / name for name in densities})
    settings = {"version": _VERSION, "shape": asdict(SHAPES[size]), "densities": dict(densities)}
    note = home / "made.json"
    if not note.is_file() or json.loads(note.read_text()) != settings:
        shutil.rmtree(home, ignore_errors=True)
        _generate(SHAPES[size], target, densities)
        note.write_text(json.dumps(settings))
    return target


def importances(files: Family) -> Family:
    """The same checkpoints with importances for every agent: the absolute values of its weights, made if not there."""
    for name, folder in files.importances.items():
        folder.mkdir(exist_ok=True)
        for weights in sorted(files.agents[name].glob("*.safetensors")):
            target = folder / weights.name
            if not target.is_file() or target.stat().st_mtime < weights.stat().st_mtime:
                _absolute(weights, target)
    return files


def float8(files: Family) -> Family:
    """The same checkpoints with the matrices of their layers in float8, made if they are not there.

    Scales are those of blocks of 128 x 128, as DeepSeek's and Qwen's are.
    """
    target = _beside(files, "float8")
    for source, folder in zip(files.folders, target.folders, strict=True):
        if _is_older(folder, source):
            _quantize(source, folder)
    return target


def float32(files: Family) -> Family:
    """Quantized checkpoints in float32, written by `ramerge convert` if not there."""
    target = _beside(files, "float32")
    for source, folder in zip(files.folders, target.folders, strict=True):
        if _is_older(folder, source):
            run(
                [
                    script("ramerge"),
                    "convert",
                    str(source),
                    str(folder),
                    "--dtype",
                    "float32",
                    "--overwrite",
                    "--quiet",
                ]
            )
    return target


def _beside(files: Family, ending: str) -> Family:
    def folder_of(folder: Path) -> Path:
        return folder.with_name(f"{folder.name}-{ending}")

    return Family(folder_of(files.base), {name: folder_of(folder) for name, folder in files.agents.items()})


def _is_older(folder: Path, source: Path) -> bool:
    target, origin = folder / "model.safetensors", source / "model.safetensors"
    return not target.is_file() or target.stat().st_mtime < origin.stat().st_mtime


def base_words(generator: np.random.Generator, elements: int) -> NDArray[np.uint16]:
    """Weights as bf16 bits: normal, of standard deviation 0.02."""
    values = generator.standard_normal(elements, np.float32)
    values *= np.float32(0.02)
    return to_bf16(values)


def moved_words(generator: np.random.Generator, base: NDArray[np.uint16], density: float) -> NDArray[np.uint16]:
    """The base with a share of its elements moved by one to three steps up or down.

    A step is one unit in the last place, but never less than 2^-15.
    """
    coins = generator.integers(0, 1 << 16, base.size, np.uint16)
    dice = generator.integers(0, 6, base.size, np.uint8)
    steps = np.array([-3, -2, -1, 1, 2, 3], np.float32)[dice]
    power_of_two = (base & np.uint16(0x7F80)).astype(np.uint32) << np.uint32(16)
    unit = power_of_two.view(np.float32) * np.float32(2.0**-7)
    neighbors = from_bf16(base) + steps * np.maximum(unit, _SMALLEST_STEP)
    return np.where(coins < round(density * (1 << 16)), to_bf16(neighbors), base)


def moved_weights(folder: Path, density: float, seed: int) -> None:
    """Move a share of the elements of a checkpoint in its files, which hold bfloat16, by one to three steps.

    They are the same elements by the same steps for a seed, so a copy can be moved as far as the original.
    """
    generator = np.random.Generator(np.random.SFC64([_SEED, seed]))
    for path in sorted(folder.glob("*.safetensors")):
        begin = 8 + int.from_bytes(path.open("rb").read(8), "little")
        words = np.memmap(path, np.uint16, "r+", begin)
        for start in range(0, words.size, _CHUNK):
            part = words[start : start + _CHUNK]
            places = np.flatnonzero(generator.integers(0, 1 << 16, part.size, np.uint16) < round(density * (1 << 16)))
            part[places] ^= generator.integers(1, 4, places.size, np.uint16)


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of finite numbers rounded to nearest even."""
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def from_bf16(words: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Numbers of bf16 bits."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _weights(folders: Iterable[Path]) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.glob("*.safetensors"))]


# --- writing ---------------------------------------------------------------------------------------------------------


def _generate(shape: Shape, into: Family, densities: Mapping[str, float]) -> None:
    """Write all checkpoints side by side, so that the base is made once and never read back."""
    tensors = sorted(tensors_of(shape))
    elements = sum(int(np.prod(dimensions)) for _, dimensions in tensors)
    generators = [np.random.Generator(np.random.SFC64([_SEED, place])) for place in range(1 + len(into.agents))]
    with ExitStack() as stack:
        files = [stack.enter_context(_begin(folder, shape, tensors)) for folder in into.folders]
        for start in range(0, elements, _CHUNK):
            base = base_words(generators[0], min(_CHUNK, elements - start))
            agents = [
                moved_words(generator, base, density)
                for generator, density in zip(generators[1:], densities.values(), strict=True)
            ]
            for file, words in zip(files, [base, *agents], strict=True):
                file.write(words.data)


def write_factors(path: Path, tensors: Mapping[str, NDArray[np.float32]]) -> None:
    """A safetensors file of float32 tensors."""
    with path.open("wb") as file:
        file.write(_header([(name, values.shape) for name, values in tensors.items()], "F32"))
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).data)


def _absolute(weights: Path, out: Path) -> None:
    """A copy of a bf16 file with every sign bit cleared, under its name only when it is whole."""
    partial = out.with_suffix(".partial")
    with weights.open("rb") as source, partial.open("wb") as target:
        length = source.read(8)
        target.write(length + source.read(int.from_bytes(length, "little")))
        while words := source.read(2 * _CHUNK):
            target.write((np.frombuffer(words, np.uint16) & np.uint16(0x7FFF)).data)
    partial.rename(out)


def _quantize(source: Path, folder: Path) -> None:
    """Write a checkpoint's float8 form under its name only when it is whole."""
    weights = source / "model.safetensors"
    with weights.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
        entries.pop("__metadata__")
        header: dict[str, Any] = {}
        for name, entry in entries.items():
            rows, *columns = entry["shape"]
            if ".layers." in name and columns:
                header[name] = ("F8_E4M3", entry["shape"], rows * columns[0])
                grid = [-(-rows // _BLOCK), -(-columns[0] // _BLOCK)]
                header[f"{name}_scale_inv"] = ("F32", grid, 4 * grid[0] * grid[1])
            else:
                header[name] = ("BF16", entry["shape"], 2 * int(np.prod(entry["shape"])))
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / "model.partial"
        with partial.open("wb") as target:
            target.write(_header_bytes(header))
            for name, entry in entries.items():
                begin, end = entry["data_offsets"]
                file.seek(8 + length + begin)
                words = np.frombuffer(file.read(end - begin), np.uint16)
                if f"{name}_scale_inv" in header:
                    codes, scales = _float8_blocks(from_bf16(words).reshape(entry["shape"]))
                    target.write(codes.data)
                    target.write(scales.data)
                else:
                    target.write(words.data)
    for path in source.glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [_BLOCK, _BLOCK]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    partial.rename(folder / "model.safetensors")


def _float8_blocks(values: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Codes and scales of a matrix: a block's largest magnitude is the largest code."""
    rows, columns = values.shape
    down, across = -(-rows // _BLOCK), -(-columns // _BLOCK)
    padded = np.zeros((down * _BLOCK, across * _BLOCK), np.float32)
    padded[:rows, :columns] = np.abs(values)
    scales = padded.reshape(down, _BLOCK, across, _BLOCK).max((1, 3)) / np.float32(448)
    wide = np.repeat(np.repeat(scales, _BLOCK, 0), _BLOCK, 1)[:rows, :columns]
    over = np.clip(values / wide, -448, 448)
    # to nearest even with three bits of mantissa; below 2^-6 the steps are all alike
    _, exponent = np.frexp(over)
    step = np.ldexp(np.float32(1), np.maximum(exponent - 4, -9))
    magnitude = np.abs(np.rint(over / step) * step)
    mantissa, exponent = np.frexp(magnitude)
    normal = (exponent + 6 << 3) + np.rint(mantissa * 16).astype(np.int64) - 8
    code = np.where(magnitude < 2.0**-6, np.rint(magnitude * 512).astype(np.int64), normal)
    return (code | (np.signbit(over) * 128)).astype(np.uint8), scales


def _header_bytes(header: dict[str, Any]) -> bytes:
    """The bytes of a header of (dtype, shape, bytes) by name."""
    entries: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape, size) in header.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _begin(folder: Path, shape: Shape, tensors: Sequence[tuple[str, tuple[int, ...]]]) -> BinaryIO:
    """A checkpoint's configuration and tokenizer, and its weights' file with the header written."""
    folder.mkdir(parents=True)
    for name, content in _companions(shape).items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    file = (folder / "model.safetensors").open("wb")
    file.write(_header(tensors))
    return file


def _header(tensors: Sequence[tuple[str, tuple[int, ...]]], dtype: str = "BF16") -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dimensions in tensors:
        end = position + (4 if dtype == "F32" else 2) * int(np.prod(dimensions))
        entries[name] = {"dtype": dtype, "shape": list(dimensions), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def tensors_of(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as Qwen2.5 has them; the output embedding is tied, so it is not stored."""
    hidden_size, inner = shape.hidden_size, shape.intermediate
    keys = hidden_size // shape.heads * shape.key_value_heads
    yield "model.embed_tokens.weight", (shape.vocabulary, hidden_size)
    yield "model.norm.weight", (hidden_size,)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden_size,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden_size,)
        for name, rows in (("q", hidden_size), ("k", keys), ("v", keys)):
            yield f"{prefix}.self_attn.{name}_proj.weight", (rows, hidden_size)
            yield f"{prefix}.self_attn.{name}_proj.bias", (rows,)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden_size, hidden_size)
        yield f"{prefix}.mlp.gate_proj.weight", (inner, hidden_size)
        yield f"{prefix}.mlp.up_proj.weight", (inner, hidden_size)
        yield f"{prefix}.mlp.down_proj.weight", (hidden_size, inner)


def _companions(shape: Shape) -> dict[str, Any]:
    """Configuration, and a tokenizer of two letters, which mergekit copies like any other."""
    return {
        "config.json": _config(shape),
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": {"!": 0, "a": 1, "b": 2}, "merges": []},
        },
        "tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer"},
    }


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": 32768,
        "max_window_layers": shape.layers,
        "model_type": "qwen2",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.key_value_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocabulary,
    }
