"""A hook of your own: stop when the loss has not fallen for 50 steps.

python examples/sessions/own_hook.py
"""

import torch

import argosy


class Patience(argosy.hooks.Hook):
    """Ends the training when it stands still."""

    def __init__(self, steps: int) -> None:
        self._steps, self._best, self._at = steps, float("inf"), 0

    def after_step(self, session: argosy.Session) -> None:
        """Look at what the loop has logged."""
        loss = float(session.logged.get("loss", self._best))
        if loss < self._best:
            self._best, self._at = loss, session.global_step
        elif session.global_step - self._at >= self._steps:
            session.stop()


replica = argosy.join()
model = torch.nn.Linear(1, 1)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
x = torch.linspace(-1, 1, 16).view(-1, 1)
hooks = [Patience(50), argosy.hooks.NanGuard()]
with replica.session(model, optimizer, last_step=10_000, hooks=hooks) as session:
    for _ in session.batches(range(10**6)):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        loss.backward()
        session.log(loss=loss.detach())
        optimizer.step()
print(f"stopped by itself at step {session.global_step}")
