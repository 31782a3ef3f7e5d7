"""Answers in replies, and how they are scored: MemAgent's `taskutils/memory_eval/utils/__init__.py`."""

from __future__ import annotations

import re

from ramerge.evaluation.answers import f1, normalised

METRICS = ("sub_em", "em", "f1")

_SAYS = "the answer is"
_MARKERS = ("<｜Assistant｜>", "<｜end▁of▁sentence｜>")
_CLOSED = ("yes", "no", "noanswer")


def after_thinking(reply: str) -> str:
    """What comes after the last `</think>`; the whole reply where there is none."""
    return reply.rsplit("</think>", 1)[1].strip() if "</think>" in reply else reply


def answer(reply: str, form: str) -> str | None:
    """The answer that a reply gives, or None.

    Args:
        form: `sentence` for the text after the last "the answer is" (in lower case), without asterisks and outer full
            stops; `boxed` for what the last `\\boxed{}` holds.
    """
    text = reply.strip()
    text = after_thinking(text) or text
    return _boxed(text) if form == "boxed" else _sentence(text)


def score(prediction: str, gold: str, *, original_quirks: bool) -> dict[str, float]:
    """Each of `METRICS` from 0 to 1.

    Both texts are normalised: lower case, without ASCII punctuation, articles and outer or double spaces. `sub_em` is 1
    where one of the two holds the other; `em` where they are equal; `f1` is that of their words, 0 where only one is
    yes or no.

    Args:
        original_quirks: every text holds a prediction or gold answer that normalising leaves empty, as in the original.
            Otherwise such a pair is right only where the two are equal without case.
    """
    said, wanted = normalised(prediction), normalised(gold)
    if not (said and wanted) and not original_quirks:
        return dict.fromkeys(METRICS, float(prediction.strip().lower() == gold.strip().lower()))
    return {"sub_em": float(wanted in said or said in wanted), "em": float(said == wanted), "f1": _f1(said, wanted)}


def _f1(said: str, wanted: str) -> float:
    if said != wanted and (said in _CLOSED or wanted in _CLOSED):
        return 0.0
    return f1(said, wanted)


def _sentence(text: str) -> str | None:
    text = text.replace("*", "")
    if _SAYS not in text:
        return None
    found = text.rsplit(_SAYS, 1)[1].strip()
    for marker in _MARKERS:
        found = found.replace(marker, "")
    return found.strip().strip(".").strip()


def _boxed(text: str) -> str | None:
    if "\\boxed " in text:
        return text.rsplit("\\boxed ", 1)[1].split("$")[0]
    _, found, rest = text.rpartition("\\boxed")
    if not found or not rest.startswith("{"):
        return None
    depth = 0
    for brace in re.finditer(r"[{}]", rest):
        depth += 1 if brace.group() == "{" else -1
        if not depth:
            return rest[1 : brace.start()]
    return None
