"""Tensors, and how their blocks are read. Nothing here knows of formats or of merging.

tensor         name, dtype, shape, and an origin: where the elements come from
origins        origins that move elements: pieces, cuts, transposes
lowrank        origins that compute: LoRA and DoRA on a base
scaled         origins that decode: codes and scales
weighted       origins that are weighted means of others
rounded        origins that round: quantized weights as a trainer has loaded them
checkpoint     a model that was opened
header         safetensors headers, which are not trusted
reader, arena  how blocks are read, by how many threads, and in which memory
access         what reading asks of files and folders, local or remote
orientation    which linear weights are stored as (in, out): of GPT-2, and of experts
identity       whether files are unchanged since planning, here and on other machines, as the reader asks
name_aliases   other names of the same tensor
prefixes       names under the prefixes of another model, by structure
text_config    which part of config.json is about which part of a model
embeddings     input and output embeddings, and which are tied
paths          checks that paths stay in their folder
"""
