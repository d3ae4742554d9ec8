from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest
from benchmarks.catalogue import BY_NAME, Training
from benchmarks.contenders.job import Job, Recorder
from benchmarks.networks import NETWORKS
from benchmarks.running import Launch, Run, RunFailed, run

from argosy import bench
from argosy.errors import ConfigError

WRITE = "import pathlib; pathlib.Path('done.json').write_text('[1]')"
LINGER = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
print(subprocess.Popen(sleep, start_new_session=True).pid, flush=True)
"""


def plan(out: Path, code: str, seconds: float = 30.0, grace: float = 0.0) -> Run:
    return Run([Launch("it", (sys.executable, "-c", code))], out, ["done.json"], seconds, grace)


def job(out: Path) -> Job:
    return Job(NETWORKS["mnist"], out, out, 0.0, "async", "worker", 0, 2, ())


@pytest.mark.processes
def test_a_run_gives_what_was_written(tmp_path: Path) -> None:
    assert run(plan(tmp_path, WRITE)).files == [[1]]


@pytest.mark.processes
def test_a_run_that_fails_shows_the_end_of_its_output(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"(?s)it ended with 1 .*it: ValueError: no luck"):
        run(plan(tmp_path, "raise ValueError('no luck')"))


@pytest.mark.processes
def test_a_run_that_takes_too_long_is_ended_with_its_orphans(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(RunFailed, match="no result after"):
        run(plan(tmp_path, LINGER + "time.sleep(60)", seconds=1.0))
    assert time.monotonic() - began < 20
    orphan = int((tmp_path / "it.log").read_text(encoding="utf-8"))
    assert not psutil.pid_exists(orphan)


@pytest.mark.processes
def test_a_daemon_in_a_session_of_its_own_is_ended_too(tmp_path: Path) -> None:
    run(plan(tmp_path, LINGER + WRITE, grace=5.0))
    assert not psutil.pid_exists(int((tmp_path / "it.log").read_text(encoding="utf-8")))


def test_a_recorder_goes_on_until_all_workers_have_stepped(tmp_path: Path) -> None:
    first, second = (Recorder(job(tmp_path), index, 2, {}) for index in range(2))
    assert first.step()
    assert not second.step()  # all have stepped now, and no seconds are asked for
    time.sleep(0.06)
    assert not first.step()
    assert {path.name for path in tmp_path.glob("worker-*")} == {"worker-0.json", "worker-1.json"}


def test_every_contender_says_how_it_is_started_and_tuned(tmp_path: Path) -> None:
    training = Training("mnist", tmp_path, tmp_path, 1.0)
    for contender in BY_NAME.values():
        launches = contender.launches(training)
        assert len({launch.name for launch in launches}) == len(launches) > 0
        scripts = [word for word in launches[0].argv if word.endswith(".py")]
        assert all(os.path.exists(script) for script in scripts)
        assert contender.flags


def test_bench_outside_a_checkout_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make bench"):
        bench.run([], checkout=tmp_path)
