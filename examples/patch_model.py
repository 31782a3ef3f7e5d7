"""Search over a parameter with a live model: merged tensors replace its weights in place, nothing is written.

python examples/patch_model.py examples/demo.yaml --method task_arithmetic --vary parameters.scale 0.25 0.5 1 2

scores the agents of `ramerge demo` on their tasks. For agents of your own put your own score into `score`.
"""

from __future__ import annotations

import argparse
from typing import Any

import ramerge


def patch(model: Any, recipe: ramerge.Recipe, key: str, value: float) -> ramerge.Record:
    """Merge with one value of a parameter into the weights of `model`, which has the recipe's architecture."""
    import torch

    weights = model.state_dict()

    def take(tensor: ramerge.MergedTensor) -> None:
        with torch.no_grad():
            weights[tensor.name].copy_(tensor.torch())

    return ramerge.merge(recipe, parameters={key.removeprefix("parameters."): value}, on_tensor=take)


def score(model: Any, tokenizer: Any) -> float:
    """The mean share of held-out prompts of the demo's tasks that are answered exactly."""
    from ramerge.demo.scoring import accuracy
    from ramerge.demo.tasks import TASKS

    return sum(accuracy(model, tokenizer, task, examples=200, seed=0) for task in TASKS) / len(TASKS)


def main() -> None:
    """Score a live model with each value of a parameter."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--method", help="instead of the recipe's")
    parser.add_argument("--vary", nargs="+", required=True, metavar=("KEY", "VALUE"))
    arguments = parser.parse_args()
    plan = ramerge.plan(arguments.recipe)
    recipe = plan.recipe.model_copy(update={"method": arguments.method}) if arguments.method else plan.recipe
    model = AutoModelForCausalLM.from_pretrained(plan.base.location).float().eval()
    tokenizer = AutoTokenizer.from_pretrained(plan.base.location)
    key, *values = arguments.vary
    for value in values:
        record = patch(model, recipe, key, float(value))
        print(f"{record.method}, {key} = {value}: {score(model, tokenizer):.1%}")


if __name__ == "__main__":
    main()
