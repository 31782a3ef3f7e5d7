"""One file per trainer: which files it reads, and the command that starts it. `_scripts/` has what is written as it is.

trl       TRL: `DistillationTrainer` with all teachers in one process, and `AsyncDistillationTrainer` with servers
verl      verl: `main_ppo` with `distillation.teacher_models`
nemo_rl   NeMo-RL: `adv_estimator: opd` with rollouts by NeMo Gym
slime     slime: `--use-opd` with a server of each teacher
"""
