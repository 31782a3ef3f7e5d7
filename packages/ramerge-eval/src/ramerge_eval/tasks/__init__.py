"""Tasks for Inspect, each with its data, its solver and its scorer.

registry        the tasks that Inspect finds by entry point; their parameters, for `run`
common          shared by all tasks: arguments, samples, requests to the model, and scores that are ratios
short_answers   compares answers with gold answers: normalized texts and F1, for `search` and `memory`
coding/         LiveBench, LiveCodeBench, MBPP, CodeContests, CodeForces, HumanEval, by CURE's protocol
tool            BFCL: function calls, judged by bfcl-eval
bfcl            loads the package bfcl-eval for `tool`, so that it runs nothing of a model's output
memory/         RULER's HotpotQA and SQuAD, by MemAgent's protocol
search          NQ and 2WikiMultiHopQA with a search tool, by ZeroSearch's protocol
retrievers      the search tool: BM25 or a server; called by `search`
harness         the tasks `ifeval` and `math`: IFEval, GSM8K and MATH500, through lm-eval
rewards         the user's prompts, with a reward function in verl's form
agreement       how likely the agents' own replies are under a model
"""
