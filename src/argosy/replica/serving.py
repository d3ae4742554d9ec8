"""`argosy.Server`: a ps task by hand, and what `join()` runs in one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from argosy.cluster.settings import DEFAULT_WAIT, LISTEN_FD
from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.errors import ConfigError
from argosy.events import say
from argosy.replica.signals import Signals
from argosy.wire.channel import Channel, Listener
from argosy.wire.zmq_channel import ZmqChannel, ZmqListener, bind_address

if TYPE_CHECKING:
    from argosy.wire.inbox import Inbox


def connect(cluster: ClusterSpec, me: Task, to: Task) -> Channel:
    """A channel from one task to another. Its name is new for each life of a process."""
    return ZmqChannel(cluster.address(to), f"{me}#{uuid.uuid4().hex}".encode())


def check_exposure(address: Address, insecure: bool, task: Task) -> None:
    """Refuse to listen where strangers can connect, unless told so."""
    if not insecure and not bind_address(address, str(task)).is_loopback:
        raise ConfigError(
            f"address of {task}",
            "a loopback address",
            address,
            "anybody who reaches it could change the model: on a network that you trust, add --insecure",
        )


class Server:
    """A task that serves parameters: listens when made, serves in `join()` until the job is done.

    `argosy.join()` does this by itself in a ps task; this is for programs that take it into their own hands.
    """

    def __init__(
        self,
        cluster: ClusterSpec | Mapping[str, Sequence[str]],
        job_name: str = "ps",
        task_index: int = 0,
        *,
        bind: str | Address | None = None,
        insecure: bool = False,
        wait: float = DEFAULT_WAIT,
        use_lane: bool = True,
    ) -> None:
        self._cluster = cluster if isinstance(cluster, ClusterSpec) else ClusterSpec(cluster)
        self._task = self._cluster.require(Task(job_name, task_index))
        if job_name != "ps":
            raise ConfigError(
                "job_name", "ps: only these serve", repr(job_name), "a worker calls argosy.join()"
            )
        if not self._cluster.count("worker"):
            raise ConfigError("worker_hosts", "at least one worker", "none")
        self._wait = wait
        address = Address.parse(bind, "bind") if isinstance(bind, str) else bind
        address = address or self._cluster.address(self._task)
        check_exposure(address, insecure, self._task)
        handed = handed_socket()
        network = ZmqListener(address, field=f"address of {self._task}", listen_fd=handed)
        self._inbox = _inbox(network) if use_lane else None
        self._listener: Listener = self._inbox or network
        peers = ", ".join(
            self._cluster.describe(task)
            for job in ("ps", "worker")
            for task in self._cluster.tasks(job)
            if task != self._task
        )
        say(f"{self._task} serves at {address}; its peers: {peers}")

    @property
    def target(self) -> str:
        """Where this server is reached, as `host:port`."""
        return str(self._cluster.address(self._task))

    def join(self) -> None:
        """Serve until the job is done; raises JobFailed, TaskLost or WaitTimeout if it ends badly."""
        import torch

        from argosy.store.server import ParameterServer

        if "OMP_NUM_THREADS" in os.environ:
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        # Moments that fade towards zero become denormal numbers, with which a processor is many times slower.
        torch.set_flush_denormal(True)
        server = ParameterServer(
            self._cluster,
            self._task.index,
            self._listener,
            lambda task: connect(self._cluster, self._task, task),
            self._wait,
            lane=self._inbox.lane if self._inbox is not None else "",
        )

        def stop() -> bool:
            server.stop_wanted = True
            return server.saves

        signals = Signals(stop)
        signals.enter()
        try:
            server.run()
        finally:
            signals.leave()
        if signals.received is not None:
            raise SystemExit(128 + signals.received)


def handed_socket() -> int | None:
    """The listening socket that a launcher has made for this task, kept from its own children."""
    text = os.environ.pop(LISTEN_FD, "")
    if not text:
        return None
    descriptor = int(text)
    os.set_inheritable(descriptor, False)
    return descriptor


def _inbox(network: ZmqListener) -> Inbox:
    from argosy.wire.inbox import Inbox
    from argosy.wire.unix_channel import UnixListener

    return Inbox(network, UnixListener())
