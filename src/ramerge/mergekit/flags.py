"""Replacements of the flags of mergekit; docs/guides/mergekit.md has the same list."""

from __future__ import annotations

from collections.abc import Mapping

_UNNEEDED = "is not needed here; leave it out"

FLAGS: Mapping[str, str] = {
    "--cuda": f"{_UNNEEDED}: merges run on the CPU, about as fast as files can be read",
    "--lazy-unpickle": f"{_UNNEEDED}: every format is read block by block",
    "--low-cpu-memory": "is --max-memory SIZE here",
    "--allow-crimes": "has no counterpart: architectures cannot be mixed; see `allow` of the recipe",
    "--copy-tokenizer": f"{_UNNEEDED}: tokenizer files are always copied; `companions` of the recipe chooses whose",
    "--out-shard-size": "is --shard-size here, in bytes such as 5GB",
    "--lora-merge-cache": f"{_UNNEEDED}: adapters are applied while they are read",
    "--trust-remote-code": f"{_UNNEEDED}: no code of a model is executed",
    "--random-seed": "is `parameters: {seed: N}` of the recipe here, or the flag --set parameters.seed=N",
    "--num-threads": "is --threads N here",
    "--clone-tensors": f"{_UNNEEDED}",
    "--async-write": f"{_UNNEEDED}: writing always overlaps with computing",
    "--write-threads": f"{_UNNEEDED}: writing always overlaps with computing",
}
