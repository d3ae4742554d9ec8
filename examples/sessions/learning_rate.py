"""The learning rate times the number of replicas, after a warm-up; then torch's own scheduler.

argosy run --ps 1 --workers 2 --mode sync examples/sessions/learning_rate.py
"""

import torch

import argosy

replica = argosy.join()
model = torch.nn.Linear(1, 1)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.01))
argosy.scale_learning_rate(optimizer, replica, warmup=50)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
x = torch.linspace(-1, 1, 16).view(-1, 1)
with replica.session(model, optimizer, last_step=200) as session:
    for _ in session.batches(range(10**6)):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), 3 * x + 1).backward()
        optimizer.step()
        scheduler.step()
print(f"after {session.global_step} steps: {model.weight.item():.3f} x + {model.bias.item():.3f}")
