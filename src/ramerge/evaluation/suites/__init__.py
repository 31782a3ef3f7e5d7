"""Suites of benchmarks, a kind a file or folder; `table` lists them by name.

tool       BFCL, through bfcl-eval
memory     RULER's HotpotQA and SQuAD, as MemAgent asks them
coding     LiveBench, LiveCodeBench, MBPP, CodeContests, CodeForces, HumanEval, by CURE's protocol
instruct   IFEval, through lm-eval
math       GSM8K and MATH500, through lm-eval
search     NQ and 2WikiMultiHopQA with a search tool, as ZeroSearch asks them

A suite asks and scores (see `evaluation.suite`). It opens no sockets, writes no results and runs no loop.
"""
