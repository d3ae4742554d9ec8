"""A cluster on paper: jobs, tasks, addresses. Frozen, validated when made, and without sockets or torch."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from argosy.errors import ConfigError

# Labels between dots, as of a name in the DNS, or of an IPv4 address; `_` is no letter there, but is used.
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_LONGEST_HOST = 253
_JOB_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
MAX_PORT = 65535


@dataclass(frozen=True)
class Address:
    """Where a task is reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        return _is_ip(self.host) and ipaddress.ip_address(self.host).is_loopback

    @classmethod
    def parse(cls, text: str, field: str) -> Address:
        """Read `host:port` or `[v6]:port`; `field` names the origin in errors."""
        host, colon, port = text.strip().rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        if not colon or not host or (":" in host and not bracketed) or any(c.isspace() for c in host):
            raise ConfigError(field, "host:port", repr(text))
        if not (_is_ip(host) if bracketed else _HOST_NAME.fullmatch(host) and len(host) <= _LONGEST_HOST):
            expected = (
                "an IPv6 address in brackets" if bracketed else "a host name or address in ASCII letters"
            )
            raise ConfigError(field, expected, repr(text))
        if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= MAX_PORT:
            raise ConfigError(field, f"a port from 1 to {MAX_PORT}", repr(text))
        return cls(host, int(port))


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Task(msgspec.Struct, frozen=True, order=True):
    """One process of a job, named `/job:worker/task:1`."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"/job:{self.job}/task:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Task:
        """Read `/job:worker/task:1`."""
        match = re.fullmatch(r"/job:([^/]+)/task:([0-9]{1,9})", text)
        if match is None:
            raise ConfigError("task", "/job:NAME/task:INDEX", repr(text))
        return cls(match[1], int(match[2]))


class ClusterSpec:
    """A set of jobs, each a list of `host:port`: `ClusterSpec({"ps": [...], "worker": [...]})`."""

    def __init__(self, jobs: Mapping[str, Sequence[str]]) -> None:
        if not isinstance(jobs, Mapping):
            raise ConfigError("cluster", "a mapping of job names to lists of host:port", repr(jobs))
        self._jobs: dict[str, tuple[Address, ...]] = {}
        seen: dict[Address, Task] = {}
        for job, addresses in jobs.items():
            if not isinstance(job, str) or not _JOB_NAME.fullmatch(job):
                raise ConfigError("cluster", "a job name of letters, digits, '_', '.' or '-'", repr(job))
            if isinstance(addresses, str) or not isinstance(addresses, Sequence):
                raise ConfigError(f"cluster job {job}", "a list of host:port", repr(addresses))
            self._jobs[job] = tuple(
                _read_address(job, index, text, seen) for index, text in enumerate(addresses)
            )

    @property
    def jobs(self) -> tuple[str, ...]:
        """The job names, in the order given."""
        return tuple(self._jobs)

    def count(self, job: str) -> int:
        """How many tasks a job has; 0 for one that is not there."""
        return len(self._jobs.get(job, ()))

    def tasks(self, job: str | None = None) -> Iterator[Task]:
        """All tasks, or those of one job."""
        for name in self._jobs if job is None else (job,):
            for index in range(self.count(name)):
                yield Task(name, index)

    def address(self, task: Task) -> Address:
        """Where `task` is reached."""
        return self._jobs[self.require(task).job][task.index]

    def require(self, task: Task) -> Task:
        """`task`, if it is in this cluster; a ConfigError that says what there is otherwise."""
        if task.job not in self._jobs:
            known = ", ".join(self._jobs) or "none"
            raise ConfigError("job_name", f"a job of the cluster ({known})", repr(task.job))
        count = self.count(task.job)
        if not 0 <= task.index < count:
            expected = f"0 to {count - 1}" if count else "no task: the job is empty"
            raise ConfigError("task_index", f"{expected} in job {task.job}", task.index)
        return task

    def describe(self, task: Task) -> str:
        """`/job:worker/task:1 at host:port`, as in logs and errors."""
        return f"{task} at {self.address(task)}"

    def as_dict(self) -> dict[str, list[str]]:
        """Plain data, as given to the constructor."""
        return {job: [str(address) for address in addresses] for job, addresses in self._jobs.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self._jobs == other._jobs

    def __hash__(self) -> int:
        return hash(tuple(self._jobs.items()))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


def _read_address(job: str, index: int, text: object, seen: dict[Address, Task]) -> Address:
    task = Task(job, index)
    if not isinstance(text, str):
        raise ConfigError(str(task), "host:port", repr(text))
    address = Address.parse(text, str(task))
    if address in seen:
        raise ConfigError(
            str(task), "an address of its own", f"{address}, which is {seen[address]}'s already"
        )
    seen[address] = task
    return address
