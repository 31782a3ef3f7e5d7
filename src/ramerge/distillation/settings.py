"""`HandoffSettings`: the choice of prompts, declared once for API, options of the command and reference."""

from __future__ import annotations

from dataclasses import dataclass, field

from ramerge import RecipeError
from ramerge.sdk.options import about, documented
from ramerge.sdk.text import quoted


@documented
@dataclass(frozen=True, kw_only=True)
class HandoffSettings:
    """Settings of a handoff: its prompts, and the length of the student's replies.

    Raises:
        RecipeError: a value is impossible.

    Example:
        >>> ramerge.HandoffSettings(hold_out=32).max_new
        1024
    """

    hardest: int | None = field(
        default=None,
        metadata=about(
            "--hardest",
            "prompts",
            "Keep the N hardest prompts of each agent: those where the merge is least likely to give the agent's "
            "reply. MERGED must be a search with prompts.",
            "N",
            kind=int,
        ),
    )
    hold_out: int = field(
        default=0,
        metadata=about(
            "--hold-out",
            "prompts",
            "Write N prompts of each agent to OUT/held_out.jsonl, to score the student with, and train on the others.",
            "N",
            kind=int,
        ),
    )
    max_new: int = field(
        default=1024,
        metadata=about("--max-new", "output", "Maximum number of tokens in a reply.", "N", kind=int),
    )

    def __post_init__(self) -> None:
        hardest = 1 if self.hardest is None else self.hardest
        checks = (("hardest", hardest, 1), ("hold_out", self.hold_out, 0), ("max_new", self.max_new, 1))
        if wrong := [
            f"{name}: must be a whole number of at least {least}, not {quoted(value)}"
            for name, value, least in checks
            if not isinstance(value, int) or isinstance(value, bool) or value < least
        ]:
            raise RecipeError(wrong)
