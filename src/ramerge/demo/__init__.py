"""The demonstration: three tiny agents, each trained by policy gradient on its own task, are merged and scored.

commands     `ramerge demo`
run          merges the agents and prints what it did; copies the agents; `AGENTS`: their folder, which `ui` shows
tasks        the tasks: prompts, right answers and rewards, for `scoring`; names of tasks and agents, also for `ui`
scoring      scores a model on the tasks by generating; called by `run`
"""
