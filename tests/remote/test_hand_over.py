"""A server that first runs what a client sends, and then keeps the parameters of a training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import ONE_THREAD, listening

PROGRAM = """
import json, sys
import torch
import argosy

cluster, job = json.loads(sys.argv[1]), sys.argv[2]
del sys.argv[1:]
if job == "ps":
    argosy.Server(cluster, "ps", 0).join()
    sys.exit(0)
with argosy.Server(cluster, "worker", 0) as server, argosy.connect(server.target, wait=60) as client:
    with argosy.device("/job:ps/task:0"):
        total = torch.ones(5).sum()
    print("sum", total.item(), client.ran("/job:ps/task:0")["aten::sum"])
replica = argosy.join(cluster=cluster, job_name="worker", task_index=0)
model = torch.nn.Linear(2, 1)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
with replica.session(model, optimizer, last_step=3) as session:
    for _ in session.batches(range(9)):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
print("steps", session.global_step)
"""


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_client_first_and_then_a_training(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    sockets = {"ps": listening(), "worker": listening()}
    cluster = json.dumps({job: [address] for job, (_, address) in sockets.items()})
    tasks: dict[str, subprocess.Popen[str]] = {}
    try:
        for job, (bound, _) in sockets.items():
            with bound:
                tasks[job] = subprocess.Popen(
                    [sys.executable, str(script), cluster, job],
                    env=dict(os.environ) | ONE_THREAD | {"ARGOSY_LISTEN_FD": str(bound.fileno())},
                    pass_fds=(bound.fileno(),),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
        said = {job: process.communicate(timeout=100)[0] for job, process in tasks.items()}
    finally:
        for process in tasks.values():
            process.kill()
            process.wait()
    assert {job: process.returncode for job, process in tasks.items()} == {"ps": 0, "worker": 0}, said
    assert "sum 5.0 1" in said["worker"]
    assert "steps 3" in said["worker"]
