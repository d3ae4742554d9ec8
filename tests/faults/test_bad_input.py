"""What cannot work gets one line that names the field, what was expected and what came, and exit code 2."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
from jobs import MNIST, Jobs, RunningTask, free_ports, jobs

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

HOSTS = ["--ps_hosts=localhost:2222", "--worker_hosts=localhost:2223,localhost:2224"]
WORKER = [*HOSTS, "--job_name=worker"]
# A script that fails if it gets any further, and so fast that it cannot have imported torch.
SCRIPT = "import sys, argosy\ntry:\n    argosy.join()\nfinally:\n    assert 'torch' not in sys.modules\n"

FLAGS: dict[str, tuple[list[str], list[str]]] = {
    "unknown job": ([*HOSTS, "--job_name=master"], ["job_name", "ps, worker", "'master'"]),
    "no job": (HOSTS, ["job_name", "none"]),
    "task index out of range": ([*WORKER, "--task_index=2"], ["task_index", "0 to 1", "2"]),
    "task index not a number": ([*WORKER, "--task_index=one"], ["task_index", "whole number", "'one'"]),
    "task index negative": ([*WORKER, "--task_index", "-1"], ["task_index", "whole number", "'-1'"]),
    "same address twice": (
        ["--ps_hosts=localhost:2222", "--worker_hosts=localhost:2222", "--job_name=ps"],
        ["/job:worker/task:0", "address of its own", "localhost:2222", "/job:ps/task:0"],
    ),
    "port out of range": (
        ["--ps_hosts=localhost:70000", "--worker_hosts=h:1", "--job_name=ps"],
        ["/job:ps/task:0", "1 to 65535", "localhost:70000"],
    ),
    "no port": (["--ps_hosts=h", "--worker_hosts=h:1", "--job_name=ps"], ["host:port", "'h'"]),
    "no ps in an asynchronous mode": (
        ["--worker_hosts=h:1,h:2", "--job_name=worker", "--mode=async"],
        ["mode", "at least one ps task", "no ps task"],
    ),
    "unknown mode": ([*WORKER, "--mode=fast"], ["mode", "sync, async", "'fast'"]),
    "contradiction": ([*WORKER, "--mode=async", "--is_sync=True"], ["mode", "sync", "'async'"]),
    "is_sync": ([*WORKER, "--is_sync=perhaps"], ["is_sync", "true or false", "'perhaps'"]),
    "aggregate larger than the workers": (
        [*WORKER, "--mode=sync", "--aggregate=3"],
        ["aggregate", "at most the number of workers, 2", "got 3"],
    ),
    "flag without a value": (["--job_name"], ["--job_name", "a value", "none"]),
    "wait": ([*WORKER, "--wait=soon"], ["wait", "seconds", "'soon'"]),
    "not on loopback": (
        ["--ps_hosts=192.0.2.7:2222", "--worker_hosts=h:1", "--job_name=ps"],
        ["address of /job:ps/task:0", "loopback", "192.0.2.7:2222", "--insecure"],
    ),
    "bind not on loopback": (
        [*HOSTS, "--job_name=ps", "--bind=0.0.0.0:2222"],
        ["loopback", "0.0.0.0:2222", "--insecure"],
    ),
    "host name": (
        ["--ps_hosts=no-such-host.invalid:2222", "--worker_hosts=h:1", "--job_name=ps"],
        ["/job:ps/task:0", "a host name that resolves", "no-such-host.invalid"],
    ),
}
VARIABLES: dict[str, tuple[str, str, list[str]]] = {
    "TF_CONFIG not JSON": ("TF_CONFIG", "{cluster: oops", ["TF_CONFIG", "JSON", "{cluster: oops"]),
    "TF_CONFIG without a task": (
        "TF_CONFIG",
        json.dumps({"cluster": {"worker": ["h:1"]}}),
        ["TF_CONFIG task"],
    ),
    "ARGOSY_CLUSTER": ("ARGOSY_CLUSTER", "[1]", ["cluster", "JSON object", "[1]"]),
}


def assert_refused(task: RunningTask, parts: list[str]) -> None:
    assert task.wait() == 2, task
    assert task.out == "", task
    assert task.err.startswith("argosy: error: "), task
    assert task.err.count("\n") == 1, task
    assert task.err.endswith("\n"), task
    for part in parts:
        assert part in task.err, task


def test_flags_and_variables(jobs: Jobs) -> None:
    """All at once: a few at a time would only take longer."""
    script = jobs.script(SCRIPT)
    started = []
    for name, (flags, parts) in FLAGS.items():
        started.append((jobs.start(name, [script, *flags]), parts))
    for name, (variable, value, parts) in VARIABLES.items():
        started.append((jobs.start(name, [script], **{variable: value}), parts))
    for task, parts in started:
        assert_refused(task, parts)


def test_a_port_that_is_taken(jobs: Jobs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        flags = [f"--ps_hosts={address}", "--worker_hosts=h:1", "--job_name=ps"]
        task = jobs.start("taken", [jobs.script(SCRIPT), *flags])
        assert_refused(task, ["address of /job:ps/task:0", f"at {address}", "in use", "choose a free port"])


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["run", "nowhere.py"], ["nowhere.py"]),
        (["run", "--mode", "sync", "--aggregate", "3", "SCRIPT"], ["aggregate", "2", "3"]),
    ],
    ids=["no script", "aggregate"],
)
def test_the_launcher(jobs: Jobs, words: list[str], parts: list[str]) -> None:
    script = str(jobs.script(SCRIPT))
    filled = [script if word == "SCRIPT" else word for word in words]
    assert_refused(jobs.start("launcher", ["-m", "argosy.cli", *filled]), parts)


def test_data_and_optimizer(jobs: Jobs, tmp_path: Path) -> None:
    """What only the program can know: MNIST's files, and an optimizer that no server can run."""
    empty, damaged = tmp_path / "empty", tmp_path / "damaged"
    empty.mkdir()
    damaged.mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (damaged / f"{name}-ubyte").write_bytes(b"\x00\x00\x08\x01\x00\x00")
    without = jobs.start("empty", [MNIST, "--data", empty])
    bad = jobs.start("damaged", [MNIST, "--data", damaged])
    script = jobs.script(
        "import torch, argosy\nreplica = argosy.join()\n"
        "replica.distribute(torch.optim.LBFGS(torch.nn.Linear(2, 2).parameters()))\n"
    )
    server, worker = free_ports(2)
    hosts = [f"--ps_hosts=localhost:{server}", f"--worker_hosts=localhost:{worker}"]
    ps = jobs.start("ps", [script, *hosts, "--job_name=ps"])
    lbfgs = jobs.start("lbfgs", [script, *hosts, "--job_name=worker"])
    assert_refused(without, ["data", str(empty), "train-images-idx3-ubyte"])
    assert_refused(bad, ["data", str(damaged)])
    assert_refused(lbfgs, ["optimizer", "torch.optim.Adam", "LBFGS"])
    begin = time.monotonic()
    assert ps.wait() == 1, ps  # it hears of it, and ends
    assert time.monotonic() - begin < 15, ps
    assert "the job was ended by /job:worker/task:0" in ps.err, ps


CALLS = """
import sys, torch, argosy

replica = argosy.join()
model = torch.nn.Linear(2, 2)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
if sys.argv[1] == "join":
    argosy.join()
replica.distribute(torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1))
"""


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("join", "train.py:8: join(): this process joined its cluster at train.py:4"),
        ("distribute", "train.py:9: distribute(): the servers train one model, and it was distributed at"),
    ],
)
def test_a_mistake_in_the_script_is_said_once(jobs: Jobs, call: str, says: str) -> None:
    words = ["-m", "argosy.cli", "run", "--ps", 1, "--workers", 2, "--log-dir", jobs.folder / "logs"]
    launcher = jobs.start("launcher", [*words, jobs.script(CALLS), call])
    assert launcher.wait() == 2, launcher
    said = [line for line in (launcher.out + launcher.err).splitlines() if says in line]
    assert len(said) == 1, launcher
    assert said[0].startswith("argosy: error: "), launcher
