"""Prompts and agents: replies, the inputs of layers, importances, and how well merges agree with the agents.

commands           `ramerge calibrate`
calibrate          the whole run for all agents, with a journal of replies; `gather_agents`, for `cache` and searches
cache              calibrations in the user's cache: `ramerge.gather`, for `merge`, and `rank`, for `recommend`
record             `CalibrationSettings`, which commands and searches share; what is in `calibration.json`
estimate           the memory and work of a calibration; a model's bytes, and those on the device, for `live_base`

prompts            the user's prompts, with or without replies, from files that `ui/roots` checks; halves of them
rollouts           the forms of records: ramerge's own, and those of rollouts that trainers dump; called by `prompts`
rewards            the reward function of `--reward`
encode             turns a prompt and a reply into token ids and labels, by the chat template; called by `speaker`

live_base          the base in memory, a context that puts the weights of agents and merges into it; missing libraries
live               the model itself, made by `live_base`: its weights, likelihoods and generation, on torch;
                   names of its tensors in the checkpoint
offload            a model larger than the memory of the device, for `live`
speaker            lets the loaded agent reply: tokenizer, prompts as ids, replies

gather             one agent's replies to prompts, and the inputs of its layers; called by `calibrate`
inputs             records the inputs of linear layers, for `gather`; chooses the positions to keep
experts            the number of rows to keep for each expert; for `inputs` and `estimate`
importances        one agent's importances, the Fisher information of parameters; called by `calibrate`

exchanges          `Exchange`, a prompt with a reply as token ids, and the file `replies.jsonl` that stores exchanges
agent_folder       writes, checks and reads the folder of an agent; for `calibrate` and `cache`

agreement          how likely the agents' replies are under a merge, with intervals; for `cache` and `searches/prompted`
"""
