"""One reset of every connection between two hosts: a job ends exactly right or with errors, nothing else.

Two servers on two hosts, three workers on a third. Every update takes 1 off every parameter, so that the
parameters are the number of updates that each server has made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from hosts import Hosts, needed_to_break

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120), *needed_to_break]

STEPS = {"sync": 120, "async": 500}
# A job that goes wrong has ended by then: 2 s until a loss is noticed, 10 s until all have heard of it.
PATIENCE = 45.0
LEDGER = """
import time, torch, argosy

replica = argosy.join()
torch.set_num_threads(1)
model = torch.nn.ParameterList([torch.zeros(50_000), torch.zeros(50_000)])
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
with replica.session(model, optimizer, last_step=STEPS) as session:
    for turn in session.batches(range(10**9)):
        for parameter in model:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        print(f"turn {turn}", flush=True)
        time.sleep(0.004)
values = torch.cat([parameter.detach() for parameter in model])
print(f"ledger {session.global_step} {values.min().item():.0f} {values.max().item():.0f}", flush=True)
"""
PLACES = {"ps0": 1, "ps1": 2, "worker0": 3, "worker1": 3, "worker2": 3}
LINKS = {"server and server": (1, 2), "workers and server 0": (3, 1), "workers and server 1": (3, 2)}
_ports = count(15001, 5)


class Nursery:
    """Starts tasks on hosts; see nursery.py."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("nursery.py")
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, program], stdin=subprocess.PIPE, text=True, env=environ
        )

    def start(self, namespace: str, argv: list[str], out: Path) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"namespace": namespace, "argv": argv, "out": str(out)}) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.communicate(timeout=20)


class Job:
    """Five tasks; what they say and how they end is in a folder."""

    def __init__(self, nursery: Nursery, hosts: Hosts, mode: str, folder: Path) -> None:
        self._folder = folder
        script = folder / "ledger.py"
        script.write_text(LEDGER.replace("STEPS", str(STEPS[mode])))
        port = next(_ports)
        servers = ",".join(f"{hosts.address(place)}:{port}" for place in (1, 2))
        workers = ",".join(f"{hosts.address(3)}:{port + index}" for index in range(3))
        common = [f"--ps_hosts={servers}", f"--worker_hosts={workers}", f"--mode={mode}", "--insecure"]
        for name, place in PLACES.items():
            who = [f"--job_name={name[:-1]}", f"--task_index={name[-1]}"]
            argv = [str(script), *who, *common]
            nursery.start(hosts.names[place - 1], argv, self._folder / f"{name}.out")

    def said(self, name: str) -> str:
        path = self._folder / f"{name}.out"
        return path.read_text() if path.exists() else ""

    def until_all_train(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not all("turn 10\n" in self.said(name) for name in PLACES if name.startswith("worker")):
            assert time.monotonic() < deadline, f"it does not begin\n{self}"
            time.sleep(0.01)

    def codes(self) -> dict[str, int]:
        deadline = time.monotonic() + PATIENCE
        paths = {name: self._folder / f"{name}.code" for name in PLACES}
        while missing := [name for name, path in paths.items() if not path.exists()]:
            assert time.monotonic() < deadline, f"{missing} did not end\n{self}"
            time.sleep(0.02)
        return {name: int(path.read_text()) for name, path in paths.items()}

    def __str__(self) -> str:
        return "\n".join(f"--- {name}\n{self.said(name)[-1500:]}" for name in PLACES)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    made = Hosts.make(3)
    yield made
    made.close()


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS.keys())
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_right_or_loud(
    nursery: Nursery, hosts: Hosts, tmp_path: Path, mode: str, link: tuple[int, int]
) -> None:
    job = Job(nursery, hosts, mode, tmp_path)
    job.until_all_train()
    hosts.break_connections(*link)
    codes = job.codes()
    exact = f"ledger {STEPS[mode]} -{STEPS[mode]} -{STEPS[mode]}\n"
    right = [name for name in PLACES if name.startswith("worker") and job.said(name).endswith(exact)]
    for name, code in codes.items():
        if name.startswith("worker"):
            assert (code == 0) == (name in right), f"{codes}\n{job}"
        else:
            assert (code == 0) == bool(right), f"{codes}\n{job}"
        assert (code == 0) == ("argosy: error: " not in job.said(name)), f"{codes}\n{job}"
