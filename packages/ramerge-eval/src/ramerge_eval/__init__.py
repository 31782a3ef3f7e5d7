"""Scores of models on benchmarks: `ramerge eval` and `ramerge table`, through Inspect.

import ramerge, ramerge_eval

targets = [ramerge_eval.EvaluationTarget("merged", "merged")]
request = ramerge_eval.EvaluationRequest(["ramerge/tool"], limit=50)
ramerge_eval.evaluate("logs", targets, request, ramerge.ModelAccess(endpoint="http://127.0.0.1:8000/v1"))

Modules:

commands       `ramerge eval` and `table`
run            each model on each task: settings, data and samples of a request
models         the models under test: command-line arguments → models for Inspect; tokenizers
served_model   the model that tasks query: raw prompts, sampling, retries, failures with their cause; for `models`
task_scores    a score for `ramerge search`: tasks, run on a server that keeps running
tasks/         benchmarks as task functions that Inspect finds by entry point
data           reads or downloads files of benchmarks, and reports all problems
time_limit     runs checkers of answers, and stops them when they take too long; called by tasks
arithmetic     computes arithmetic in a model's output, instead of `eval`; called by `tasks/bfcl`
sandbox/       runs programs that a model wrote, within limits: the provider `bubblewrap`, for `tasks/coding`
logs           logs of Inspect → `samples`, for tables, searches and soups; the description of a model in a log
samples        scored samples of each model, task by task: the content of tables
tables/        samples → the paper's tables, and tables of what merges retain
"""

import lazy_loader

# Inspect takes seconds to import; a command that only shows its help does without it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
