"""Reads deltas that trainers publish in their own layouts, checks them, and converts them once to ramerge's layout.

slime       the format of slime and miles, `weight_v000001/`, called by `chain`; a delta of payloads, for `skyrl`
skyrl       the format of SkyRL, `delta-00000001/`, called by `chain`
grail       the format of grail, `checkpoint-1000/DELTA/`, called by `chain`
live        the format of checkpoints that an engine patches in place
unpack      the common part of the first three formats: unpacks a chain into the cache, and opens it from there
chain       `TrainerLayout`: a trainer's `find` and `read`, and its names for the deltas of a run; the chain of deltas
            from the base to one of them, for `unpack`
convert     applies a chain to a model, block by block, and writes one delta in ramerge's layout; called by `unpack`
link        a link of a chain: the interface of trainers' deltas for `convert`; xors and whole tensors as changes
sparse      changes at ascending positions; for `slime` and `grail`
frames      zstd frames, decompressed in bounded pieces; for the three trainers and their changes
digests     the checksums that trainers store; for the three trainers
"""
