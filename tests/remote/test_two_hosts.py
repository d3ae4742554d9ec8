"""Remote devices over two hosts: there is no shared memory between them, so tensors go by the network."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import Hosts, needed

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(120), *needed]
PROGRAM = Path(__file__).with_name("over_hosts.py")
PS, WORKER = "10.77.0.1:15001", "10.77.0.2:15002"


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts.make()
    yield made
    made.close()


@contextlib.contextmanager
def serving(hosts: Hosts) -> Iterator[dict[str, subprocess.Popen[str]]]:
    cluster = [f"--ps_hosts={PS}", f"--worker_hosts={WORKER}", "--task_index=0", "--insecure"]
    command = ("-m", "argosy.cli", "serve", *cluster)
    tasks: dict[str, subprocess.Popen[str]] = {}
    try:
        for host, job in enumerate(("ps", "worker"), start=1):
            tasks[job] = hosts.start(host, *command, f"--job_name={job}")
        yield tasks
    finally:
        for task in tasks.values():
            task.kill()
            task.communicate()


def test_a_step_over_two_hosts_gives_the_same_bits_as_here_captured_or_not(hosts: Hosts) -> None:
    with serving(hosts):
        client = hosts.start(1, str(PROGRAM), PS)
        output, _ = client.communicate(timeout=60)
        assert client.returncode == 0, output
        assert "the same bits" in output


def test_a_task_that_dies_on_another_host_is_named(hosts: Hosts) -> None:
    with serving(hosts) as tasks:
        client = hosts.start(1, str(PROGRAM), PS, "--die")
        assert client.stdout is not None
        assert any(line == "the same bits\n" for line in client.stdout)  # reads up to that line
        tasks["worker"].kill()
        tasks["worker"].wait()
        output, _ = client.communicate("go on\n", timeout=60)
        assert client.returncode == 1
        assert "lost /job:worker/task:0" in output
