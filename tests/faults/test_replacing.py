"""Workers killed with -9 and started again, as a launcher or a platform does: the same bits as without."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forking import ForkedCluster, Nursery

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

# What a worker has to lose: its place in the data, all random generators, a schedule.
TRAIN = """
import hashlib, os, random, sys, time
import numpy, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import argosy

replica = argosy.join()
pause, loader_kind, directory = float(sys.argv[1]), sys.argv[2], sys.argv[3]
base = replica.broadcast(5)
replica.seed(base)
numpy.random.seed(replica.index)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 1))
optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=0.01))
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
generator = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(90, 8, generator=generator), torch.randn(90, 1, generator=generator))
if loader_kind == "own":
    loader = DataLoader(data, batch_size=7, shuffle=True)
else:
    loader = replica.loader(data, batch_size=7, seed=3)
options = {"directory": directory, "save_every": 5} if directory != "-" else {}
with replica.session(model, optimizer, last_step=24, state={"schedule": schedule}, **options) as session:
    print("entered", flush=True)
    for inputs, targets in session.batches(loader):
        print(f"at {session.global_step}", flush=True)
        time.sleep(pause)
        noise = random.gauss(0, 0.1) + numpy.random.normal() * 0.1
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs + noise), targets).backward()
        optimizer.step()
        schedule.step()
        print(f"made {session.global_step}", flush=True)
        time.sleep(pause)
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.numpy().tobytes())
print(f"done {session.global_step} {digest.hexdigest()}", flush=True)
"""
STEPS = 24


_names = itertools.count()


def started(
    nursery: Nursery, folder: Path, pause: float, loader: str, directory: str, lane: str
) -> ForkedCluster:
    script = folder / "train.py"
    script.write_text(TRAIN)
    environ = {"ARGOSY_MODE": "sync", "ARGOSY_MAX_RESTARTS": "3", "ARGOSY_LANE": lane}
    argv = [str(script), str(pause), loader, directory]
    return ForkedCluster(nursery, argv, environ, folder / f"job{next(_names)}")


def digest(cluster: ForkedCluster) -> str:
    """What all workers have in the end."""
    try:
        assert set(cluster.wait().values()) == {0}, str(cluster)
    finally:
        cluster.close()
    found = {cluster[f"worker{index}"].out.splitlines()[-1] for index in range(3)}
    assert len(found) == 1, str(cluster)
    assert next(iter(found)).startswith(f"done {STEPS} "), str(cluster)
    return found.pop()


Kill = Callable[[ForkedCluster, Callable[[int], None]], None]


def while_computing(cluster: ForkedCluster, replace: Callable[[int], None]) -> None:
    cluster["worker1"].until("at 5\n")
    replace(1)


def after_a_step(cluster: ForkedCluster, replace: Callable[[int], None]) -> None:
    cluster["worker2"].until("made 7\n")
    replace(2)


def before_the_first_push(cluster: ForkedCluster, replace: Callable[[int], None]) -> None:
    cluster["worker1"].until("entered\n")
    replace(1)


def the_chief(cluster: ForkedCluster, replace: Callable[[int], None]) -> None:
    cluster["worker0"].until("at 6\n")
    replace(0)


def as_it_waits(cluster: ForkedCluster, replace: Callable[[int], None]) -> None:
    """Its push is held: another worker, which the step waits for, dies first and is started again later."""
    cluster["worker1"].until("at 4\n")
    cluster["worker1"].kill()
    cluster["worker2"].until("at 4\n")
    time.sleep(0.5)  # the others have given their gradients by now
    replace(2)
    replace(1)


def again_and_again(cluster: ForkedCluster, replace: Callable[[int], None]) -> None:
    for worker, text in ((1, "made 2\n"), (0, "made 5\n"), (1, "at 8\n"), (2, "made 11\n"), (0, "at 14\n")):
        cluster[f"worker{worker}"].until(text)
        replace(worker)


def all_of_them(cluster: ForkedCluster, replace: Callable[[int], None]) -> None:
    cluster["worker0"].until("made 6\n")
    for worker in range(3):
        cluster[f"worker{worker}"].kill()
    for worker in range(3):
        replace(worker)


KILLS: list[Kill] = [
    while_computing,
    after_a_step,
    before_the_first_push,
    the_chief,
    as_it_waits,
    again_and_again,
    all_of_them,
]
_expected: dict[str, str] = {}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


def expected(nursery: Nursery, folder: Path, loader: str) -> str:
    """Of a run in which nobody dies: its bits are the same whenever it is made, and on every lane."""
    if loader not in _expected:
        _expected[loader] = digest(started(nursery, folder, 0.0, loader, "-", "auto"))
    return _expected[loader]


def check(nursery: Nursery, folder: Path, kill: Kill, loader: str, directory: str, lane: str) -> None:
    cluster = started(nursery, folder, 0.02, loader, directory, lane)

    def replace(worker: int) -> None:
        name = f"worker{worker}"
        cluster[name].kill()
        assert cluster[name].wait() == -9
        cluster.start(name)

    try:
        kill(cluster, replace)
    except BaseException:
        cluster.close()
        raise
    assert digest(cluster) == expected(nursery, folder, loader), str(cluster)
    said = cluster["ps0"].out
    assert " is back\n" in said, said
    # On one host a death is noticed at once, between hosts perhaps by the arrival of the next process only.
    if lane == "auto":
        assert said.count("is gone; waiting for it to be started again\n") == said.count(" is back\n"), said


@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill.__name__)
def test_the_same_bits(nursery: Nursery, tmp_path: Path, kill: Kill) -> None:
    check(nursery, tmp_path, kill, "replica", "-", "auto")


@pytest.mark.parametrize("kill", [while_computing, the_chief, as_it_waits], ids=lambda kill: kill.__name__)
def test_the_same_bits_over_the_network(nursery: Nursery, tmp_path: Path, kill: Kill) -> None:
    check(nursery, tmp_path, kill, "replica", "-", "network")


@pytest.mark.parametrize("kill", [after_a_step, the_chief], ids=lambda kill: kill.__name__)
def test_the_same_bits_with_a_directory_and_a_loader_of_its_own(
    nursery: Nursery, tmp_path: Path, kill: Kill
) -> None:
    check(nursery, tmp_path, kill, "own", str(tmp_path / "saved"), "auto")
