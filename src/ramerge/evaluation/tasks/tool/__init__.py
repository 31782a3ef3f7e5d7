"""Tool use: the single-turn subsets of the Berkeley Function Calling Leaderboard.

Source: Patil et al., The Berkeley Function Calling Leaderboard, ICML 2025. Questions, possible answers, prompt, decoder
and checker are those of the package `bfcl-eval`, so a score is what the package gives to the same output. Two things
differ, for answers that no model means. The package computes operators in arguments by `eval`; here
that does arithmetic and nothing else. And answers beyond a length count as undecodable, since its parsers overflow
the stack on deep nesting.

By the package's rules an answer that is not decodable is right in `irrelevance` and `live_irrelevance`, and wrong
in other categories. An answer that makes its checker fail counts as wrong, where the package's own run would stop.
"""
