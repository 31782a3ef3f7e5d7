"""`CalibrationSettings`, which commands and searches share; `CalibrationRecord`, the content of `calibration.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ramerge.core.foundation.settings import parse_size
from ramerge.core.options import DEVICE
from ramerge.sdk.options import about, documented
from ramerge.sdk.text import Displayed, dumped, quoted

DTYPES = ("float32", "bfloat16", "float16", "float64")
GATHERABLE = ("inputs", "importance", "all", "replies")


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
        metadata=about("--prompt-count", "prompts", "Number of prompts to draw for each agent.", "N", kind=int),
    )
    rows: int = field(
        default=256,
        metadata=about("--rows", "prompts", "Record the layer inputs of up to N tokens per agent.", "N", kind=int),
    )
    gather: Literal["inputs", "importance", "all", "replies"] = field(
        default="inputs",
        metadata=about(
            "--gather",
            "prompts",
            "Statistics to gather besides replies: inputs (for regmean and aim), importance (for fisher), all (both), "
            "or replies (none).",
            choices=GATHERABLE,
        ),
    )
    record: Literal["both", "prompt"] = field(
        default="both",
        metadata=about(
            "--record",
            "prompts",
            "Record layer inputs at the tokens of prompts and replies, or of prompts only.",
            choices=("both", "prompt"),
        ),
    )
    source: Literal["agents", "base"] = field(
        default="agents",
        metadata=about(
            "--source",
            "prompts",
            "Record the layer inputs of each agent, or of the base on the same text.",
            choices=("agents", "base"),
        ),
    )
    hold_out: bool = field(
        default=False,
        metadata=about(
            "--hold-out",
            "prompts",
            "Record inputs on half of the prompts, and keep the other half to score merges, as a search always does.",
        ),
    )
    max_new: int = field(
        default=256,
        metadata=about(
            "--max-new",
            "prompts",
            "Maximum number of tokens in a generated reply.",
            "N",
            kind=int,
        ),
    )
    temperature: float = field(
        default=0.0,
        metadata=about(
            "--temperature",
            "prompts",
            "Sampling temperature of agents' replies; 0: greedy.",
            "T",
            kind=float,
        ),
    )
    reply_seed: int = field(
        default=0,
        metadata=about("--reply-seed", "prompts", "Seed of sampled replies.", "N", kind=int),
    )
    reward: str = field(
        default="",
        metadata=about(
            "--reward",
            "prompts",
            "Reward function in verl's form, file.py:compute_score, for replies without a reward.",
            "FUNCTION",
        ),
    )
    right_at: float | None = field(
        default=None,
        metadata=about(
            "--right-at",
            "prompts",
            "Minimum reward of a right reply; default: the highest in the data. Scores use only right replies.",
            "REWARD",
            kind=float,
        ),
    )
    device: str = field(default="auto", metadata=DEVICE)
    device_memory: str = field(
        default="",
        metadata=about(
            "--device-memory",
            "run",
            "Memory for weights on the device, such as 10GB; the other weights stay in main memory, and are copied "
            "layer "
            "by layer. Default: 80 % of the free GPU memory.",
            "SIZE",
        ),
    )
    dtype: str = field(
        default="auto",
        metadata=about(
            "--model-dtype", "run", "Dtype in which models run; auto: float32 on a CPU, otherwise bfloat16.", "DTYPE"
        ),
    )
    batch: int = field(default=8, metadata=about("--batch", "run", "Batch size for prompts.", "N", kind=int))
    prompt_seed: int = field(
        default=0,
        metadata=about("--prompt-seed", "prompts", "Seed for drawing prompts and tokens.", "N", kind=int),
    )

    def result_settings(self) -> dict[str, Any]:
        """Return the settings that affect results, by name."""
        return {key: value for key, value in asdict(self).items() if key not in ("device", "device_memory", "batch")}

    def gathers(self, what: str) -> bool:
        """Whether to gather `what`: recorded inputs or importances."""
        return self.gather in (what, "all")

    def problems(self) -> list[str]:
        """Return the problems of these settings, as sentences."""
        problems = [
            f"{name}: {quoted(value)} must be a whole number of at least {least}"
            for name, value, least in (
                ("count", self.count, 2 if self.hold_out else 1),
                ("rows", self.rows, 1),
                ("max_new", self.max_new, 1),
                ("batch", self.batch, 1),
                ("prompt_seed", self.prompt_seed, 0),
                ("reply_seed", self.reply_seed, 0),
            )
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63
        ]
        if self.right_at is not None and not math.isfinite(self.right_at):
            problems.append(f"right_at: {self.right_at!r} must be a finite number")
        try:
            parse_size(self.device_memory or "1GB")
        except ValueError as error:
            problems.append(f"device_memory: {error}")
        if not 0 <= self.temperature < math.inf:
            problems.append(f"temperature: {self.temperature!r} must be a finite number of at least 0")
        problems += [
            f"{name}: {value!r} must be one of {', '.join(values)}"
            for name, value, values in (
                ("gather", self.gather, GATHERABLE),
                ("record", self.record, ("both", "prompt")),
                ("source", self.source, ("agents", "base")),
                ("dtype", self.dtype, ("auto", *DTYPES)),
            )
            if value not in values
        ]
        return problems


@dataclass(frozen=True, kw_only=True, repr=False)
class CalibrationRecord(Displayed):
    """Record of the calibration of one agent.

    Attributes:
        ramerge_version: the version that wrote the record.
        agent: the agent's name.
        fingerprint: the digest of model, prompts and settings.
        prompts: the number of prompts.
        held_out: the number of prompts that no statistic uses.
        generated: the number of replies that the agent generated; the others came with the prompts.
        rewarded: the number of replies with a reward.
        tokens: the number of tokens of all prompts and replies.
        rows: the number of tokens whose inputs are recorded; 0 if none are.
        layers: the number of weights whose inputs are recorded.
        importances: the number of tensors whose importances are estimated; 0 if none are.
        device: the device on which the model ran, with the name of a GPU.
        dtype: the dtype in which the model computed.
        seconds: wall time.
        notes: remarks for the user.
        digests: SHA-256 of the files, by name, to detect damage.

    Example:
        >>> record = ramerge.calibrate("base", {"code": "coder"}, {"code": "c.jsonl"}, "out")["code"]  # doctest: +SKIP
        >>> record.rows  # doctest: +SKIP
        256
    """

    ramerge_version: str
    agent: str
    fingerprint: str
    prompts: int
    held_out: int
    generated: int
    rewarded: int
    tokens: int
    rows: int
    layers: int
    importances: int
    device: str
    dtype: str
    seconds: float
    notes: tuple[str, ...]
    digests: Mapping[str, str] = field(default_factory=dict)

    def _summary(self) -> Mapping[str, object]:
        names = ("agent", "prompts", "rewarded", "tokens", "rows", "importances", "device", "dtype")
        return {name: getattr(self, name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values, as in `calibration.json`."""
        return vars(self) | {"notes": list(self.notes)}

    def to_json(self) -> str:
        """Return the text of `calibration.json`."""
        return dumped(self.to_dict())
