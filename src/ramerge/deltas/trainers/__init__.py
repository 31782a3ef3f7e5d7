"""Deltas that trainers publish: read in their own layouts, checked, and written once in ramerge's.

link        what a delta is to the converter: a link of a chain, applied to the blocks of a model in order
frames      zstd frames that are decompressed in bounded pieces
sparse      values at ascending positions
digests     the checksums that trainers store
chain       which deltas lead from the base to the requested one
apply       a chain applied to a model, block by block
unpack      a chain as one delta in the cache; `convert`: the command
slime       `weight_v000001/` of slime and miles
skyrl       `delta-00000001/` of SkyRL
grail       `checkpoint-1000/DELTA/` of grail
live        checkpoints that an engine patches in place
"""
