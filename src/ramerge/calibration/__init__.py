"""Prompts and agents: replies, the inputs of layers, importances, and how well merges agree with the agents.

commands           `ramerge calibrate`
calibrate          the whole run for all agents, with a journal of replies; `gather_agents`, for `cache` and searches
cache              calibrations in the user's cache: `ramerge.gather`, for `merge`, and `rank`, for `recommend`
record             `CalibrationSettings`, which commands and searches share; what is in `calibration.json`
estimate           what a calibration will take; bytes of a model, and which of them stay on the device, for `live_base`

prompts            the user's prompts, with or without replies, from files that `ui/roots` checks; halves of them
rollouts           the forms of records: our own, and those in which trainers dump rollouts; called by `prompts`
rewards            the reward function of `--reward`
encode             from a prompt and a reply to token ids and labels, by the chat template; called by `speaker`

live_base          the base in memory, a context that puts the weights of agents and merges into it; missing libraries
live               the model itself, made by `live_base`: its weights, likelihoods and generation, on torch;
                   names of its tensors in the checkpoint
offload            a model larger than the memory of the device, for `live`
speaker            the agent that is loaded, as one that replies: tokenizer, prompts as ids, replies

gather             one agent's replies to prompts, and the inputs of its layers; called by `calibrate`
inputs             a recorder of the inputs of linear layers, for `gather`; which positions it keeps
experts            how many rows are kept of each expert; for `inputs` and `estimate`
importances        one agent's importances, the Fisher information of parameters; called by `calibrate`

exchanges          `Exchange`, a prompt with a reply as token ids, and the file `replies.jsonl`, which keeps them
agent_folder       the folder of an agent: written whole, checked, and its record read; for `calibrate` and `cache`

agreement          how likely a merge finds the agents' replies, with intervals; for `cache` and `searches/prompted`
"""
