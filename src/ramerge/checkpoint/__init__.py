"""Checkpoints on disk. Nothing here knows of merging.

hub              from a model's name to its folder
index, header    a folder's tensors; safetensors headers, which are not trusted
pickled          `pytorch_model.bin`
tensor, read     what a tensor is; how its bytes are read
write, stage     the output's files; the output folder, which appears complete or not at all
outputs, paths   where an output may be; checks that paths stay in their folder
lowrank          origins that compute: LoRA and DoRA on a base
embeddings       input and output embeddings, and which are tied
companions       tokenizer, configuration and other files that are copied
identity         whether files are unchanged since planning
"""
