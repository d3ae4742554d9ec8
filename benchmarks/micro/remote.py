"""Remote devices: operations a second that a client sends, a captured MNIST step over two tasks, and two
stages of a model on two tasks against one.

    argosy run --serve --ps 1 --workers 1 --threads 1 benchmarks/micro/remote.py --what step --out DIR
    argosy run --serve --ps 0 --workers 2 --threads 1 benchmarks/micro/remote.py --what stages --out DIR

Parameters and updates on a ps task, forward and backward on a worker, one thread a process. The same
placement in a TensorFlow session: `benchmarks/contenders/tensorflow_session.py`.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import argosy
from benchmarks.contenders.job import write_whole

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"
_OPERATIONS = 20_000


def operations(client: argosy.Client) -> dict[str, float]:
    """How many small operations a second are sent, and done."""
    with argosy.device(PS):
        x, y = torch.ones(2, 2), torch.ones(2, 2)
    for _ in range(1000):
        x + y
    client.synchronize()
    begin = time.perf_counter()
    for _ in range(_OPERATIONS):
        x + y
    sent = time.perf_counter() - begin
    client.synchronize()
    return {"sent": _OPERATIONS / sent, "done": _OPERATIONS / (time.perf_counter() - begin)}


def mnist_step(client: argosy.Client, seconds: float) -> dict[str, float]:
    """Milliseconds a captured step of 784-500-500-10, batch 32, SGD with momentum, its loss read each time;
    of them in the client. And a step when the client runs ahead.
    """
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
    for _ in range(20):
        captured(images, labels).item()
    client.synchronize()
    in_client, count = 0.0, 0
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        before = time.thread_time()
        loss = captured(images, labels)
        in_client += time.thread_time() - before
        loss.item()
        count += 1
    client.synchronize()
    whole = time.perf_counter() - begin
    begin = time.perf_counter()
    for _ in range(count):
        captured(images, labels)
    client.synchronize()
    ahead = time.perf_counter() - begin
    return {
        "step": whole / count * 1000,
        "client": in_client / count * 1000,
        "ahead": ahead / count * 1000,
    }


def stages(client: argosy.Client, seconds: float) -> dict[str, float]:
    """How many times faster `examples/model_parallel.py` is on two tasks than on one."""
    example = _example("model_parallel")
    workers = [name for name in client.devices() if "/job:worker/" in name]
    args = argparse.Namespace(steps=3, batch=1024, micro_batches=8, width=768, layers=3)
    images, labels = torch.randn(args.batch, args.width), torch.randint(0, 10, (args.batch,))
    spent: dict[int, list[float]] = {1: [], 2: []}
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds or not spent[2]:
        for count, devices in ((1, workers[:1] * 2), (2, workers[:2])):
            spent[count].append(example.train(client, devices, images, labels, args)[0])
    one, two = (sorted(each)[len(each) // 2] for each in spent.values())
    return {"one": one * 1000, "two": two * 1000, "stages": one / two}


def _example(name: str) -> Any:
    path = Path(__file__).resolve().parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Measure, and write it down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=["step", "stages"], required=True)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    measures: dict[str, Callable[[argosy.Client], dict[str, float]]] = {
        "step": lambda client: operations(client) | mnist_step(client, args.seconds),
        "stages": lambda client: stages(client, args.seconds),
    }
    with argosy.connect() as client:
        found = measures[args.what](client)
    write_whole(args.out / "client.json", found)
    print(found)


if __name__ == "__main__":
    main()
