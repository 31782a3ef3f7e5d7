"""Search over a parameter with a live model: merged tensors replace its weights in place, nothing is written.

python examples/patch_model.py recipe.yaml parameters.r 0 0.1 0.2
"""

from __future__ import annotations

import sys
from typing import Any

import ramerge


def patch(model: Any, recipe: str, key: str, value: float) -> ramerge.Record:
    """Merge with one value of a parameter into the weights of `model`, which has the recipe's architecture."""
    import torch

    weights = model.state_dict()

    def take(tensor: ramerge.MergedTensor) -> None:
        with torch.no_grad():
            weights[tensor.name].copy_(tensor.torch())

    return ramerge.sweep(recipe, vary={key: [value]}, on_tensor=take)[0]


def main() -> None:
    """Score every value; put your own score in the place of the number of parameters that differ from the base's."""
    from transformers import AutoModelForCausalLM

    recipe, key, *values = sys.argv[1:]
    base = ramerge.plan(recipe).base.place
    model = AutoModelForCausalLM.from_pretrained(base)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for value in values:
        patch(model, recipe, key, float(value))
        score = sum(int((weight != before[name]).sum()) for name, weight in model.state_dict().items())
        print(f"{key} = {value}: {score:,} weights differ from the base's")


if __name__ == "__main__":
    main()
