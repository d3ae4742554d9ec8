"""What a job is planned to be: addresses, environments, threads; and what is refused before it starts."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from argosy.cluster.discover import discover
from argosy.cluster.spec import Address, Task
from argosy.errors import ConfigError
from argosy.launch.job import JobSpec, check, describe_cluster, plan_task, task_environ
from argosy.launch.ports import Ports
from argosy.launch.supervise import Restarts
from argosy.modes import Async, Sync


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.touch()
    return path


def environ_of(
    job: JobSpec, task: Task, environ: Mapping[str, str] | None = None, cores: int = 8
) -> dict[str, str]:
    addresses = {each: Address("127.0.0.1", 1000 + i) for i, each in enumerate(job.tasks)}
    return task_environ(job, describe_cluster(addresses), task, environ or {}, cores)


def test_servers_come_first(script: Path) -> None:
    tasks = JobSpec(script, servers=2, workers=1).tasks
    assert [str(task) for task in tasks] == ["/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"]


def test_a_task_discovers_what_was_planned(script: Path) -> None:
    job = JobSpec(script, servers=1, workers=2, settings={"mode": "sync", "aggregate": "1", "late": "fold"})
    identity = discover({}, environ_of(job, Task("worker", 1)))
    assert identity.task == Task("worker", 1)
    assert identity.mode == Sync(aggregate=1, late="fold")
    assert identity.cluster.as_dict() == {
        "ps": ["127.0.0.1:1000"],
        "worker": ["127.0.0.1:1001", "127.0.0.1:1002"],
    }


def test_only_given_settings_are_passed(script: Path) -> None:
    names = {name for name in environ_of(JobSpec(script), Task("ps", 0)) if name.startswith("ARGOSY")}
    always = {"ARGOSY_CLUSTER", "ARGOSY_JOB_NAME", "ARGOSY_TASK_INDEX"}
    assert names == always | {"ARGOSY_MAX_RESTARTS"}  # a task that nobody starts again has none
    ring = environ_of(JobSpec(script, servers=0), Task("worker", 0))
    assert {name for name in ring if name.startswith("ARGOSY")} == always


def test_restarts_and_what_tasks_are_told_of_them(script: Path) -> None:
    def told(settings: dict[str, str]) -> tuple[int, str, int]:
        identity = discover({}, environ_of(JobSpec(script, settings=settings), Task("worker", 1)))
        return identity.max_restarts, identity.on_loss, identity.min_workers

    assert told({}) == (3, "wait", 1)
    assert told({"max_restarts": "7", "on_loss": "shrink", "min_workers": "2"}) == (7, "shrink", 2)
    assert told({"max_restarts": "0"}) == (0, "wait", 1)


@pytest.mark.parametrize(
    ("job", "restarts"),
    [
        ({}, Restarts(3, 1)),
        ({"settings": {"max_restarts": "5", "min_workers": "2"}}, Restarts(5, 2)),
        ({"settings": {"max_restarts": "0"}}, Restarts(0, 1)),
        ({"servers": 0}, Restarts()),
        ({"settings": {"mode": "ring"}, "servers": 0}, Restarts()),
        ({"serve": True}, Restarts()),
    ],
)
def test_who_is_started_again(script: Path, job: dict[str, Any], restarts: Restarts) -> None:
    assert JobSpec(script, **job).restarts == restarts


def test_more_than_ten_tasks_keep_their_order(script: Path) -> None:
    job = JobSpec(script, servers=1, workers=12)
    hosts = json.loads(environ_of(job, Task("ps", 0))["ARGOSY_CLUSTER"])["worker"]
    assert hosts == [f"127.0.0.1:{1001 + index}" for index in range(12)]


def test_another_jobs_environment_does_not_leak(script: Path) -> None:
    stale = {
        "ARGOSY_MODE": "sync",
        "ARGOSY_IS_SYNC": "true",
        "ARGOSY_PS_HOSTS": "far:1",
        "ARGOSY_BIND": "0.0.0.0:1",
        "ARGOSY_LISTEN_FD": "7",
        "ARGOSY_MEMORY_FD": "8",
        "ARGOSY_ERROR_FILE": "/nowhere",
        "TF_CONFIG": "{}",
    }
    environ = environ_of(JobSpec(script), Task("worker", 0), stale)
    assert not set(environ) & set(stale)
    assert discover({}, environ).mode == Async()


def test_the_users_own_environment_is_inherited(script: Path) -> None:
    own = {"HOME": "/home/me", "ARGOSY_WAIT": "20", "ARGOSY_NUM_GPUS": "2", "ARGOSY_KEYS": "/keys"}
    assert own.items() <= environ_of(JobSpec(script), Task("worker", 0), own).items()


@pytest.mark.parametrize(
    ("threads", "inherited", "cores", "expected"),
    [
        (None, {}, 8, "2"),
        (None, {}, 2, "1"),
        (None, {"OMP_NUM_THREADS": "5"}, 8, "5"),
        (None, {"OMP_NUM_THREADS": ""}, 8, "2"),
        (3, {"OMP_NUM_THREADS": "5"}, 8, "3"),
        (3, {}, 8, "3"),
    ],
)
def test_threads(
    script: Path, threads: int | None, inherited: dict[str, str], cores: int, expected: str
) -> None:
    job = JobSpec(script, servers=2, workers=2, threads=threads)
    assert environ_of(job, Task("ps", 0), inherited, cores)["OMP_NUM_THREADS"] == expected


def test_the_command_is_the_script_with_its_arguments(script: Path) -> None:
    job = JobSpec(script, args=("--ps", "--", "x y"), servers=0, workers=1, python_flags=("-P",))
    cluster = describe_cluster({Task("worker", 0): Address("127.0.0.1", 1)})
    plan = plan_task(job, cluster, Task("worker", 0), {}, 1, Path("/e.json"))
    assert plan.argv == (sys.executable, "-P", str(script), "--ps", "--", "x y")
    assert plan.environ["ARGOSY_ERROR_FILE"] == "/e.json"
    assert plan.environ["PYTHONUNBUFFERED"] == "1"
    assert json.loads(plan.environ["ARGOSY_CLUSTER"]) == {"worker": ["127.0.0.1:1"]}


@pytest.mark.parametrize(
    ("servers", "workers", "settings", "field"),
    [
        (-1, 1, {}, "--ps"),
        (0, 0, {}, "--workers"),
        (0, 2, {"mode": "async"}, "mode"),
        (1, 2, {"mode": "ring"}, "mode"),
        (1, 2, {"mode": "fast"}, "mode"),
        (1, 2, {"aggregate": "2"}, "aggregate"),
        (1, 2, {"mode": "sync", "aggregate": "3"}, "aggregate"),
        (1, 2, {"mode": "sync", "late": "never"}, "late"),
        (1, 2, {"mode": "async", "max_staleness": "-1"}, "max_staleness"),
        (1, 2, {"mode": "async", "tokens": "1"}, "tokens"),
        (1, 2, {"max_restarts": "-1"}, "max_restarts"),
        (1, 2, {"max_restarts": "often"}, "max_restarts"),
        (1, 2, {"on_loss": "cry"}, "on_loss"),
        (1, 2, {"min_workers": "0"}, "min_workers"),
        (1, 2, {"min_workers": "3"}, "min_workers"),
        (0, 2, {"max_restarts": "1"}, "--max-restarts"),
        (0, 2, {"mode": "ring", "on_loss": "wait"}, "--on-loss"),
        (0, 2, {"mode": "ring", "min_workers": "1"}, "--min-workers"),
        (0, 2, {"mode": "ring", "stall_after": "60"}, "--stall-after"),
        (1, 2, {"stall_after": "0"}, "stall_after"),
    ],
)
def test_what_cannot_work_is_refused(
    script: Path, servers: int, workers: int, settings: dict[str, str], field: str
) -> None:
    def refuse() -> None:
        job = JobSpec(script, servers=servers, workers=workers, settings=settings)
        addresses = {each: Address("127.0.0.1", 1000 + i) for i, each in enumerate(job.tasks)}
        check(job, describe_cluster(addresses), {})

    with pytest.raises(ConfigError) as caught:
        refuse()
    assert caught.value.field == field


def test_a_script_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        JobSpec(tmp_path / "nope.py")
    with pytest.raises(ConfigError, match="is not a file"):
        JobSpec(tmp_path)


def test_threads_must_be_positive(script: Path) -> None:
    with pytest.raises(ConfigError, match="--threads"):
        JobSpec(script, threads=0)


def test_the_first_worker_of_a_ring_is_handed_a_listener() -> None:
    with Ports([Task("worker", 0), Task("worker", 1)]) as ports:
        listener = ports.take_listener(Task("worker", 0))
        assert listener is not None
        listener.close()
        assert ports.take_listener(Task("worker", 1)) is None
    with Ports([Task("worker", 0)]) as ports:
        assert ports.take_listener(Task("worker", 0)) is None


def test_a_listener_may_be_kept_to_be_handed_over_again() -> None:
    server = Task("ps", 0)
    with Ports([server, Task("worker", 0)]) as ports:
        address = (ports.addresses[server].host, ports.addresses[server].port)
        for _ in range(3):
            listener = ports.take_listener(server, keep=True)
            assert listener is not None
            with listener:
                assert listener.getsockname() == address
                assert not listener.get_inheritable()
        socket.create_connection(address).close()  # accepted by nobody yet
        ports.release(server)
        ports.release(server)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        ports.release(Task("worker", 0))  # only who listens is released


def test_ports_differ_and_only_servers_hand_over_a_listener(script: Path) -> None:
    tasks = JobSpec(script, servers=3, workers=3).tasks
    with Ports(tasks) as ports:
        assert len({address.port for address in ports.addresses.values()}) == len(tasks)
        assert ports.take_listener(Task("worker", 0)) is None
        listener = ports.take_listener(Task("ps", 1))
        assert listener is not None
        with listener:
            assert not listener.get_inheritable()
        assert Task("ps", 1) not in ports.addresses
