"""One file per trainer: the files that it reads, and the command that starts it. `_scripts/` is copied unchanged.

trl       TRL: `DistillationTrainer` with all teachers in one process, and `AsyncDistillationTrainer` with servers
verl      verl: `main_ppo` with `distillation.teacher_models`
nemo_rl   NeMo-RL: `adv_estimator: opd` with rollouts by NeMo Gym
slime     slime: `--use-opd` with a server for each teacher
"""
