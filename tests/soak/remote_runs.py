"""10,000 steps by one client: nothing grows, captured or not, in the client or on its tasks. `make soak`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Small, as it is the bookkeeping that could grow; and once with a gradient that is made in the memory that it
# is sent in. Each process's memory is read at half and at the end.
CLIENT = """
import sys
import psutil
import torch
import torch.nn.functional as F
from torch import nn
import argosy

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"
with argosy.connect() as client:
    with argosy.device(PS):
        width = int(sys.argv[2])
        model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(images, labels):
        with argosy.device(WORKER):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
        with argosy.device(PS):
            optimizer.step()
        return loss.detach()

    if sys.argv[1] == "captured":
        step = argosy.capture(step)
    me = psutil.Process()
    family = {me.pid: "client"}
    for child in me.parent().children(recursive=True):
        if child.pid != me.pid:
            family[child.pid] = "task"
    sizes = []
    for number in range(1, 10_001):
        loss = step(torch.randn(16, 64), torch.randint(0, 10, (16,)))
        if number % 10 == 0:
            loss.item()
        if number in (5_000, 10_000):
            client.synchronize()
            sizes.append({pid: psutil.Process(pid).memory_info().rss for pid in family})
            print(number, "held", client.held(PS), client.held(WORKER), flush=True)
    for pid, name in family.items():
        print("growth", name, sizes[1][pid] - sizes[0][pid], "of", sizes[1][pid], flush=True)
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("how", "width"), [("captured", 100), ("captured", 1000), ("uncaptured", 100)])
def test_nothing_grows_over_10_000_steps(how: str, width: int, tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    command = [sys.executable, "-m", "argosy.cli", "run", "--serve", "--ps", "1", "--workers", "1"]
    done = subprocess.run(
        [*command, "--threads", "1", str(script), how, str(width)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition("growth ")[2].split() for line in done.stdout.splitlines() if "growth" in line]
    print(how, width, done.stdout)
    assert len(lines) >= 3
    for name, grown, _, size in lines:
        assert int(grown) < 4 * 2**20, f"{name} grew by {grown} to {size} bytes"
