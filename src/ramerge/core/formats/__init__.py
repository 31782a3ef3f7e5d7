"""Formats of checkpoints: from a folder to its tensors. Each format is a module with an entry point.

A folder is opened by:

open             opens a folder of any format, or a model with adapters on it: for `planning/inputs`, `headers`
registry         all formats, in the order in which `open` tries them
format           the class `Format`, and `Opening`: options and base, which `open` passes to a format's `open_folder`
unread           recognizes unsupported folders of trainers, and tells how to convert them: for `open`, `adapter`

Formats, whose `find` and `open_folder` only `open` calls:

safetensors      safetensors files, as `save_pretrained` writes them; the usual file names, for code that writes them
pickled          `pytorch_model.bin`
adapter          LoRA adapters of PEFT over their base
fsdp             shards of FSDP, a file for each rank, as verl and SkyRL save them
dcp              folders of torch.distributed.checkpoint
megatron         torch_dist of Megatron: reads the files with `dcp`, and translates names and layouts
deepspeed        partitions of ZeRO, with the float32 weights of the optimizer
Helpers of formats:
adapter_model    applies an adapter to a base: for `adapter`; names of adapted modules, for `deltas/adapter_plan`
adapter_pairs    the factors of a module, and the parameters that they fit: for `adapter_model`
peft             `adapter_config.json`: ranks, scalings, modules trained as a whole: for `adapter`
expert_adapters  names of adapters on experts, and the positions of experts in a base: for `adapter_model`
series           finds the model's files by an index or by numbers: for `safetensors` and `pickled`; gaps in numbers,
                 for `sidecars`, too; numbers the output's files, for `planning/layout`
sharded          assembles tensors from pieces, and reads the parts that ranks save: for `dcp` and `fsdp`
views            tensors of torch's files, names without wrappers, tied tensors: for all formats that torch writes
files            JSON files and indices, checks of links and missing files, the latest step of a run: for all formats
Other files of a model:
sidecars         lists a model's files besides weights, and prepares the output's: for `planning/checks` and
                 `engine/sidecars`
recorded         names and keys of the statistics that `ramerge calibrate` writes: for planning, engine and calibration
encodings/       decodes a folder's codes and scales: called by `open`; one encoding per file
torchfile/       reads files of `torch.save` without torch: for all formats that torch writes
"""
