"""Prompts and agents: replies, the inputs of layers, importances, and how well merges agree with the agents.

commands                          `ramerge calibrate`
prompts, rollouts, encode         prompts with or without replies, and their tokens
calibrate, gather                 the whole run, with its journal of replies; replies and inputs of one agent
rewards                           the reward function of `--reward`
speaker, live, live_base          a model that replies; the model whose weights are replaced, with the base in it
offload, estimate                 a model larger than the memory; what a calibration will take
inputs, experts, importances      what is gathered of layers and of parameters
agent_folder                      the folder of an agent, written and checked
exchanges, record, names          what is in it; `importance_files`: of importances
agreement, cache                  how likely merges find replies; calibrations of recipes in the user's cache
"""
