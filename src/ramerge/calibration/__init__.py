"""How much each parameter matters to what an agent says: the diagonal of its Fisher information.

commands     `ramerge fisher`
estimate     the whole run
jsonl, encode, names     the data, its tokens, the model's tensors
worker       gradients; the only file that imports torch
layout, record           what is written
"""
