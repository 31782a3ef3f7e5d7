"""Codes and scales: the same numbers whatever block is asked for, in the memory that was said."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ramerge.core.formats.open import open_checkpoint
from ramerge.core.tensors.arena import Arena
from ramerge.core.tensors.reader import Files, Reader
from ramerge.core.tensors.scaled import scaling_unit, scratch_of, writable_scaling
from tests.checkpoints import write_checkpoint
from tests.formats.quantized import SAMPLES, quantize_model, write_quantized
from tests.reference import Stored, encode


@pytest.mark.parametrize("sample", list(SAMPLES))
def test_blocks_stay_within_stated_memory(sample: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = [(3, 64, 33)] if sample == "gpt-oss" else [(33, 64), (1, 32), (3, 17, 64)]
    if sample in ("fp8 tensors", "compressed tensors", "fbgemm rows"):
        shapes.pop()  # not written, or in another way
    tensors = {f"w{place}.weight": encode(rng.normal(0, 1, shape), "F32") for place, shape in enumerate(shapes)}
    checkpoint = open_checkpoint(write_quantized(tmp_path / "m", sample, tensors))
    wanted = quantize_model(sample, tensors)[1]
    assert checkpoint.tensors.keys() == wanted.keys()
    with Files() as files:
        for name, tensor in checkpoint.tensors.items():
            assert tensor.encoding and tensor.dtype == "F32" and tensor.shape == wanted[name].bits.shape
            size = tensor.elements
            for start, stop in [(0, size), (0, 0), *np.sort(rng.integers(0, size + 1, (40, 2))).tolist()]:
                reader = Reader(files, Arena(tensor.scratch(stop - start)))
                out = np.full(4 * (stop - start), 0xAB, np.uint8)
                reader.read(tensor, start, stop, out)
                assert reader.arena.excess_count == 0
                assert np.array_equal(out.view(np.uint32), wanted[name].bits.reshape(-1)[start:stop])


def test_experts_of_llama_4_have_scales_of_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = ("experts.gate_up_proj", "experts.down_proj")
    codes = {name: rng.integers(0, 0x78, (2, 6, 10), dtype=np.uint8) for name in names}
    scales = rng.uniform(0.1, 1, (2, 1, 10)).astype(np.float32)
    stored = {name: Stored("F8_E4M3", array) for name, array in codes.items()}
    stored["experts.gate_up_proj_scale"] = Stored("F32", scales.view(np.uint32))
    stored["experts.down_proj_scale"] = Stored("F32", scales.reshape(2, 10, 1).view(np.uint32))
    write_checkpoint(tmp_path / "m", stored, config={"quantization_config": {"quant_method": "fbgemm_fp8"}})
    checkpoint = open_checkpoint(tmp_path / "m")
    for name, array in codes.items():
        out = np.empty(4 * array.size, np.uint8)
        with Files() as files:
            Reader(files).read(checkpoint.tensors[name], 0, array.size, out)
        wanted = array.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales
        assert np.array_equal(out.view(np.float32), wanted.reshape(-1))


def test_units_are_whole_rows_of_blocks(tmp_path: Path) -> None:
    shapes = {"flat": (50, 40), "even": (2, 32, 40), "ragged": (2, 50, 40), "small": (10, 40)}
    tensors = {f"{name}.weight": encode(np.ones(shape), "F32") for name, shape in shapes.items()}
    checkpoint = open_checkpoint(write_quantized(tmp_path / "m", "fp8 blocks", tensors))
    units = {}
    for name, tensor in checkpoint.tensors.items():
        origin = writable_scaling(tensor)
        assert origin is not None
        units[name.removesuffix(".weight")] = scaling_unit(origin)
        assert scratch_of(origin, tensor.elements) > 2 * tensor.elements
    assert units == {"flat": 16 * 40, "even": 16 * 40, "ragged": 50 * 40, "small": 10 * 40}
