"""Tasks for Inspect, each with its data, its solver and its scorer.

registry        which tasks Inspect finds by entry point; their parameters, for `run`
common          shared by all tasks: arguments, samples, requests to the model, and scores that are ratios
short_answers   answers against gold ones: normalized texts and F1, for `search` and `memory`
coding/         LiveBench, LiveCodeBench, MBPP, CodeContests, CodeForces, HumanEval, by CURE's protocol
tool            BFCL: function calls, judged by bfcl-eval
bfcl            the package bfcl-eval, loaded for `tool` without what it would run of a model's output
memory/         RULER's HotpotQA and SQuAD, as MemAgent asks them
search          NQ and 2WikiMultiHopQA with a search tool, as ZeroSearch asks them
retrievers      the search tool: BM25 or a server; called by `search`
harness         the tasks `ifeval` and `math`: IFEval, GSM8K and MATH500, through lm-eval
rewards         the user's prompts, with a reward function in verl's form
agreement       how likely a model finds the agents' own replies
"""
