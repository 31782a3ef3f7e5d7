"""Parts of `config.json` for parts of a model: a text model may be the whole model, or a part of a larger one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

Config = Mapping[str, object]

# Keys under which larger models have the configuration of their text model; a thinker contains another text model.
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")
# Keys of mappings that do not describe a part of the model.
_NO_PART = re.compile(r"(quantization|compression|sparsity|generation|attn|ffn|rope|router|moe)_config")
# Keys of older configurations for towers, without a mapping for each part.
_OF_TOWERS = re.compile(r"(mm_)?(vision|visual|audio|img|image|speech)(_\w+)?|embd_layer")
_OF_MODELS = ("model_type", "hidden_size", "embed_dim", "depth", "num_hidden_layers")


def text_configs(config: Config) -> list[Config]:
    """The configuration itself, and the configurations of text models nested in it; the innermost is last."""
    configs: list[Config] = []
    inner: Config | None = config
    while inner is not None:
        configs.append(inner)
        inner = next((part for key in _TEXT if isinstance(part := inner.get(key), Mapping)), None)
    return configs


def part_configs(config: Config) -> dict[str, Config]:
    """The configurations of a model's parts, by key; empty for a model that is only a text model."""
    return {
        key: value
        for key, value in config.items()
        if key.endswith("_config") and isinstance(value, Mapping) and not _NO_PART.fullmatch(key)
        if any(name in value for name in _OF_MODELS)
    }


def has_more_than_text(config: Config) -> bool:
    """Whether the model has or may have other parts than text, such as towers; true for an empty configuration."""
    return not config or bool(part_configs(config)) or any(_OF_TOWERS.fullmatch(key) for key in config)


def _nested_configs(config: Config, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Config]]:
    """Yield the configuration itself and those of all nested parts, each with the path of keys to it."""
    yield path, config
    for key, part in part_configs(config).items():
        yield from _nested_configs(part, (*path, key))


def path_to(config: Config, kind: object) -> tuple[str, ...]:
    """The path of keys to the part with this `model_type`; empty if it is the whole model, or if there is none."""
    return next((path for path, part in _nested_configs(config) if kind and part.get("model_type") == kind), ())


def map_text(config: Config, change: Callable[[Config], Config]) -> dict[str, object]:
    """Apply `change` to a configuration, and to the configurations of text models nested in it."""
    result = dict(change(config))
    return result | {key: map_text(part, change) for key in _TEXT if isinstance(part := result.get(key), Mapping)}


def set_vocabulary(config: dict[str, object], rows: int) -> None:
    """Set `vocab_size` in a configuration and in those of its text models, if they have it."""
    config |= map_text(config, lambda part: {**part, "vocab_size": rows} if "vocab_size" in part else part)
