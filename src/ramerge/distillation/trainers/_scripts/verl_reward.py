"""The reward of verl: none, because the teachers are the whole signal. Put your own here for use_task_rewards."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 0.0
