"""Scores of models on benchmarks: `ramerge eval` and `ramerge table`, through Inspect, which asks, retries and logs.

import ramerge, ramerge_eval

targets = [ramerge_eval.EvaluationTarget("merged", "merged")]
request = ramerge_eval.EvaluationRequest(["ramerge/tool"], limit=50)
ramerge_eval.evaluate("logs", targets, request, ramerge.ModelAccess(endpoint="http://127.0.0.1:8000/v1"))

Modules:

commands       `ramerge eval` and `table`
run            each model on each task: settings, data and samples of a request
models         the models under test: words of a command line → a model as Inspect opens it; tokenizers
served_model   the model as tasks ask it: raw prompts, sampling, retries, failures with their cause; for `models`
task_scores    a score for `ramerge search` that is tasks, asked on a server that is kept running
tasks/         benchmarks as task functions that Inspect finds by entry point
data           files of benchmarks, read or downloaded, with all problems named
time_limit     checkers of answers, stopped when they take too long; called by tasks
arithmetic     arithmetic in a model's output, in place of `eval`; called by `tasks/bfcl`
sandbox/       programs that a model wrote, held in bounds: the provider `bubblewrap` of Inspect, for `tasks/coding`
logs           logs of Inspect → `samples`, for tables, searches and soups; what `run` noted of a model in them
samples        scored samples of each model, task by task: what tables are made of
tables/        samples → the paper's tables, and what merges have kept
"""

import lazy_loader

# Inspect takes seconds to import; a command that only shows its help does without it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
