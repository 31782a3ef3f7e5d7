"""Two agents that are trained at the same time, and merged every fifty steps without writing a file."""

import torch

import ramerge

torch.manual_seed(0)


def model():
    return torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 16))


def task(where):
    """Inputs in a half of the dimensions, and the same numbers in reverse order."""
    inputs = torch.zeros(256, 32)
    inputs[:, where] = torch.randn(256, 16)
    return inputs, inputs[:, where].flip(1)


def loss(of, name):
    inputs, targets = tasks[name]
    return torch.nn.functional.mse_loss(of(inputs), targets)


tasks = {"code": task(slice(0, 16)), "tool": task(slice(16, 32))}
base, merged = model(), model()
start = {name: tensor.clone() for name, tensor in base.state_dict().items()}
agents = {name: model() for name in tasks}
for agent in agents.values():
    agent.load_state_dict(start)
optimizers = {name: torch.optim.Adam(agent.parameters(), lr=1e-2) for name, agent in agents.items()}

for step in range(1, 101):
    for name, agent in agents.items():
        optimizers[name].zero_grad()
        loss(agent, name).backward()
        optimizers[name].step()
    if step % 50 == 0:
        ramerge.merge_state_dicts(start, agents, method="ram+", out=merged)
        for name, agent in agents.items():
            losses = [f"{loss(each, name).item():.2f}" for each in (base, agent, merged)]
            print(f"step {step}, {name}: loss of base, agent, merge:", *losses)
