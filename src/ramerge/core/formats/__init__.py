"""Formats in which checkpoints are stored: from a folder to its tensors. A format is a file and an entry point.

open                    opens a folder in whatever format it is
format                  what a format is
registry                all of them, by priority
files                   what formats share: files that must be there, links that lead outside, config.json, runs
series                  names of the files that are the model's: one, those of an index, or a numbered series
safetensors             safetensors files, as `save_pretrained` writes them
adapter, peft           LoRA adapters of PEFT over their base, and what their configuration says
expert_adapters         adapters on experts: what trainers call them, and where in a base they belong
stacks                  several adapters over one model: which undo what others have changed
pickled                 `pytorch_model.bin`
fsdp                    shards of FSDP, a file for each rank, as verl and SkyRL save them
megatron                torch_dist of Megatron: the files of dcp, with names and layouts of its own
dcp                     folders of torch.distributed.checkpoint
deepspeed               partitions of ZeRO, with the float32 weights of the optimizer
views, sharded          what the formats share that torch writes: tensors of its files, models in pieces
unread                  folders that are recognized, and refused with advice
recorded                what was recorded at the inputs of layers, and the layers that it belongs to
sidecars                tokenizer, configuration and other files that are copied alongside the weights
encodings/              which tensors of a folder are codes and scales: one encoding a file
torchfile/              what `torch.save` writes, without torch
"""
