"""In-graph replication against between-graph training: one client that drives two workers ends where two
workers end that train by themselves, in step, on the same batches.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Both ways: digits i, i + 2, ... are worker i's, in batches of 32, in their order.
BETWEEN = """
import sys
import torch
import torch.nn.functional as F
from torch import nn
import argosy
from argosy.datasets import mnist

replica = argosy.join()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 10))
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9))
digits = mnist.load()
images, labels = digits.train_images[replica.index :: 2], digits.train_labels[replica.index :: 2]
batches = [(images[at : at + 32], labels[at : at + 32]) for at in range(0, 30 * 32, 32)]
with replica.session(model, optimizer, last_step=30) as session:
    for batch_images, batch_labels in session.batches(batches):
        optimizer.zero_grad()
        F.cross_entropy(model(batch_images), batch_labels).backward()
        optimizer.step()
if replica.is_chief:
    torch.save(model.state_dict(), sys.argv[1])
"""


def run(*words: str) -> None:
    command = [
        sys.executable,
        "-m",
        "argosy.cli",
        "run",
        "--ps",
        "1",
        "--workers",
        "2",
        "--threads",
        "1",
        *words,
    ]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.processes
def test_in_graph_ends_where_between_graph_ends(tmp_path: Path) -> None:
    script, between, inside = tmp_path / "between.py", tmp_path / "between.pt", tmp_path / "inside.pt"
    script.write_text(BETWEEN)
    run("--mode", "sync", str(script), str(between))
    example = Path(__file__).resolve().parents[2] / "examples" / "in_graph.py"
    run("--serve", str(example), "--steps", "30", "--save", str(inside))
    expected, found = (torch.load(path, weights_only=True) for path in (between, inside))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
