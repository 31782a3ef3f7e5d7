"""Short answers to questions: how benchmarks of reading and search compare them.

Source: the evaluation of SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250), which HotpotQA, NQ-open and
2WikiMultiHopQA took over.
"""

from __future__ import annotations

import re
import string
from collections import Counter

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(text: str) -> str:
    """Lower case without ASCII punctuation, articles, and outer or double spaces. It may leave nothing."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall over the words of both, which are normalized already; 0 without any."""
    answered, expected = answer.split(), gold.split()
    common = (Counter(answered) & Counter(expected)).total()
    return 2 * common / (len(answered) + len(expected)) if common else 0.0
