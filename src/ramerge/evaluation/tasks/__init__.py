"""Tasks for Inspect: `registry` has them by name, `bridge` makes each of a benchmark (see `evaluation.benchmark`).

coding     LiveBench, LiveCodeBench, MBPP, CodeContests, CodeForces, HumanEval, by CURE's protocol
tool       BFCL, through bfcl-eval
memory     RULER's HotpotQA and SQuAD, as MemAgent asks them
search     NQ and 2WikiMultiHopQA with a search tool, as ZeroSearch asks them
ifeval     IFEval, through lm-eval
math       GSM8K and MATH500, through lm-eval
rewards    the user's prompts, with a reward function in verl's form
"""
