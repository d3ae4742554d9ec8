"""Moving averages of the parameters, kept along with the training and used to evaluate.

python examples/sessions/averages.py
"""

import torch

import argosy

replica = argosy.join()
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.3))
with replica.session(model, optimizer, last_step=300, average=0.98) as session:
    for _ in session.batches(range(10**6)):
        x = torch.rand(4, 1)
        noisy = 3 * x + 1 + torch.randn(4, 1)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), noisy).backward()
        optimizer.step()
    last = model.weight.item()
    with session.averaged():
        mean = model.weight.item()
print(f"the line's slope is 3; the last parameters say {last:.2f}, the averages {mean:.2f}")
