"""The demonstration: three tiny agents, trained by policy gradient on a task each, merged and scored.

commands     `ramerge demo`
run          what `ramerge demo` does
tasks        what the agents learned
scoring      scores of a model on the tasks
"""
