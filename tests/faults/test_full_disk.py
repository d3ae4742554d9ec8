"""A disk that is full: it does not end a training, and nobody misses what was not written."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from full_disk import fill, small_disk
from jobs import Jobs, jobs

__all__ = ["jobs", "small_disk"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

TESTS = str(Path(__file__).parent)

# With FILL the chief fills the disk as soon as the training has begun.
TRAIN = """
import os, sys, torch, argosy
from pathlib import Path
sys.path.append(os.environ["TESTS"])
from full_disk import fill
replica = argosy.join()
directory, steps = Path(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Linear(100, 100, bias=False)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
with replica.session(model, optimizer, last_step=steps, directory=directory, save_every=2, keep=1) as session:
    if os.environ.get("FILL") and replica.is_chief:
        fill(directory.parent)
    for step in session.batches(range(1000)):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        session.log(loss=1.0)
print("trained", session.global_step, flush=True)
"""


def words(way: str, logs: Path) -> list[object]:
    """How a job of this kind is started."""
    if way == "alone":
        return []
    servers = 0 if way == "ring" else 2
    flags = ["--ps", servers, "--workers", 2, "--mode", way, "--log-dir", logs]
    return ["-m", "argosy.cli", "run", *flags]


@pytest.mark.parametrize(
    "way",
    ["sync", *(pytest.param(way, marks=pytest.mark.faults) for way in ("alone", "ring", "async"))],
)
def test_a_final_state_that_is_not_saved_is_an_error_and_said_last(
    jobs: Jobs, small_disk: Path, way: str
) -> None:
    runs = small_disk / "runs"
    command = [*words(way, jobs.folder / "logs"), jobs.script(TRAIN), runs]
    first = jobs.start("fits", [*command, 4], TESTS=TESTS)
    assert first.wait() == 0, first
    task = jobs.start("full", [*command, 9], TESTS=TESTS, FILL="yes")
    assert task.wait() == 1, str(task)
    assert "CANNOT SAVE step" in task.err, str(task)
    last = task.err.rstrip().splitlines()[-1]
    assert f"the final state, of step 9, is NOT saved in {runs}: " in last, str(task)
    assert "No space left on device; the newest checkpoint is of step 4; free some" in last, str(task)
    (small_disk / "filler").unlink()
    again = jobs.start("again", [*command, 9], TESTS=TESTS)
    assert again.wait() == 0, str(again)
    assert "goes on from step 4" in again.err, str(again)


def test_ctrl_c_says_last_that_nothing_was_saved(jobs: Jobs, small_disk: Path) -> None:
    text = TRAIN.replace("        session.log(", "        time.sleep(0.01)\n        session.log(")
    script = jobs.script(text.replace("import os,", "import os, time,"))
    command = [*words("sync", jobs.folder / "logs"), script, small_disk / "runs", 10**6]
    task = jobs.start("launcher", command, TESTS=TESTS, FILL="yes")
    task.until("CANNOT SAVE step")
    task.process.send_signal(signal.SIGINT)
    assert task.wait() == 130, str(task)
    last = task.err.rstrip().splitlines()[-1]
    assert last.startswith("argosy: /job:ps/task:0: the final state, of step "), str(task)
    assert "there is no checkpoint; free some disk space" in last, str(task)


SUMMARIES = """
import os, sys, torch, argosy
from argosy import hooks
from pathlib import Path
sys.path.append(os.environ["TESTS"])
from full_disk import fill
replica = argosy.join()
disk = Path(sys.argv[1])
model = torch.nn.Linear(2, 2)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
board = hooks.TensorBoard(disk / "board", seconds=1e-6)
with replica.session(model, optimizer, last_step=100, hooks=[board, hooks.Profile([50], disk)]) as session:
    for step in session.batches(range(1000)):
        if step == 1:
            fill(disk)
        optimizer.zero_grad()
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        session.watch.look()
print("trained", session.global_step, flush=True)
"""


@pytest.mark.faults
def test_no_room_for_summaries_and_traces_is_said_once_and_costs_nothing_else(
    jobs: Jobs, small_disk: Path
) -> None:
    task = jobs.start("alone", [jobs.script(SUMMARIES), small_disk], TESTS=TESTS)
    assert task.wait() == 0, str(task)
    assert "trained 100" in task.out, str(task)
    told = f"argosy: cannot write {small_disk / 'board'}: No space left on device; no more summaries"
    assert task.err.count(told) == 1, str(task)
    assert task.err.count("cannot write the trace") == 1, str(task)
    assert "trace of steps" not in task.err, str(task)


TALK = """
import argosy, sys
replica = argosy.join()
for line in range(40):
    print("x" * 200)
"""


def test_no_room_for_the_logs_of_tasks_is_said_once(jobs: Jobs, small_disk: Path) -> None:
    logs = small_disk / "logs"
    fill(small_disk)
    command = ["-m", "argosy.cli", "run", "--workers", 2, "--log-dir", logs, jobs.script(TALK)]
    task = jobs.start("launcher", command)
    assert task.wait() == 0, str(task)
    assert task.out.count("x" * 200) == 80, str(task)  # nothing is missing on the screen
    assert task.err.count(f"argosy: cannot write {logs}/") == 1, str(task)
    assert "No space left on device; the rest of it is not kept" in task.err, str(task)
