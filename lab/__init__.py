"""Which merge is best, measured: agents trained from many seeds, all methods, and what follows for the paper's claims.

`python -m lab run` trains, merges and scores; `python -m lab page` renders docs/findings*.md from lab/results.

tasks: prompts with exact answers, and a teacher who slips
model: a small Llama as plain functions, with the names of Hugging Face checkpoints
training: the base, agents by policy gradient, and controls by supervised fine-tuning
store: the work folder, in which each finished thing is one file
rows: methods with the parameters that are tried
settings, sizes: which agents are merged, with which rows; how much of everything
measure: merges into memory, scored
run: everything for all seeds, in processes
results: what is kept in lab/results
statistics: bootstrap over seeds and prompts, Holm's correction, ranks
claims: the paper's claims, each with a rule and a verdict
rules: a better rule for shared elements, chosen on a third of the seeds
details: kinds of prompts within a task
smollm: merges of the real agents, which lab/real/compare.py scores
summary: what to take from all this, in a few sentences
kinds: more kinds of real agents, and runs, which lab/real/kinds.py and lab/real/runs.py score
lora: adapters, and what methods for whole matrices make of them
published: what others have measured
prompted: merges of real agents with a few prompts, which lab/real/prompted.py scores
chart: the picture of README.md
overview: docs/findings.md, the short answer, and docs/findings-prompts.md
distilled: docs/findings-distill.md
tables, figures, page: the pages with all figures
"""
