"""Merge, then distill: everything that a trainer needs to distill agents, the teachers, into their merge, the student.

commands   `ramerge handoff`
handoff    the function that users call: from a merge to a folder for a trainer, and `Handoff`, its result
merged     the merge: its folder, its teachers and the files of its prompts, with all that a trainer cannot load
settings   `HandoffSettings`: which prompts, and how long replies are
prompts    the dataset: which prompts, in which form, and those that the merge finds hardest
trainer    what a trainer is handed, what it is, and the registry of trainers
trainers/  one file per trainer: TRL, verl, NeMo-RL, slime
"""
