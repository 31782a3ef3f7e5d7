"""Tensors, and reads of their blocks, independent of formats and merging.

tensor        a tensor: name, dtype, shape, and an `Origin`, the source of the elements
checkpoint    a model that was opened: its tensors, files and configuration, as formats make it
header        headers of safetensors files, read without trust: for `formats/safetensors`, `dcp` and deltas; and
              encoded: for `output/write`

Origins, and functions that make tensors with such an origin:

origins       moved elements: pieces, cuts, transposes. Tensors cut, joined and reshaped, for formats and planning
lowrank       LoRA and DoRA on a base, and embeddings with other rows for some tokens: for `formats/adapter`
scaled        codes and scales: for `formats/encodings`; results quantized again as they are stored: for `engine/worker`
weighted      weighted means of other tensors: for `planning/soups` and `planning/layout`
rounded       weights rounded as a trainer has loaded them: for `planning/layout`

Reading:

reader        blocks of tensors, read for the workers of the engine, for samples and for deltas; `Files`, the bytes of
              files for all threads; how many threads keep storages busy
arena         the memory of one reader, and how much of it an array takes, for estimates of memory
access        one interface to local and remote files: reading, `FileIdentity`, links, messages about absence
identity      whether files are unchanged since planning, here and on other machines: for formats, engine and `reader`

Names, shapes and configurations:

name_aliases  other names of the same tensor, by a table; whether gate and up take turns: for `formats/adapter` and
              `planning/name_mappings`
prefixes      names under the prefixes of another model, by structure: for the same two, and for `planning/absences`
orientation   which linear weights are stored as (in, out): of GPT-2, and of experts: for `checkpoint`
embeddings    names of input and output embeddings, and which of them are tied
text_config   which part of config.json is about which part of a model: for formats, planning and modules of this room
paths         whether names and links of files lead out of their folder: for formats and deltas
"""
