"""Merge, then distill: everything that a trainer needs to distill agents, the teachers, into their merge, the student.

commands   `ramerge handoff`
handoff    the function that users call: it writes a folder for a trainer from a merge; `Handoff`, its result
merged     opens the merge: its folder, teachers and prompt files; finds what a trainer cannot load
settings   `HandoffSettings`: the choice of prompts, and the length of replies
prompts    the dataset: the form of the prompts, and the choice of the hardest for the merge
trainer    the classes `Lesson` and `Trainer`, and the registry of trainers
trainers/  one file per trainer: TRL, verl, NeMo-RL, slime
"""
