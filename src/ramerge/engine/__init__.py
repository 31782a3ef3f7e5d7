"""From a plan to checkpoints: count, reduce, merge, commit. `execute` is the whole story."""
