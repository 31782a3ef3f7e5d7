"""Search over a parameter with a live model: merged tensors replace its weights in place, nothing is written.

python examples/patch_model.py examples/demo.yaml --method task_arithmetic --vary parameters.scale 0.25 0.5 1 2

scores the agents of `ramerge demo` on their tasks. For agents of your own put your own score into `score`.
"""

from __future__ import annotations

import argparse
from typing import Any

import ramerge


def patch(model: Any, recipe: ramerge.Recipe) -> None:
    """Merge into the weights of `model`, which has the recipe's architecture."""
    import torch

    weights = model.state_dict()
    with torch.no_grad():
        for tensor in ramerge.plan(recipe).tensors():
            weights[tensor.name].copy_(tensor.torch())


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
    recipe = ramerge.read_recipe(arguments.recipe)
    if arguments.method:
        recipe = recipe.with_(method=arguments.method)
    base = ramerge.plan(recipe).details.inputs.base.location
    model = AutoModelForCausalLM.from_pretrained(base).float().eval()
    tokenizer = AutoTokenizer.from_pretrained(base)
    key, *values = arguments.vary
    for value in values:
        patch(model, recipe.with_(parameters={key.removeprefix("parameters."): float(value)}))
        print(f"{recipe.method}, {key} = {value}: {score(model, tokenizer):.1%}")


if __name__ == "__main__":
    main()
