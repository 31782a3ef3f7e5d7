"""Turns the codes and scales of a folder into dequantized tensors, without reading weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from shlex import quote

from ramerge.core.formats.encodings import compressed, fbgemm, fp8, modelopt, mxfp4
from ramerge.core.formats.encodings.encoding import FLOAT8, Decoding, Encoding
from ramerge.core.formats.files import read_json
from ramerge.core.foundation.dtypes import FROM_FULL_NAME, full_dtype
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.text import brief, quoted
from ramerge.core.storage.location import Location
from ramerge.core.tensors.checkpoint import Contents, Quantized
from ramerge.core.tensors.text_config import map_text, text_configs

ENCODINGS: tuple[Encoding, ...] = (
    fp8.ENCODING,
    compressed.ENCODING,
    modelopt.ENCODING,
    mxfp4.ENCODING,
    fbgemm.ENCODING,
)
"""All encodings. To add one, write a file and add its row here."""

KEYS = ("quantization_config", "compression_config")
"""Keys of `config.json` that declare a quantization."""

OF_MODELOPT = "hf_quant_config.json"
"""Another file in which ModelOpt declares a quantization."""

ADVICE = "merge the unquantized checkpoints and quantize the result"
# Endings of names that occur only in quantized checkpoints: codes that are not decoded, and scales.
_PACKED_NAMES = re.compile(r"\.(qweight|qzeros|g_idx|absmax|quant_map|weight_packed|SCB)$")
_SCALES = re.compile(r"(_scale_inv|\bweight_scale|\bweight_global_scale|_blocks|_scales)$")
# Scales of activations, caches and outputs, which are not weights, but belong to the quantized checkpoint.
_OF_ACTIVATIONS = re.compile(
    r"\.(input|activation|output|q|k|v|kv)_(scale|global_scale|zero_point)(_ub)?$|_proj_(input|activation)_scale$"
)


def _method_of(quantization: Mapping[str, object]) -> str:
    """Return the name of a declared quantization, such as `gptq` or `fp8`."""
    method = brief(str(quantization.get("quant_method", quantization.get("format", "unknown method"))), 100)
    return "modelopt" if method.startswith("modelopt_") else method


def without_declaration(config: Mapping[str, object]) -> dict[str, object]:
    """Return a configuration without its declaration of quantization."""
    return map_text(config, lambda part: {key: value for key, value in part.items() if key not in KEYS})


def decode(directory: Location, contents: Contents, *, ignore: bool) -> tuple[Contents, Quantized | None]:
    """Return the contents with dequantized tensors, and the quantization; None if nothing is quantized.

    Args:
        directory: the folder, for messages.
        contents: the folder's contents.
        ignore: whether the configuration may declare an unknown quantization, or one that the tensors do not have.
    """
    # MLX packs codes into 32-bit words, with scales next to them
    words = (name for name, tensor in contents.tensors.items() if tensor.dtype == "U32" and name.endswith(".weight"))
    of_mlx = (name for name in words if f"{name.removesuffix('weight')}scales" in contents.tensors)
    if not ignore and (name := next(of_mlx, None)):
        command = f"mlx_lm.convert --hf-path {quote(str(directory))} --mlx-path OUT --dequantize"
        raise CheckpointError(
            f"{directory}: is quantized by MLX ({quoted(name)} and others), which cannot be merged; {ADVICE}, "
            f"or if there are no others, dequantize it, which leaves its rounding: {command}"
        )
    if not ignore and (name := _find_deepseek_v4_tensor(contents)):
        raise CheckpointError(
            f"{directory}: is quantized as DeepSeek V4 is, float4 in int8 next to float8, with scales named .scale "
            f"({quoted(name)} and others), which is not read; convert it to bfloat16 with DeepSeek's own script, or "
            f"{ADVICE}"
        )
    config = _declared_quantization(contents)
    method = _method_of(config) if config is not None else ""
    encoding = next((each for each in ENCODINGS if each.method == method), None)
    if config is None or encoding is None:
        packed_suffixes = sorted({match[1] for name in contents.tensors if (match := _PACKED_NAMES.search(name))})
        if (config is not None or packed_suffixes) and not ignore:
            what = method or f"tensors named {', '.join(packed_suffixes)}"
            keep = "allow: {config: [quantization_config]} keeps them for adapters that change none of them"
            raise CheckpointError(f"{directory}: quantized weights ({what}) cannot be merged; {ADVICE} ({keep})")
        return contents, None
    decoding = Decoding(contents.tensors, config, stated_dtype(contents.config) or "BF16")
    encoding.decode(decoding)
    if not decoding.problems and not decoding.tensors:
        if ignore:
            return contents, None
        text = f"config.json declares quantized weights ({method}), but no tensor is quantized; remove the declaration"
        decoding.problems.append(text)
    _check_rest(decoding)
    if decoding.problems:
        raise CheckpointError(
            f"{directory}: {text}" if text.startswith("config.json") else text for text in decoding.problems
        )
    return _decode_contents(contents, decoding, encoding, config)


def _find_deepseek_v4_tensor(contents: Contents) -> str | None:
    """Return the name of the first int8 tensor that has power-of-two scales named `.scale`; None if there is none."""
    tensors = contents.tensors
    for name, tensor in tensors.items():
        scale = tensors.get(f"{name.removesuffix('weight')}scale") if name.endswith(".weight") else None
        if tensor.dtype == "I8" and scale is not None and scale.dtype == "F8_E8M0":
            return name
    return None


def _declared_quantization(contents: Contents) -> Mapping[str, object] | None:
    """Return the quantization that `config.json`, its part about the text model, or ModelOpt's own file declares."""
    candidates = (part.get(key) for part in text_configs(contents.config) for key in KEYS)
    declaration = next((each for each in candidates if isinstance(each, Mapping)), None)
    if declaration is None and any(tensor.dtype in ("U8", *FLOAT8) for tensor in contents.tensors.values()):
        path = contents.metadata_folder / OF_MODELOPT
        declaration = read_json(path) if path.exists() else None
    inner = declaration.get("quantization") if declaration is not None else None
    return {"quant_method": "modelopt", **inner} if isinstance(inner, Mapping) else declaration


def _check_rest(decoding: Decoding) -> None:
    """Report tensors that are stored twice and, if there are no problems at all, codes and scales that are unused."""
    for tensor in decoding.tensors.values():
        if tensor.name in decoding.encoded_tensors and tensor.name not in decoding.tensors:
            decoding.problem(decoding.encoded_tensors[tensor.name], "is stored both quantized and as it is")
    if decoding.problems:
        return
    for name, tensor in decoding.encoded_tensors.items():
        is_left = name not in decoding.tensors and name not in decoding.hidden_names
        if is_left and (_SCALES.search(name) or _PACKED_NAMES.search(name)):
            decoding.problem(tensor, "belongs to no known quantized tensor")


def _decode_contents(
    contents: Contents, decoding: Decoding, encoding: Encoding, config: Mapping[str, object]
) -> tuple[Contents, Quantized]:
    extras = {
        name: tensor
        for name, tensor in decoding.encoded_tensors.items()
        if name not in decoding.hidden_names and _OF_ACTIVATIONS.search(name)
    }
    extra_names = decoding.hidden_names | extras.keys()

    def names(encoded_names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            decoding.tensors.get(name, decoding.encoded_tensors[name]).name
            for name in encoded_names
            if name not in extra_names
        )

    shards = {shard: names(names_of_shard) for shard, names_of_shard in contents.shards.items()}
    tensors = [
        decoding.tensors.get(name, tensor) for name, tensor in contents.tensors.items() if name not in extra_names
    ]
    title = brief(encoding.title(config), 200)
    note = f"{len(decoding.tensors):,} quantized tensors ({title}) are dequantized as they are read, in float32"
    if extras:
        note += (
            f"; {len(extras):,} scales of activations and caches, such as {quoted(next(iter(extras)))}, are not merged"
        )
    result = replace(
        contents,
        tensors={tensor.name: tensor for tensor in tensors},
        shards={shard: shard_names for shard, shard_names in shards.items() if shard_names},
        config=without_declaration(contents.config),
        notes=(*contents.notes, note),
    )
    names_of_decoded = frozenset(tensor.name for tensor in decoding.tensors.values())
    return result, Quantized(title, names_of_decoded, decoding.dtype, extras, contents.shards)


def stated_dtype(config: Mapping[str, object]) -> str | None:
    """Return safetensors' name of the dtype that a configuration states for weights before quantization."""
    for part in text_configs(config):
        for key in ("dtype", "torch_dtype"):
            name = full_dtype(part.get(key))
            if isinstance(name, str) and name in FROM_FULL_NAME:
                return FROM_FULL_NAME[name]
    return None
