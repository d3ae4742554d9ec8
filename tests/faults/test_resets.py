"""Connections between hosts that break, and packets that are lost: a job pauses, and ends exactly right.

Two servers on two hosts, three workers on a third. Every update takes 1 off every parameter, so that the
parameters are the number of updates that each server has made.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from forking import Nursery

from hosts import Hosts, needed_to_break

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120), *needed_to_break]

STEPS = {"sync": 120, "async": 500}
PATIENCE = 60.0
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
        time.sleep(PAUSE)
values = torch.cat([parameter.detach() for parameter in model])
print(f"ledger {session.global_step} {values.min().item():.0f} {values.max().item():.0f}", flush=True)
"""
PLACES = {"ps0": 1, "ps1": 2, "worker0": 3, "worker1": 3, "worker2": 3}
LINKS = {"server and server": (1, 2), "workers and server 0": (3, 1), "workers and server 1": (3, 2)}
_ports = count(15001, 5)


class Job:
    """Five tasks; what they say and how they end is in a folder."""

    def __init__(
        self,
        nursery: Nursery,
        hosts: Hosts,
        mode: str,
        folder: Path,
        steps: int | None = None,
        pause: float = 0.004,
        lease: float = 15.0,
    ) -> None:
        self._folder = folder
        self.steps = STEPS[mode] if steps is None else steps
        script = folder / "ledger.py"
        script.write_text(LEDGER.replace("STEPS", str(self.steps)).replace("PAUSE", str(pause)))
        port = next(_ports)
        servers = ",".join(f"{hosts.address(place)}:{port}" for place in (1, 2))
        workers = ",".join(f"{hosts.address(3)}:{port + index}" for index in range(3))
        common = [f"--ps_hosts={servers}", f"--worker_hosts={workers}", f"--mode={mode}"]
        common += ["--insecure", f"--lease={lease}"]
        for name, place in PLACES.items():
            who = [f"--job_name={name[:-1]}", f"--task_index={name[-1]}"]
            argv = [str(script), *who, *common]
            nursery.start(hosts.names[place - 1], argv, self._folder / f"{name}.out")

    def said(self, name: str) -> str:
        path = self._folder / f"{name}.out"
        return path.read_text() if path.exists() else ""

    def until_all_train(self, turn: int = 10) -> None:
        deadline = time.monotonic() + PATIENCE
        while not all(f"turn {turn}\n" in self.said(name) for name in PLACES if name.startswith("worker")):
            assert time.monotonic() < deadline, f"it does not begin\n{self}"
            time.sleep(0.01)

    def is_over(self) -> bool:
        return all((self._folder / f"{name}.code").exists() for name in PLACES)

    def codes(self) -> dict[str, int]:
        deadline = time.monotonic() + PATIENCE
        paths = {name: self._folder / f"{name}.code" for name in PLACES}
        while missing := [name for name, path in paths.items() if not path.exists()]:
            assert time.monotonic() < deadline, f"{missing} did not end\n{self}"
            time.sleep(0.02)
        return {name: int(path.read_text()) for name, path in paths.items()}

    def must_end_right(self) -> None:
        """Every task exits with 0, and every shard has made exactly the updates that were acknowledged."""
        codes = self.codes()
        assert set(codes.values()) == {0}, f"{codes}\n{self}"
        exact = f"ledger {self.steps} -{self.steps} -{self.steps}\n"
        for name in PLACES:
            assert "argosy: error: " not in self.said(name), str(self)
            assert "is gone" not in self.said(name), str(self)
            assert not name.startswith("worker") or self.said(name).endswith(exact), str(self)

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


every_link = pytest.mark.parametrize("link", LINKS.values(), ids=LINKS.keys())
both_modes = pytest.mark.parametrize("mode", ["sync", "async"])


@every_link
@both_modes
def test_a_reset_changes_nothing(
    nursery: Nursery, hosts: Hosts, tmp_path: Path, mode: str, link: tuple[int, int]
) -> None:
    job = Job(nursery, hosts, mode, tmp_path)
    job.until_all_train()
    hosts.break_connections(*link)
    job.must_end_right()


@both_modes
def test_packets_that_are_lost_for_a_while_change_nothing(
    nursery: Nursery, hosts: Hosts, tmp_path: Path, mode: str
) -> None:
    job = Job(nursery, hosts, mode, tmp_path)
    job.until_all_train()
    for link in LINKS.values():
        with hosts.losing_packets(*link):
            time.sleep(0.5)
    job.must_end_right()


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("pause", "steps"), [(0.005, None), (4.0, 15)], ids=["quick", "4 s a step"])
@both_modes
def test_a_minute_of_resets(
    nursery: Nursery, hosts: Hosts, tmp_path: Path, mode: str, pause: float, steps: int | None
) -> None:
    """Every connection of some two hosts is reset, once a second."""
    wanted = {"sync": 2000, "async": 6000}[mode] if steps is None else steps * (3 if mode == "async" else 1)
    job = Job(nursery, hosts, mode, tmp_path, wanted, pause)
    job.until_all_train(1)
    chance = random.Random(7)
    end = time.monotonic() + 60
    resets = 0
    while time.monotonic() < end and not job.is_over():
        with hosts.resetting(*chance.choice(list(LINKS.values()))):
            time.sleep(0.04)
        resets += 1
        time.sleep(0.96)
    assert resets > 20
    job.must_end_right()


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [1, 5, 10])
@every_link
@both_modes
def test_no_packets_for_less_than_the_lease(
    nursery: Nursery, hosts: Hosts, tmp_path: Path, mode: str, link: tuple[int, int], seconds: float
) -> None:
    job = Job(nursery, hosts, mode, tmp_path)
    job.until_all_train()
    with hosts.losing_packets(*link):
        time.sleep(seconds)
    job.must_end_right()


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("both_ways", [True, False], ids=["both ways", "one way"])
@both_modes
def test_no_packets_for_25_s_with_a_lease_of_60(
    nursery: Nursery, hosts: Hosts, tmp_path: Path, mode: str, both_ways: bool
) -> None:
    job = Job(nursery, hosts, mode, tmp_path, lease=60.0)
    job.until_all_train()
    with hosts.losing_packets(1, 2, both_ways), hosts.losing_packets(3, 1, both_ways):
        time.sleep(25)
    job.must_end_right()
