"""Tensors, and reading blocks of tensors, independent of formats and merging.

tensor        a tensor: name, dtype, shape, and an `Origin`, the source of the elements
checkpoint    an opened model: its tensors, files and configuration; made by formats
header        reads headers of safetensors files, which are not trusted, for `formats/safetensors`, `dcp` and deltas;
              writes headers, for `output/write`

Origins, and functions that make tensors with these origins:

origins       rearranged elements: pieces, cuts, transposes; cuts, joins and reshapes tensors, for formats and planning
lowrank       LoRA and DoRA on a base, and embeddings with other rows for some tokens: for `formats/adapter`
scaled        codes and scales: for `formats/encodings`; quantizes results like the stored tensor: for `engine/worker`
weighted      weighted means of other tensors: for `planning/soups` and `planning/layout`
rounded       weights rounded as a trainer has loaded them: for `planning/layout`

Reading:

reader        reads blocks of tensors, for the workers of the engine, for samples and for deltas; `Files` reads bytes of
              files for all threads; the number of threads that keeps storage busy
arena         the memory of one reader, and the memory that an array takes in it, for estimates
access        one interface to local and remote files: reading, `FileIdentity`, links, messages about missing folders
identity      checks that files are unchanged since planning, even on other machines: for formats, engine and `reader`

Names, shapes and configurations:

name_aliases  other names of the same tensor, by a table; whether rows of gate and up alternate: for `formats/adapter`
              and `planning/name_mappings`
prefixes      maps names to the prefixes of another model, by structure: for the same two, and for `planning/absences`
orientation   the linear weights that are stored as (in, out), as in GPT-2 and for some experts: for `checkpoint`
embeddings    names of input and output embeddings, and whether they are tied
text_config   the parts of config.json for parts of a model: for formats, planning and modules of this package
paths         whether names and links of files lead out of their folder: for formats and deltas
"""
