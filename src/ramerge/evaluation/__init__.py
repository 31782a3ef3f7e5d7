"""`ramerge eval`: what models can do, benchmark by benchmark, asked over an OpenAI-compatible endpoint.

commands             the command line
evaluate             the whole run
targets, jobs        words of a command line  →  models, and suites with their tasks
suites/              one kind of benchmark a file: items, how they are asked, how they are scored
run                  every item of every task, concurrently; goes on where an earlier run stopped
endpoint, serving    requests; servers that a run starts itself
client, bounds       no answer takes more memory than a bound
results, summary     a line for each sample; scores with intervals
sandbox/, guard      model-written programs and other people's checkers, held in bounds
data, plain, answers, arithmetic, requirements: what suites share
tables/              results  →  the paper's tables
"""
