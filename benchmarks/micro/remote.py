"""Remote devices: operations a second that a client sends, and a captured MNIST step over two tasks.

    python -m benchmarks.micro.remote

Parameters and updates on a ps task, forward and backward on a worker, one thread a process. The same
placement in a TensorFlow session: `benchmarks/contenders/tensorflow_session.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import argosy

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"
_OPERATIONS, _STEPS = 20_000, 100


def operations_a_second(client: argosy.Client) -> dict[str, float]:
    """How fast small operations are sent, and how fast they are done."""
    with argosy.device(PS):
        x, y = torch.ones(2, 2), torch.ones(2, 2)
    for _ in range(100):
        x + y
    client.synchronize()
    begin = time.perf_counter()
    for _ in range(_OPERATIONS):
        x + y
    sent = time.perf_counter() - begin
    client.synchronize()
    done = time.perf_counter() - begin
    return {"sent a second": _OPERATIONS / sent, "done a second": _OPERATIONS / done}


def mnist_step(client: argosy.Client) -> dict[str, float]:
    """Milliseconds a captured step of 784-500-500-10, batch 32, SGD with momentum; of them in the client."""
    with argosy.device(PS):
        model = nn.Sequential(
            nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 10)
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        with argosy.device(WORKER):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
        with argosy.device(PS):  # so its momentum is there too
            optimizer.step()
        return loss.detach()

    captured = argosy.capture(step)
    images, labels = torch.randn(32, 784), torch.randint(0, 10, (32,))
    for _ in range(5):
        captured(images, labels).item()
    in_client = 0.0
    begin = time.perf_counter()
    for _ in range(_STEPS):
        before = time.thread_time()
        loss = captured(images, labels)
        in_client += time.thread_time() - before
        loss.item()
    whole = time.perf_counter() - begin
    return {"ms a step": whole / _STEPS * 1000, "ms in the client": in_client / _STEPS * 1000}


def main() -> None:
    """As a script this starts a cluster and itself as its client; as a client it measures."""
    if "--client" not in sys.argv:
        here = str(Path(__file__).resolve())
        command = [sys.executable, "-m", "argosy.cli", "run", "--serve", "--ps", "1", "--workers", "1"]
        sys.exit(subprocess.run([*command, "--threads", "1", here, "--client"]).returncode)
    with argosy.connect() as client:
        print(json.dumps(operations_a_second(client) | mnist_step(client)))


if __name__ == "__main__":
    main()
