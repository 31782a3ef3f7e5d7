"""Checkpoints on disk. Nothing here knows of merging.

hub              from a model's name to its folder
index, header    a folder's tensors; headers of safetensors, which are not trusted
pickled          `pytorch_model.bin`
tensor, read     what a tensor is; its bytes
write, stage     the output's files; the folder that appears complete or not at all
outputs, paths   where an output may be; paths that stay in their folder
companions       tokenizer, configuration and what else is copied
identity         whether files are still those that were planned
"""
