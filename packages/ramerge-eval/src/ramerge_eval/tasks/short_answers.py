"""Compares short answers to questions with gold answers, as SQuAD's evaluation does: normalized texts, and F1.

Source: Rajpurkar et al. 2016, arXiv:1606.05250. HotpotQA, NQ-open and 2WikiMultiHopQA adopted it.
"""

from __future__ import annotations

import re
import string
from collections import Counter

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(text: str) -> str:
    """Return a short answer in lower case, without ASCII punctuation, articles and extra spaces; it may be empty."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def f1(text: str, gold: str) -> float:
    """Return F1 of the words of two normalized short answers; 0 without common words."""
    words, gold_words = text.split(), gold.split()
    common = (Counter(words) & Counter(gold_words)).total()
    return 2 * common / (len(words) + len(gold_words)) if common else 0.0
