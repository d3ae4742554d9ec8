"""torchmonarch, one client: small operations on another process, and the MNIST step of
`benchmarks/micro/remote.py`, parameters and all on one task, as its meshes exchange tensors by NCCL alone.

.venv-peers/bin/python -m benchmarks.contenders.monarch_mesh --out DIR
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.contenders.job import milliseconds, write_whole

_OPERATIONS = 2000


def _operations(fetch: Callable[[Tensor], Any]) -> float:
    """How many a second."""
    x, y = torch.ones(2, 2), torch.ones(2, 2)
    fetch(x + y)
    begin = time.perf_counter()
    for _ in range(_OPERATIONS):
        x + y
    fetch(x)
    return _OPERATIONS / (time.perf_counter() - begin)


def _step(fetch: Callable[[Tensor], Any], seconds: float) -> float:
    """Milliseconds, the loss read each time."""
    model = nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(32, 784), torch.randint(0, 10, (32,))

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        fetch(loss.detach())

    return milliseconds(step, 5, seconds)


def main() -> None:
    """One task beside this process; a dimension called "gpus" is what lets it run without any."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=Path())
    args = parser.parse_args()
    torch.set_num_threads(1)
    actor: Any = importlib.import_module("monarch.actor")
    monarch: Any = importlib.import_module("monarch")
    with actor.this_host().spawn_procs(per_host={"gpus": 1}).activate():

        def fetch(tensor: Tensor) -> Any:
            return monarch.fetch_shard(tensor).result()

        found = {"sent": _operations(fetch), "step": _step(fetch, args.seconds)}
    print(found)
    write_whole(args.out / "client.json", found)


if __name__ == "__main__":
    main()
