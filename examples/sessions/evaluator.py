"""One more task that evaluates every checkpoint while the others train.

argosy run --ps 1 --workers 2 --evaluator examples/sessions/evaluator.py runs/judged
"""

import sys

import torch

import argosy

x = torch.linspace(-1, 1, 16).view(-1, 1)


def judge(model: torch.nn.Module) -> dict[str, float]:
    """What is written beside each checkpoint."""
    return {"error": torch.nn.functional.mse_loss(model(x), 3 * x + 1).item()}


replica = argosy.join()
model = torch.nn.Linear(1, 1)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.01))
with replica.session(
    model, optimizer, last_step=400, directory=sys.argv[1], save_every=100, evaluate=judge
) as session:
    for _ in session.batches(range(10**6)):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), 3 * x + 1).backward()
        optimizer.step()
