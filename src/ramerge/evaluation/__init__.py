"""`ramerge eval`: what models can do, benchmark by benchmark, asked over an OpenAI-compatible endpoint.

commands                      the command line
evaluate                      the whole run
targets, jobs                 words of a command line  →  models, and suites with their tasks
suite, suites/                what a suite is; one kind of benchmark a file: items, how they are asked and scored
run, recorder, progress       every item of every task, concurrently; continues what an earlier run left
endpoint, client, bounds      requests; no answer takes more memory than a bound
serving, stopping             servers that a run starts itself; signals while requests are under way
results, samples, summary     a line for each sample; scores, with intervals from `bootstrap`
sandbox/, guard               model-written programs and other people's checkers, held in bounds
data, answers, arithmetic, harness, retrievers, requirements     what suites share
tables/, text                 results  →  the paper's tables; a summary for the terminal
"""
