"""Write scripts/verb_forms.txt, which check_words.py reads: `pip install lemminflect wordfreq`, then run this file.

Its words are the participles, pasts and third persons among the 20,000 most frequent words of English that are not
nouns as well, by the SPECIALIST lexicon that lemminflect holds.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from lemminflect import getAllInflections, getAllLemmas
from wordfreq import top_n_list

VERBS_ALTHOUGH_NOUNS = set("comes fallen felt given goes keeps known makes stuck takes".split())  # noqa: SIM905
NOUNS = set("acts bars logs pays reset templates thanks thirds".split())  # noqa: SIM905


def is_verb_form(word: str) -> bool:
    """Whether a word is an inflected verb and nothing else."""
    lemmas = getAllLemmas(word)
    forms = [getAllInflections(lemma, "VERB") for lemma in lemmas.get("VERB", ()) if lemma != word]
    inflected = any(word in form.get(tag, ()) for form in forms for tag in ("VBD", "VBN", "VBZ"))
    return inflected and (word in VERBS_ALTHOUGH_NOUNS or ("NOUN" not in lemmas and word not in NOUNS))


if __name__ == "__main__":
    words = sorted(word for word in top_n_list("en", 20_000) if word.isascii() and len(word) > 2 and is_verb_form(word))
    lines = textwrap.fill(" ".join(words), 118)
    Path(__file__).with_suffix(".txt").write_text(f"# Written by scripts/verb_forms.py.\n{lines}\n", encoding="utf-8")
