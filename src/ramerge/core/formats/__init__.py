"""Formats in which checkpoints are stored: from a folder to its tensors. A format is a file and an entry point.

A folder is opened by:

open             opens a folder in whatever format it is, or adapters over one another: for `planning/inputs`, `headers`
registry         all formats in the order in which `open` tries them
format           the class `Format`, and `Opening`: options and the base, which `open` hands to a format's `open_folder`
unread           recognizes folders of trainers that are not read, and says what converts them: for `open`, `adapter`

Formats, whose `find` and `open_folder` only `open` calls:

safetensors      safetensors files, as `save_pretrained` writes them; the usual file names, for all that write them
pickled          `pytorch_model.bin`
adapter          LoRA adapters of PEFT over their base
fsdp             shards of FSDP, a file for each rank, as verl and SkyRL save them
dcp              folders of torch.distributed.checkpoint
megatron         torch_dist of Megatron: `dcp` reads the files, this translates names and layouts
deepspeed        partitions of ZeRO, with the float32 weights of the optimizer

Helpers of formats, by who calls them:

adapter_model    the tensors of base and adapter together: for `adapter`; modules of factors, for `deltas/adapter_plan`
adapter_pairs    the factors of a module, and the parameters that they fit: for `adapter_model`
peft             `adapter_config.json`: ranks, scalings, what was trained as a whole: for `adapter`
expert_adapters  names of adapters on experts, and where a base has these experts: for `adapter_model`
series           which files are the model's, by an index or by numbers: for `safetensors` and `pickled`; gaps in
                 numbers, for `sidecars`, too; numbers of the output's files, for `planning/layout`
sharded          models in pieces, and the parts that ranks save: for `dcp` and `fsdp`
views            tensors of torch's files, names without wrappers, tied tensors: for all formats that torch writes
files            JSON files and indices, checks of links and missing files, the latest step of a run: for all formats

Not weights, but what lies next to them:

sidecars         which files a model has besides weights, and how the output gets them: for `planning/checks` and
                 `engine/sidecars`
recorded         names and keys of the statistics that `ramerge calibrate` writes: for planning, engine and calibration

encodings/       which tensors of a folder are codes and scales: called by `open`; one encoding a file
torchfile/       reads what `torch.save` writes, without torch: for all formats that torch writes
"""
