"""Prompts and agents: replies, the inputs of layers, importances, and how well merges agree with the agents.

commands           `ramerge calibrate`
calibrate          the whole run for all agents, with a journal of replies; `gather_agents`, for `cache` and searches
cache              calibrations in the user's cache: `ramerge.gather` for merges with prompts, `rank` for `recommend`
record             `CalibrationSettings`, which commands and searches share; what is in `calibration.json`
estimate           what a calibration will take; bytes of a model, and which of them stay on the device, for `live_base`

prompts            the user's prompts, with or without replies, from files; halves for statistics and for scores
rollouts           the forms of records: our own, and those in which trainers dump rollouts; called by `prompts`
rewards            the reward function of `--reward`
encode             from a prompt and a reply to token ids and labels, by the chat template; called by `speaker`

live_base          the base in memory, as a context that puts the weights of agents and merges into it
live               the model itself, on torch: its weights, likelihoods and generation; made by `live_base`
names              from the names of transformers to those of the checkpoint, for `live`
offload            a model larger than the memory of the device, for `live`
speaker            the agent that is loaded, as one that replies: tokenizer, prompts as ids, replies

gather             replies to prompts and inputs of layers, for one agent; called by `calibrate`
inputs             a recorder of the inputs of linear layers, for `gather`; which positions it keeps
experts            how many rows it keeps of each expert
importances        the Fisher information of parameters; called by `calibrate`

exchanges          prompts with replies as token ids, and their file `replies.jsonl`
agent_folder       the folder of an agent: written whole, checked, and its record read
importance_files   the safetensors files of importances in it

agreement          how likely a merge finds the agents' replies, with intervals; for `cache` and `searches/prompted`
"""
