"""Short answers to questions, compared with gold ones as the evaluation of SQuAD does: normalized texts, and F1.

Source: Rajpurkar et al. 2016, arXiv:1606.05250. HotpotQA, NQ-open and 2WikiMultiHopQA took it over.
"""

from __future__ import annotations

import re
import string
from collections import Counter

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(text: str) -> str:
    """A short answer in lower case without ASCII punctuation, articles, and outer or double spaces; it may be empty."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def f1(text: str, gold: str) -> float:
    """F1 of the words of two short answers that are normalized already; 0 without any in common."""
    words, gold_words = text.split(), gold.split()
    common = (Counter(words) & Counter(gold_words)).total()
    return 2 * common / (len(words) + len(gold_words)) if common else 0.0
