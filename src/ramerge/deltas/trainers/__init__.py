"""Deltas that trainers publish: read in their own layouts, checked, and written once in ramerge's.

slime       the format of slime and miles, `weight_v000001/`, called by `chain`; a delta of payloads, for `skyrl`
skyrl       the format of SkyRL, `delta-00000001/`, called by `chain`
grail       the format of grail, `checkpoint-1000/DELTA/`, called by `chain`
live        the format of checkpoints that an engine patches in place
unpack      the common part of the first three formats: a chain is unpacked into the cache, and opened from there
chain       `TrainerLayout`: a trainer's `find` and `read`, and how it names the deltas of a run; those that lead from
            the base to one of them, for `unpack`
convert     a chain applied to a model, block by block, as one delta in ramerge's layout; called by `unpack`
link        a link of a chain: the interface of trainers' deltas for `convert`; xors and whole tensors as changes
sparse      changes at ascending positions; for `slime` and `grail`
frames      zstd frames that are decompressed in bounded pieces; for the three trainers and their changes
digests     the checksums that trainers store; for the three trainers
"""
