"""Which cluster is this, and which task am I? Arguments, flags, variables and TF_CONFIG in; an Identity out.

Pure: what is read is passed in, and the caller puts the rest of `argv` back. Precedence, highest first: the
arguments of `join()`, flags, ARGOSY_* variables, TF_CONFIG, torchrun's variables, and a cluster of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from argosy.cluster.lease import Lease
from argosy.cluster.loss_policy import LossPolicy
from argosy.cluster.settings import (
    DEFAULT_WAIT,
    FLAGS,
    LANES,
    ON_LOSS,
    SWITCHES,
    choose_mode,
    read_bool,
    read_int,
    read_mode,
    read_seconds,
    variable,
)
from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.errors import ConfigError
from argosy.modes import Local, Mode, Ring

# TensorFlow calls its first worker "chief" (once "master"): here it is worker 0.
_CHIEF_JOBS = ("chief", "master")
_ALONE = ClusterSpec({"worker": ["localhost:1"]})
_TORCHRUN = frozenset({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})


_LEASE = Lease()
# Follows the checkpoints of a job, and has no address in its cluster.
EVALUATOR = "evaluator"


@dataclass(frozen=True)
class Identity:
    """A task's place in its cluster, and the settings it was given."""

    cluster: ClusterSpec
    task: Task
    mode: Mode
    bind: Address | None = None
    insecure: bool = False
    wait: float = DEFAULT_WAIT
    lease: Lease = _LEASE
    max_restarts: int = 0  # how often a task that died is started again, by whoever started it
    on_loss: str = "wait"
    min_workers: int = 1
    stall_after: float | None = None
    num_gpus: int | None = None
    use_lane: bool = True
    by_torchrun: bool = False

    @property
    def losses(self) -> LossPolicy:
        """What follows when a worker is lost."""
        return LossPolicy(self.max_restarts, self.on_loss, self.min_workers, self.stall_after)


def take_flags(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split `argv` into our settings and the rest, which is the script's; nothing after `--` is ours."""
    words: dict[str, str] = {}
    rest: list[str] = []
    position = 0
    while position < len(argv):
        argument = argv[position]
        position += 1
        if argument == "--":
            rest += argv[position - 1 :]
            break
        flag, equals, value = argument.partition("=")
        setting = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or setting not in FLAGS:
            rest.append(argument)
            continue
        if not equals:
            following = argv[position] if position < len(argv) else None
            if setting in SWITCHES and (following is None or not _is_bool(following)):
                value = "true"
            elif following is None or following.startswith("--"):
                raise ConfigError(f"--{setting}", "a value", "none")
            else:
                value = following
                position += 1
        words[setting] = value
    return words, rest


def _is_bool(text: str) -> bool:
    try:
        read_bool("", text)
    except ConfigError:
        return False
    return True


def discover(
    words: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    cluster: ClusterSpec | None = None,
    task: Task | None = None,
    mode: Mode | None = None,
) -> Identity:
    """Find the cluster, the task and the mode; raises ConfigError for what cannot work."""
    variables = {s: environ[variable(s)] for s in FLAGS if environ.get(variable(s), "") != ""}
    settings = variables | {s: value for s, value in words.items() if value != ""}
    if "mode" in words or "is_sync" in words:  # a flag replaces both variables, as they mean the same
        for setting in ("mode", "is_sync"):
            if setting not in words:
                settings.pop(setting, None)
    if "ps_hosts" in words or "worker_hosts" in words:  # and flags replace a cluster from a variable
        settings = {s: value for s, value in settings.items() if s != "cluster" or s in words}
    found = None
    by_torchrun = False
    if cluster is None:
        cluster, found = _find_cluster(settings, environ)
        if cluster is None:
            by_torchrun = environ.keys() >= _TORCHRUN
            cluster, found = _read_torchrun(environ) if by_torchrun else (_ALONE, Task("worker", 0))
    if task is None:
        task = found if found is not None and "job_name" not in settings else _find_task(settings)
    if task.job != EVALUATOR:
        cluster.require(task)
    asked = mode if mode is not None else read_mode(settings)
    servers, workers = cluster.count("ps"), cluster.count("worker")
    chosen = Local() if task.job not in ("ps", "worker") else choose_mode(asked, servers, workers)
    return Identity(
        cluster,
        task,
        Local() if isinstance(chosen, Ring) and workers == 1 else chosen,
        bind=Address.parse(settings["bind"], "bind") if "bind" in settings else None,
        insecure="insecure" in settings and read_bool("insecure", settings["insecure"]),
        wait=read_seconds("wait", settings["wait"]) if "wait" in settings else DEFAULT_WAIT,
        lease=_read_lease(settings),
        max_restarts=read_int("max_restarts", settings.get("max_restarts", "0")),
        on_loss=_read_on_loss(settings.get("on_loss", "wait")),
        min_workers=read_int("min_workers", settings.get("min_workers", "1"), least=1),
        stall_after=_read_stall_after(settings),
        num_gpus=read_int("num_gpus", settings["num_gpus"]) if "num_gpus" in settings else None,
        use_lane=_read_lane(settings.get("lane", "auto")),
        by_torchrun=by_torchrun,
    )


def discover_server(words: Mapping[str, str], environ: Mapping[str, str]) -> Identity:
    """The cluster and the task of `argosy serve`, which belongs to no training and so has no mode."""
    variables = {s: environ[variable(s)] for s in FLAGS if environ.get(variable(s), "") != ""}
    settings = variables | {s: value for s, value in words.items() if value != ""}
    if "ps_hosts" in words or "worker_hosts" in words:
        settings = {s: value for s, value in settings.items() if s != "cluster" or s in words}
    cluster, found = _find_cluster(settings, environ)
    if cluster is None:
        remedy = "add --cluster, or --ps_hosts and --worker_hosts, with --job_name and --task_index"
        raise ConfigError("cluster", "the addresses of the cluster", "none", remedy)
    task = found if found is not None and "job_name" not in settings else _find_task(settings)
    return Identity(
        cluster,
        cluster.require(task),
        Local(),
        bind=Address.parse(settings["bind"], "bind") if "bind" in settings else None,
        insecure="insecure" in settings and read_bool("insecure", settings["insecure"]),
    )


def _find_cluster(
    settings: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[ClusterSpec | None, Task | None]:
    """What flags, our variables or TF_CONFIG say; None if they say nothing."""
    if "cluster" in settings:
        return ClusterSpec(_read_json("cluster", settings["cluster"])), None
    if "ps_hosts" in settings or "worker_hosts" in settings:
        hosts = {
            "ps": _split(settings.get("ps_hosts", "")),
            "worker": _split(settings.get("worker_hosts", "")),
        }
        return ClusterSpec({job: addresses for job, addresses in hosts.items() if addresses}), None
    if environ.get("TF_CONFIG", "").strip():
        return _read_tf_config(environ["TF_CONFIG"])
    if "job_name" in settings or "task_index" in settings:
        raise ConfigError(
            "worker_hosts",
            "the addresses of the cluster, beside job_name",
            "none",
            "add --ps_hosts and --worker_hosts",
        )
    return None, None


def _read_torchrun(environ: Mapping[str, str]) -> tuple[ClusterSpec, Task]:
    """The workers that torchrun starts. It says nothing of their addresses: these only tell them apart."""
    count = read_int("WORLD_SIZE", environ["WORLD_SIZE"], least=1)
    rank = read_int("RANK", environ["RANK"])
    return ClusterSpec({"worker": [f"rank-{number}:1" for number in range(count)]}), Task("worker", rank)


def _find_task(settings: Mapping[str, str]) -> Task:
    if "job_name" not in settings:
        raise ConfigError("job_name", "the job of this task, such as ps or worker", "none", "add --job_name")
    return Task(settings["job_name"], read_int("task_index", settings.get("task_index", "0")))


def _read_lane(text: str) -> bool:
    """Whether tasks on one host may go through shared memory."""
    if text not in LANES:
        raise ConfigError("lane", f"one of {', '.join(LANES)}", repr(text))
    return text == "auto"


def _read_stall_after(settings: Mapping[str, str]) -> float | None:
    return read_seconds("stall_after", settings["stall_after"]) if "stall_after" in settings else None


def _read_lease(settings: Mapping[str, str]) -> Lease:
    return Lease(read_seconds("lease", settings["lease"])) if "lease" in settings else _LEASE


def _read_on_loss(text: str) -> str:
    if text not in ON_LOSS:
        raise ConfigError("on_loss", f"one of {', '.join(ON_LOSS)}", repr(text))
    return text


def _split(hosts: str) -> list[str]:
    return [host.strip() for host in hosts.split(",") if host.strip()]


def _read_json(field: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(field, "a JSON object", f"{text[:60]!r} ({error})") from None
    if not isinstance(value, dict):
        raise ConfigError(field, "a JSON object", repr(text[:60]))
    return value


def _read_tf_config(text: str) -> tuple[ClusterSpec, Task | None]:
    config = _read_json("TF_CONFIG", text)
    jobs = config.get("cluster") or {}
    if not isinstance(jobs, dict):
        raise ConfigError("TF_CONFIG cluster", "a mapping of job names to lists of host:port", repr(jobs))
    if not jobs:  # what TensorFlow's users set for a run on one machine
        return _ALONE, Task("worker", 0)
    chief = next((job for job in _CHIEF_JOBS if job in jobs), None)
    for job in (chief, "worker") if chief is not None else ():
        if not isinstance(jobs.get(job, []), list):
            raise ConfigError(f"TF_CONFIG cluster {job}", "a list of host:port", repr(jobs[job]))
    if chief is not None:
        jobs = {job: hosts for job, hosts in jobs.items() if job != chief} | {
            "worker": [*jobs[chief], *jobs.get("worker", [])]
        }
    mine = config.get("task") or {}
    if not isinstance(mine, dict) or "type" not in mine:
        raise ConfigError("TF_CONFIG task", 'an object with "type" and "index"', repr(mine))
    job, index = str(mine["type"]), read_int("TF_CONFIG task index", str(mine.get("index", 0)))
    if chief is not None and job == chief:
        job = "worker"
    elif chief is not None and job == "worker":
        index += len(config["cluster"][chief])
    return ClusterSpec(jobs), Task(job, index)
