"""`ramerge eval`: what models can do, task by task, through Inspect, which asks, retries, logs and resumes.

commands       `ramerge eval` and `table`; options that `searches/commands` has, too
run            each model on each task: settings, data and samples of a request; called by `commands` and searches
models         the models under test: words of a command line → a model as Inspect opens it; endpoints, tokenizers
extra          whether the libraries of the extra `eval` are there; asked by all that score or read logs
served_model   the model as tasks ask it: raw prompts, sampling, retries, failures with their cause; for `models`
serving        servers, started and stopped; for `models`, `searches/task_scores` and `ui/ask`
children       processes that end when this one does, for `serving`, `searches/functions` and `ui/jobs`
tasks/         benchmarks as task functions that Inspect finds by entry point
data           files of benchmarks, read or downloaded, with all problems named; Parquet rows, also for `calibration`
functions      a Python function that a user names (`FILE.py:FUNCTION`), for tasks, `calibration` and `searches`
time_limit     checkers of answers, stopped when they take too long; called by tasks
arithmetic     arithmetic in a model's output, in place of `eval`; called by `tasks/bfcl`
sandbox/       programs that a model wrote, held in bounds: the provider `bubblewrap` of Inspect, for `tasks/coding`
logs           logs of Inspect → `samples`, for tables, searches and soups; what `run` noted of a model in them
samples        scored samples of each model, task by task: what tables are made of
intervals      bootstrap intervals and paired tests; for tables, agreement and searches
tables/        samples → the paper's tables, and what merges have kept
"""
