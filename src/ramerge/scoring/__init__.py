"""Scoring for rooms and ramerge-eval: functions of users, servers, figures and their intervals.

scores       `Scorer` and the figures that it returns, with their items; `Objective`, which makes one value of them;
             `CustomScore`, for scores of other distributions
functions    a Python function that a user names (`FILE.py:FUNCTION`): scores and rewards
records      rows of a Parquet file: prompts, and items of benchmarks
intervals    bootstrap intervals and paired tests; for tables, agreement and searches
access       `ModelAccess`: an endpoint or a server; whether prompts are sent raw; a model's own generation settings
serving      `ModelServer`: servers started and stopped, or kept for one model after another
children     processes that end when this one does
options      options of commands that ask servers and read data sets
evaluation   functions of ramerge-eval, or how to install it
"""
