"""Formats in which checkpoints are stored: a file and a row of the table for each.

format                  what a format is
table                   all of them, in the order in which a folder is tried
files                   what formats share: files that must be there, links that lead outside, config.json
safetensors             safetensors files, as `save_pretrained` writes them
adapter, peft           LoRA adapters of PEFT over their base, and what their configuration says
pickled                 `pytorch_model.bin`
runs                    where trainers put the policy inside of a run
fsdp                    shards of FSDP, a file for each rank, as verl and SkyRL save them
megatron                torch_dist of Megatron: the files of dcp, with names and layouts of its own
dcp                     folders of torch.distributed.checkpoint
deepspeed               partitions of ZeRO, with the float32 weights of the optimizer
views, sharded          what the formats share that torch writes: tensors of its files, parts that ranks hold
unread                  folders that are recognised, and refused with the command that converts them
"""
