"""Stop it (Ctrl-C), start it again: it goes on where it was, bit for bit.

python examples/sessions/resume.py runs/line
argosy run --ps 1 --workers 2 --mode sync examples/sessions/resume.py runs/line
"""

import sys

import torch
from torch.utils.data import TensorDataset

import argosy

replica = argosy.join()
x = torch.linspace(-1, 1, 256).view(-1, 1)
loader = replica.loader(TensorDataset(x, 3 * x + 1), batch_size=16, seed=1)
model = torch.nn.Linear(1, 1)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
with replica.session(model, optimizer, directory=sys.argv[1], save_every=50, last_step=200) as session:
    for inputs, targets in session.batches(loader):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
print(f"after {session.global_step} steps: {model.weight.item():.3f} x + {model.bias.item():.3f}")
