"""Machine code of the common kernels for a wheel: `python scripts/bundle_kernels.py [FOLDER]`.

Small merges and analyses say which kernels are common. They are compiled for each level of processors of this
machine's architecture. That takes 20 minutes of processor time; decision 030 says what it saves.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import llvmlite.binding as llvm
import numpy as np

import ramerge
from ramerge.core.kernels import bundle, native

METHODS = ("ram", "ram+", "task_arithmetic", "linear", "ties")
AGENTS = range(2, 9)
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
SHAPE = (8, 32)


def main(folder: Path, agents: range = AGENTS, methods: tuple[str, ...] = METHODS) -> None:
    """Write the bundles of this machine's architecture into a folder, and say what they weigh."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = {key: source for source in _common(agents, methods) if (key := source.portable_key)}
    for level in bundle.LEVELS:
        if not llvm.get_process_triple().startswith(level.triple[0]):
            continue
        # numba reads them when it is imported, so each level has processes of its own
        os.environ |= {"NUMBA_CPU_NAME": level.processor, "NUMBA_CPU_FEATURES": ",".join(level.features)}
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            codes = dict(zip(sources, pool.map(_code, sources.values()), strict=True))
        path = folder / f"{level.name}.zip"
        bundle.write(path, {key: code for key, code in codes.items() if code})
        print(f"{path}: {len(codes)} kernels, {path.stat().st_size:,} bytes", flush=True)


def _code(source: native.KernelSource) -> bytes | None:
    return native.compile_source(source)[1]


def _common(agents: range, methods: tuple[str, ...]) -> Iterator[native.KernelSource]:
    """The kernels that merges and analyses of every common dtype and number of agents load."""
    options = ramerge.Options(cache=False, overwrite=True)
    with TemporaryDirectory() as name:
        place = Path(name)
        for dtype in DTYPES:
            models = [_model(place / dtype / str(seed), dtype, seed) for seed in range(agents.stop)]
            for count in agents:
                named = {f"a{index}": str(model) for index, model in enumerate(models[1 : count + 1])}
                recipes = [ramerge.Recipe(base=str(models[0]), agents=named, method=method) for method in methods]
                for recipe in recipes:
                    ramerge.merge(recipe, str(place / "merged"), options=options)
                ramerge.analyze(recipes[0], options=options)
    for source in native.loaded_sources():
        yield replace(source, scope=dict(source.scope))  # the default cannot be sent to another process


def _model(folder: Path, dtype: str, seed: int) -> Path:
    """A checkpoint of two tensors, which agents of other seeds have changed in places."""
    folder.mkdir(parents=True)
    word = np.uint32 if dtype == "F32" else np.uint16
    one = {"BF16": 0x3F80, "F16": 0x3C00, "F32": 0x3F800000}[dtype]
    values = np.full((2, *SHAPE), one, word)
    values[np.random.default_rng(seed).random(values.shape) < 0.2] += seed
    size = values.nbytes // 2
    header = {
        f"model.layers.{index}.mlp.up_proj.weight": {
            "dtype": dtype,
            "shape": SHAPE,
            "data_offsets": [index * size, (index + 1) * size],
        }
        for index in range(2)
    }
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + values.tobytes())
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "torch_dtype": DTYPES[dtype]}))
    return folder


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else bundle.FOLDER)
