"""The settings of an estimate, and what it did: the content of `fisher.json`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from ramerge.foundation.jsontext import dumped
from ramerge.options import about, documented

LABELS = ("given", "sampled")
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, kw_only=True)
class FisherSettings:
    """What an estimate of the Fisher information depends on.

    The labels of an example are the tokens of the completion given the prompt (`prompt` with `completion`, `messages`
    that end with the assistant's), or, where there is only a prompt or a `text`, all of its tokens, each given those
    before it; a first token that has none before it is no label. Prompt and completion are tokenized each by itself,
    the prompt with the special tokens that the tokenizer puts in front. An end-of-sequence token counts where the
    completion or the chat template has it; none is added, and what a template writes behind it does not count.

    Attributes:
        examples: how many lines of the data to use; all, with a note in the record, if there are fewer.
        labels: `given` takes the labels as they stand in the data: the empirical Fisher. `sampled` draws every label
            from the model's own distribution at its position, while the tokens that the model reads stay those of the
            data (one forward pass a line): the true Fisher, with contexts from the data.
        max_length: in tokens, at least 2; never more than the model has positions for. A longer sequence loses the left
            of its prompt, except a beginning-of-sequence token; at least one token of the prompt stays, and a
            completion or text that does not fit with it loses its right.
        device: `auto` (cuda, else mps, else cpu), or a device as torch names it.
        dtype: what the model computes in: `float32` (the default on every device), `bfloat16`, `float16`, `float64`.
        seed: of the sampled labels.

    Example:
        >>> ramerge.FisherSettings(examples=64, labels="sampled").device
        'auto'
    """

    examples: int = 256
    labels: Literal["given", "sampled"] = "given"
    max_length: int = 1024
    device: str = "auto"
    dtype: str = "float32"
    seed: int = 0

    def problems(self) -> list[str]:
        """What is wrong with them."""
        found = [
            f"{name}: {value!r} must be an integer of at least {least}{why}, and of 63 bits"
            for name, value, least, why in (
                ("examples", self.examples, 1, ""),
                ("max_length", self.max_length, 2, " (a token of context and a label)"),
                ("seed", self.seed, 0, ""),
            )
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63
        ]
        found += [
            f"{name}: {value!r} must be one of {', '.join(known)}"
            for name, value, known in (("labels", self.labels, LABELS), ("dtype", self.dtype, DTYPES))
            if value not in known
        ]
        if not isinstance(self.device, str):
            found.append(f"device: {self.device!r} must be text, such as auto or cpu")
        return found


@dataclass(frozen=True)
class ExampleResult:
    """What the worker did.

    Attributes:
        device: where it ran, with the name of a GPU.
        tokens: labels, over all examples.
        truncated: examples that were longer than `max_length`.
        mean_log_likelihood: of a label, in nats, under the model; of sampled labels where they were sampled.
        notes: what the user should know.
        torch, transformers: versions.
    """

    device: str
    tokens: int
    truncated: int
    mean_log_likelihood: float
    notes: tuple[str, ...]
    torch: str
    transformers: str


@dataclass(frozen=True)
class FisherRecord:
    """What an estimate did; `seconds` is wall time.

    Attributes:
        model, data: as they were given.
        examples: lines that were used.
        examples_requested: lines that were requested.
        max_length: in tokens, as it was used.
        device: where it ran, with the name of a GPU.
        dtype: what the model computed in; the Fisher is float32.
        tokens: labels, over all examples.
        truncated: examples that were longer than `max_length`.
        mean_log_likelihood: of a label, in nats, under the model; of sampled labels where they were sampled.
        tensors: tensors of the output.
        notes: what the user should know.

    Example:
        >>> record = ramerge.fisher("coder", "examples.jsonl", "coder-fisher")  # doctest: +SKIP
        >>> record.tokens  # doctest: +SKIP
        812
    """

    ramerge_version: str
    model: str
    data: str
    examples: int
    examples_requested: int
    labels: str
    max_length: int
    device: str
    dtype: str
    seed: int
    tokens: int
    truncated: int
    mean_log_likelihood: float
    tensors: int
    seconds: float
    notes: tuple[str, ...]
    torch: str
    transformers: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in `fisher.json`."""
        return vars(self) | {"notes": list(self.notes)}

    def to_json(self) -> str:
        """`fisher.json`."""
        return dumped(self.to_dict())


@documented
@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """Settings of a calibration: prompts, recorded tokens, replies, and where the model runs.

    Example:
        >>> ramerge.CalibrationSettings(count=16).rows
        256
    """

    count: int = field(
        default=32,
        metadata=about("--prompt-count", "prompts", "Prompts of each agent that are drawn, by seed.", "N", kind=int),
    )
    rows: int = field(
        default=256,
        metadata=about(
            "--rows", "prompts", "Tokens of each agent whose inputs are recorded at most, drawn by seed.", "N", kind=int
        ),
    )
    record: Literal["both", "prompt"] = field(
        default="both",
        metadata=about(
            "--record",
            "prompts",
            "Whose inputs are recorded: of the tokens of prompts and replies, or of prompts alone.",
            "both|prompt",
            choices=("both", "prompt"),
        ),
    )
    source: Literal["agents", "base"] = field(
        default="agents",
        metadata=about(
            "--source",
            "prompts",
            "Which model's inputs are recorded: each agent's own, or the base's on the same text.",
            "agents|base",
            choices=("agents", "base"),
        ),
    )
    hold_out: bool = field(
        default=False,
        metadata=about(
            "--hold-out",
            "prompts",
            "Record inputs on half of the prompts, so that merges can be scored on the others; a search always does.",
        ),
    )
    max_new: int = field(
        default=256,
        metadata=about(
            "--max-new",
            "prompts",
            "Tokens of a reply at most, where prompts come without replies and the agent is asked.",
            "N",
            kind=int,
        ),
    )
    reward: str = field(
        default="",
        metadata=about(
            "--reward",
            "prompts",
            "A reward function in verl's form, file.py:compute_score, for replies without a reward.",
            "FUNCTION",
        ),
    )
    right_at: float | None = field(
        default=None,
        metadata=about(
            "--right-at",
            "prompts",
            "The least reward of a right reply; only these count for agreement. Default: the best of any agent.",
            "REWARD",
            kind=float,
        ),
    )
    device: str = field(
        default="auto",
        metadata=about("--device", "run", "Where the model runs: cpu, cuda, cuda:N, mps, or auto.", "DEVICE"),
    )
    dtype: str = field(
        default="auto",
        metadata=about(
            "--model-dtype", "run", "What the model computes in; auto: float32 on a CPU, else bfloat16.", "DTYPE"
        ),
    )
    batch: int = field(default=8, metadata=about("--batch", "run", "Prompts that are asked at once.", "N", kind=int))
    prompt_seed: int = field(
        default=0,
        metadata=about("--prompt-seed", "prompts", "Seed of which prompts and tokens are drawn.", "N", kind=int),
    )

    def problems(self) -> list[str]:
        """What is wrong with them."""
        found = [
            f"{name}: {value!r} must be a whole number of at least {least}"
            for name, value, least in (
                ("count", self.count, 2 if self.hold_out else 1),
                ("rows", self.rows, 1),
                ("max_new", self.max_new, 1),
                ("batch", self.batch, 1),
                ("prompt_seed", self.prompt_seed, 0),
            )
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63
        ]
        if self.right_at is not None and not math.isfinite(self.right_at):
            found.append(f"right_at: {self.right_at!r} must be a finite number")
        found += [
            f"{name}: {value!r} must be one of {', '.join(values)}"
            for name, value, values in (
                ("record", self.record, ("both", "prompt")),
                ("source", self.source, ("agents", "base")),
                ("dtype", self.dtype, ("auto", *DTYPES)),
            )
            if value not in values
        ]
        return found


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord:
    """Record of a calibration of one agent.

    Attributes:
        agent: its name.
        model: a digest of samples of its weights, by which a merge knows it again.
        fingerprint: of model, prompts and settings.
        prompts: how many there are.
        held_out: prompts that no statistic has seen.
        generated: replies that the agent was asked for; the others came with the prompts.
        rewarded: replies with a reward.
        tokens: of all prompts and replies.
        rows: tokens whose inputs are recorded.
        layers: weights whose inputs are recorded.
        device: where it ran, with the name of a GPU.
        dtype: what the model computed in.
        seconds: wall time.
        notes: what the user should know.

    Example:
        >>> record = ramerge.calibrate("base", {"code": "coder"}, {"code": "c.jsonl"}, "out")["code"]  # doctest: +SKIP
        >>> record.rows  # doctest: +SKIP
        256
    """

    ramerge_version: str
    agent: str
    model: str
    fingerprint: str
    prompts: int
    held_out: int
    generated: int
    rewarded: int
    tokens: int
    rows: int
    layers: int
    device: str
    dtype: str
    seconds: float
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in `calibration.json`."""
        return vars(self) | {"notes": list(self.notes)}

    def to_json(self) -> str:
        """`calibration.json`."""
        return dumped(self.to_dict())
