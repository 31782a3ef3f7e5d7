"""Checkpoints on disk. Nothing here knows of merging.

hub              from a model's name to its folder
storage          folders that are not on this machine
open, formats    from a folder in any format to its tensors
model            a model that was opened
header           safetensors headers, which are not trusted
torchfile        what `torch.save` writes, without torch
tensor, origins  what a tensor is; where its elements come from
read, arena      how its blocks are read, and in which memory
write, stage     the output's files; the output folder, which appears complete or not at all
relay            an output elsewhere: made here, sent file by file
outputs, inside  where an output may be; models inside of it, which replacing it would remove
paths            checks that paths stay in their folder
foreign          deltas that trainers publish, unpacked once
lowrank          origins that compute: LoRA and DoRA on a base
scaled           origins that decode: codes and scales
patched          origins that add changes: tensors of deltas
delta            how deltas are stored: blocks, the index, the writer
encodings        which tensors of a folder are codes and scales: one encoding a file
spellings        other names of the same tensor
embeddings       input and output embeddings, and which are tied
companions       tokenizer, configuration and other files that are copied
identity         whether files are unchanged since planning
"""
