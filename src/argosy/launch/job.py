"""A job on paper: what to run, in how many tasks, and what each of them is told.

Pure planning, called by `launch.local`: environments come in, environments go out, nothing is started.
"""

from __future__ import annotations

import ast
import json
import math
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from argosy.cluster.discover import EVALUATOR, discover
from argosy.cluster.settings import (
    ERROR_FILE,
    FLAGS,
    LISTEN_FD,
    MEMORY_FD,
    STATUS_FILE,
    read_int,
    variable,
)
from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.errors import ConfigError
from argosy.launch.supervise import Restarts

# Beside the error records of all tasks.
STATUS_NAME = "status.json"
# Settings that describe the user's machine and not a job: they may come from the surrounding environment.
_OF_THE_MACHINE = frozenset({"num_gpus", "insecure", "wait", "lease", "stall_after", "lane"})
# Left over from another job, these would tell a task that it is somebody else.
JOB_VARIABLES = frozenset(
    {variable(setting) for setting in FLAGS if setting not in _OF_THE_MACHINE}
    | {LISTEN_FD, MEMORY_FD, ERROR_FILE, STATUS_FILE, "TF_CONFIG", "RANK", "WORLD_SIZE"}
)
# What tasks would import one by one. torch._dynamo: the first optimizer of a process imports it.
PRELOAD: tuple[str, ...] = (
    "torch",
    "torch._dynamo",
    "argosy.entry",
    "argosy.hooks",
    "argosy.replica.server_exchange",
    "argosy.session.session",
    "argosy.store.client",
    "argosy.server.parameter_server",
    "argosy.wire.inbox",
    "argosy.wire.unix_channel",
    "argosy.wire.zmq_channel",
)
_PRELOAD_TO_SERVE = (
    "torch",
    "torch._dynamo",
    "argosy.remote.client.connect",
    "argosy.remote.task.task_server",
)
# What every task of a cluster that serves runs: it serves, or is the client.
_SERVING_SCRIPT = Path(__file__).with_name("serve_script.py")
CLIENT = Task("client", 0)


GRACE = 30.0
MAX_RESTARTS = 3
# Settings of tasks that are started again.
_OF_RESTARTS = ("max_restarts", "on_loss", "min_workers")
# Why a ring cannot have a setting.
_NOT_IN_A_RING = dict.fromkeys(_OF_RESTARTS, "a ring ends with any of its workers") | {
    "stall_after": "it is the first server that sees whether a job makes progress"
}


@dataclass(frozen=True)
class JobSpec:
    """What the user asked for. `settings` holds only what was given, such as `{"mode": "sync"}`.

    `preload`: what is imported once for all tasks, by a fork server; None if there shall be none.
    """

    script: Path
    args: tuple[str, ...] = ()
    servers: int = 1
    workers: int = 2
    settings: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    log_dir: Path | None = None
    python_flags: tuple[str, ...] = ()
    preload: tuple[str, ...] | None = PRELOAD
    # The tasks serve their devices, and one more, the client, runs the script.
    serve: bool = False
    evaluator: bool = False
    grace: float = GRACE  # how long tasks may save after the user's own signal, in seconds

    def __post_init__(self) -> None:
        if (why := _no_script(self.script)) is not None:
            raise ConfigError("SCRIPT", "a Python file", f"{str(self.script)!r}, which {why}")
        _at_least("--ps", self.servers, 0)
        _at_least("--workers", self.workers, 0 if self.serve and self.servers else 1)
        if self.threads is not None:
            _at_least("--threads", self.threads, 1)
        if not 0 <= self.grace < math.inf:
            raise ConfigError("--grace", "a number of seconds, 0 or more", self.grace)

    @property
    def members(self) -> tuple[Task, ...]:
        """The tasks that have an address, servers first."""
        servers = tuple(Task("ps", index) for index in range(self.servers))
        return servers + tuple(Task("worker", index) for index in range(self.workers))

    def listens(self, task: Task) -> bool:
        """Whether others connect to a task."""
        return task in self.members and (self.serve or task.job == "ps")

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Every task."""
        evaluator = (Task(EVALUATOR, 0),) if self.evaluator else ()
        return (*self.members, *evaluator, *((CLIENT,) if self.serve else ()))

    @property
    def is_ring(self) -> bool:
        """Whether no worker can be done without."""
        return not self.serve and (self.servers == 0 or self.settings.get("mode") == "ring")

    @property
    def restarts(self) -> Restarts:
        """Which tasks are started again, and how often: none of a ring, and none of those that serve."""
        if self.serve or self.is_ring:
            return Restarts()
        return Restarts(
            read_int("max_restarts", self.settings.get("max_restarts", str(MAX_RESTARTS))),
            read_int("min_workers", self.settings.get("min_workers", "1"), least=1),
        )

    @property
    def command(self) -> tuple[str, ...]:
        """What Python is to run in each of them."""
        return (str(self.script), *self.args)


@dataclass(frozen=True)
class TaskPlan:
    """One process to start."""

    task: Task
    address: Address | None
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    error_file: Path


def serving(job: JobSpec) -> JobSpec:
    """The same tasks as a cluster that serves its devices, and the script as its client."""
    if job.settings:
        name = next(iter(job.settings))
        unwanted = "no restarts" if name in _OF_RESTARTS else "no mode"
        unwanted = "no such limit" if name == "stall_after" else unwanted
        raise ConfigError(f"--{name.replace('_', '-')}", f"{unwanted} together with --serve", "one")
    return replace(
        job,
        script=_SERVING_SCRIPT,
        args=(str(job.script), *job.args),
        # The script lies among the package's modules, whose names must not hide those of other packages.
        python_flags=("-P", *job.python_flags),
        preload=None if job.preload is None else _PRELOAD_TO_SERVE,
        serve=True,
    )


def _no_script(script: Path) -> str | None:
    """Why this is nothing that Python could run, once and not from every task; None if it is."""
    if not script.is_file():
        return "is not a file" if script.exists() else "does not exist"
    try:
        source = script.read_bytes()
        if script.suffix == ".py":  # else an archive, or compiled: the interpreter knows what to do
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the tasks will show them
                ast.parse(source, str(script))
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return f"is not Python{f', in line {line}' if line else ''}: {getattr(error, 'msg', error)}"
    return None


def _at_least(option: str, number: int, least: int) -> None:
    if number < least:
        raise ConfigError(option, f"a whole number, {least} or more", number)


def describe_cluster(addresses: Mapping[Task, Address]) -> ClusterSpec:
    """The cluster of these tasks; a job without tasks is left out."""
    jobs: dict[str, list[str]] = {}
    for task in sorted(addresses):
        jobs.setdefault(task.job, []).append(str(addresses[task]))
    return ClusterSpec(jobs)


def plan_task(
    job: JobSpec, cluster: ClusterSpec, task: Task, environ: Mapping[str, str], cores: int, error_file: Path
) -> TaskPlan:
    """What to run as `task`, on top of the environment `environ`."""
    return TaskPlan(
        task,
        None if task.job in (EVALUATOR, CLIENT.job) else cluster.address(task),
        (sys.executable, *job.python_flags, *job.command),
        task_environ(job, cluster, task, environ, cores)
        | {ERROR_FILE: str(error_file), STATUS_FILE: str(error_file.with_name(STATUS_NAME))},
        error_file,
    )


def task_environ(
    job: JobSpec, cluster: ClusterSpec, task: Task, environ: Mapping[str, str], cores: int
) -> dict[str, str]:
    """The environment of a task: what all of them share, and who it is."""
    settings = dict(job.settings) | {"cluster": json.dumps(cluster.as_dict())}
    if not (job.serve or job.is_ring):
        settings |= {"max_restarts": str(job.restarts.most)}
    if task != CLIENT:
        settings |= {"job_name": task.job, "task_index": str(task.index)}
    return shared_environ(job, environ, cores) | {
        variable(setting): value for setting, value in settings.items()
    }


def shared_environ(job: JobSpec, environ: Mapping[str, str], cores: int) -> dict[str, str]:
    """What all tasks share: what is inherited, cleared of other jobs, and how Python is to run."""
    inherited = {name: value for name, value in environ.items() if name not in JOB_VARIABLES}
    return inherited | _threads(job, environ, cores) | {"PYTHONUNBUFFERED": "1"}


def _threads(job: JobSpec, environ: Mapping[str, str], cores: int) -> dict[str, str]:
    # Tasks that each start a thread a core fight over the cores, and training is several times slower.
    if job.threads is None and environ.get("OMP_NUM_THREADS"):
        return {}
    return {"OMP_NUM_THREADS": str(job.threads or max(1, cores // len(job.tasks)))}


def check(job: JobSpec, cluster: ClusterSpec, environ: Mapping[str, str]) -> None:
    """Raise the ConfigError that every task would raise, before any of them starts."""
    for name in () if job.serve else ("ps", "worker"):
        for task in list(cluster.tasks(name))[:1]:
            discover({}, task_environ(job, cluster, task, environ, cores=1))
    if job.is_ring:
        for name, why in _NOT_IN_A_RING.items():
            if job.settings.get(name, "0") != "0":
                raise ConfigError(f"--{name.replace('_', '-')}", "a job with servers", "none", why)
    if job.restarts.min_workers > job.workers:
        expected = f"at most {job.workers}, the number of workers"
        raise ConfigError("min_workers", expected, job.restarts.min_workers)
