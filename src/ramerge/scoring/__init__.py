"""Scoring, for other rooms and ramerge-eval: users' functions, servers, figures and their intervals.

scores       `Scorer` and the figures that it returns, with their items; `Objective`, which combines them into a value;
             `CustomScore`, for scores in other packages
functions    a Python function that a user names (`FILE.py:FUNCTION`): scores and rewards
records      rows of a Parquet file: prompts, and items of benchmarks
intervals    bootstrap intervals and paired tests; for tables, agreement and searches
access       `ModelAccess`: an endpoint or a server; whether prompts are sent raw; a model's own generation settings
serving      `ModelServer`: starts and stops servers, or keeps one for several models in turn
children     processes that end when this one does
options      options of commands that use servers and read data sets
evaluation   finds functions of ramerge-eval, or says how to install it
"""
