"""`ramerge eval`: what models can do, task by task, through Inspect, which asks, retries, logs and resumes.

commands                      the command line
run, models                   each model on each task; words of a command line → models as Inspect opens them
functions                     functions that users name: `FILE.py:FUNCTION`
servers                       programs that serve a model while it is scored
tasks/                        task functions that Inspect finds by entry point
sandbox/, time_limit          model-written programs (the provider `bubblewrap`) and checkers, held in bounds
logs, samples, intervals      logs of Inspect → samples of models; bootstrap intervals and tests
tables/                       samples → the paper's tables, and what merges have kept
data, arithmetic              data files with their problems named; arithmetic in a model's output
"""
