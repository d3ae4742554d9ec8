"""The contenders: what each one is called, how it is started, and how it is tuned. Nothing is run here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import PEERS_PYTHON
from benchmarks.running import ROOT, Launch, free_ports

SCRIPTS = ROOT / "benchmarks" / "contenders"
SERVERS, WORKERS = 2, 2


@dataclass(frozen=True)
class Training:
    """What a contender is asked for: a network, its data, where to write, and for how long."""

    network: str
    data: Path
    out: Path
    seconds: float

    @property
    def words(self) -> tuple[str, ...]:
        """As the contenders' scripts take it."""
        asked = {"network": self.network, "data": self.data, "out": self.out, "seconds": self.seconds}
        return tuple(word for name, value in asked.items() for word in (f"--{name}", str(value)))


@dataclass(frozen=True)
class Contender:
    """One line of the table. `grace`: the seconds in which it ends by itself, 0 if it never does."""

    name: str
    title: str
    flags: str
    launches: Callable[[Training], list[Launch]]
    workers: int = WORKERS
    is_peer: bool = False
    grace: float = 10.0
    networks: tuple[str, ...] = ("mnist", "wide", "conv")

    @property
    def expected(self) -> list[str]:
        """The files that its workers write."""
        return [f"worker-{index}.json" for index in range(self.workers)]


def _limit(copies: int) -> Callable[[Training], list[Launch]]:
    def launches(training: Training) -> list[Launch]:
        script = (sys.executable, str(SCRIPTS / "limit.py"), *training.words, "--count", str(copies))
        return [Launch(f"worker-{index}", (*script, "--index", str(index))) for index in range(copies)]

    return launches


def _argosy(mode: str) -> Callable[[Training], list[Launch]]:
    def launches(training: Training) -> list[Launch]:
        return [argosy_run(SCRIPTS / "argosy_train.py", training.words, SERVERS, WORKERS, mode)]

    return launches


def _ring(training: Training) -> list[Launch]:
    return [argosy_run(SCRIPTS / "argosy_train.py", training.words, 0, WORKERS, "ring")]


def _ddp_on_argosy(training: Training) -> list[Launch]:
    """The peers' script with our Python, which has the backend."""
    return [
        Launch(each.name, (sys.executable, *each.argv[1:]))
        for each in _tasks("ddp.py", "argosy", servers=0, ports=1)(training)
    ]


def argosy_run(
    script: Path, words: tuple[str, ...], servers: int, workers: int, mode: str, *flags: str
) -> Launch:
    """`argosy run`, with one thread a task."""
    options = ("--ps", str(servers), "--workers", str(workers), "--threads", "1", "--mode", mode, *flags)
    return Launch("argosy", (sys.executable, "-m", "argosy.cli", "run", *options, str(script), *words))


def _tasks(script: str, mode: str, servers: int, ports: int) -> Callable[[Training], list[Launch]]:
    """A peer whose tasks are started one by one, and told a list of ports."""

    def launches(training: Training) -> list[Launch]:
        chosen = ",".join(str(port) for port in free_ports(ports))
        program = (
            str(PEERS_PYTHON),
            str(SCRIPTS / script),
            *training.words,
            "--way",
            mode,
            "--ports",
            chosen,
        )
        roles = [("server", index) for index in range(servers)]
        roles += [("worker", index) for index in range(WORKERS)]
        return [
            Launch(f"{role}-{index}", (*program, "--role", role, "--index", str(index)))
            for role, index in roles
        ]

    return launches


def _ray(training: Training) -> list[Launch]:
    return [Launch("driver", (str(PEERS_PYTHON), str(SCRIPTS / "ray_actors.py"), *training.words))]


_TENSORFLOW = (
    "2 servers, 2 workers, replica_device_setter, MonitoredTrainingSession, grpc, device_filters, "
    "intra_op and inter_op threads 1, AdamOptimizer, tf.data in memory"
)


def _tensorflow(mode: str, title: str, flags: str) -> Contender:
    return Contender(
        f"tensorflow-{mode}",
        f"TensorFlow parameter servers, {title}",
        f"{flags}{_TENSORFLOW}",
        _tasks("tensorflow_servers.py", mode, SERVERS, SERVERS + WORKERS),
        is_peer=True,
        grace=0,
    )


_GREEDY = "variables placed by size with a strategy of our own, "
CONTENDERS = (
    Contender(
        "limit",
        "one process, plain PyTorch",
        "Adam(fused=True), 1 thread; alone on the machine",
        _limit(1),
        1,
    ),
    Contender(
        "limit-both",
        "two independent processes, plain PyTorch",
        "the same, two at once that share nothing but the machine",
        _limit(WORKERS),
    ),
    Contender("argosy-async", "Argosy, asynchronous", "2 servers, 2 workers, --mode async", _argosy("async")),
    Contender("argosy-sync", "Argosy, synchronous", "2 servers, 2 workers, --mode sync", _argosy("sync")),
    Contender("argosy-ring", "Argosy, ring", "2 workers, no servers, --mode ring", _ring),
    Contender(
        "ddp-argosy",
        "PyTorch DDP on Argosy's backend",
        "as DDP on Gloo, but init_process_group('argosy')",
        _ddp_on_argosy,
        grace=0,
    ),
    Contender(
        "ddp",
        "PyTorch DDP on Gloo, synchronous",
        "2 workers, Adam(fused=True), gradient_as_bucket_view, static_graph",
        _tasks("ddp.py", "sync", servers=0, ports=1),
        is_peer=True,
        grace=0,
    ),
    _tensorflow("async", "asynchronous", ""),
    _tensorflow("sync", "synchronous", "SyncReplicasOptimizer, "),
    _tensorflow("async-greedy", "asynchronous, placed by size", _GREEDY),
    _tensorflow("sync-greedy", "synchronous, placed by size", f"SyncReplicasOptimizer, {_GREEDY}"),
    Contender(
        "rpc-async",
        "torch.distributed.rpc parameter servers, asynchronous",
        "2 servers, 2 workers, TensorPipe, one call a server a step, flat tensors, Adam(fused=True)",
        _tasks("rpc_servers.py", "async", SERVERS, 1),
        is_peer=True,
        networks=("mnist",),
    ),
    Contender(
        "ray-async",
        "Ray actors as parameter servers, asynchronous",
        "2 server actors, 2 worker actors, flat arrays in the object store, Adam(fused=True)",
        _ray,
        is_peer=True,
        networks=("mnist",),
    ),
)
BY_NAME = {contender.name: contender for contender in CONTENDERS}
