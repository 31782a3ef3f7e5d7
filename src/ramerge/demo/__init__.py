"""The demonstration: three tiny agents, trained by policy gradient on a task each, merged and scored.

commands     `ramerge demo`
run          merges the agents and prints what it did; copies them; `AGENTS`: their folder, which `ui` shows
tasks        the tasks: prompts, right answers and rewards, for `scoring`; the names of tasks and agents, for `ui`, too
scoring      scores of a model on the tasks, by generating; called by `run`
"""
