"""A client on one host, a ps beside it, a worker on the other: a step over both, plain and captured, against
the same step here. With `--die`, the worker is gone in the middle.

    python over_hosts.py 10.77.0.1:15001 [--die]
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import argosy

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"
STEPS = 8


def make_model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))


def train(model: nn.Module, where: str | None, capture: bool) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    computing = argosy.device(where)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        with computing:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
        optimizer.step()
        return loss.detach()

    call = argosy.capture(step) if capture else step
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        images = torch.randn(32, 784, generator=generator)
        losses.append(call(images, torch.randint(0, 10, (32,), generator=generator)).item())
    return losses


def main() -> None:
    torch.set_num_threads(1)
    here = make_model()
    expected = train(here, None, capture=False)
    with argosy.connect(sys.argv[1], wait=30) as client:
        for capture in (False, True):
            model = argosy.place(make_model(), PS)
            assert train(model, WORKER, capture) == expected
            for name, value in argosy.fetch(model.state_dict()).items():
                assert torch.equal(value, here.state_dict()[name]), name
        assert client.ran(WORKER)["aten::addmm"] == client.ran(WORKER)["aten::relu"] * 2
        print("the same bits", flush=True)
        if "--die" in sys.argv:
            sys.stdin.readline()  # the worker is killed now
            train(argosy.place(make_model(), PS), WORKER, capture=True)


if __name__ == "__main__":
    main()
