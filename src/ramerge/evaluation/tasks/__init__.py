"""Tasks for Inspect, which `registry` names to it. Each has its data, its solver and its scorer; `common` is shared.

coding     LiveBench, LiveCodeBench, MBPP, CodeContests, CodeForces, HumanEval, by CURE's protocol
tool       BFCL, through bfcl-eval, as `bfcl` loads it
memory     RULER's HotpotQA and SQuAD, as MemAgent asks them
search     NQ and 2WikiMultiHopQA with a search tool, as ZeroSearch asks them; `retrievers` are the tool
harness    IFEval, GSM8K and MATH500, through lm-eval
rewards    the user's prompts, with a reward function in verl's form
agreement  how likely a model finds the agents' own replies
"""
