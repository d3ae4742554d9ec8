"""`argosy.Server`: a task that serves parameters, or runs what clients send; what `join()` runs in a ps task.

Which of the two it is depends on who comes first: a client (`argosy.connect`), or a worker of a training.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from argosy.cluster.cores import obey_threads, share_cores
from argosy.cluster.discover import Identity, discover_server
from argosy.cluster.launcher import handed_memory, handed_socket, mark_joined
from argosy.cluster.lease import DEFAULT_LEASE, Lease
from argosy.cluster.loss_policy import LossPolicy
from argosy.cluster.malloc import keep_freed_memory
from argosy.cluster.settings import DEFAULT_WAIT
from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.cluster.stop_signals import StopSignals
from argosy.errors import ConfigError
from argosy.events import say
from argosy.protocol.header import Header
from argosy.stacks import report_on_signal
from argosy.store.caller_handshake import connect
from argosy.wire.channel import Arrival, Listener, Peer
from argosy.wire.zmq_channel import ZmqListener, check_exposure

if TYPE_CHECKING:
    import torch

    from argosy.remote.task.task_server import TaskServer
    from argosy.wire.inbox import Inbox

_LOSSES = LossPolicy()


class Server:
    """A task that serves: parameters to the workers of a training, or its devices to clients (`connect`).

    It listens when made, and runs what clients send from then on, in threads: so a program can be a task and
    a client at once. `join()` serves until the training is done or, without one, until the process is ended.
    `argosy.join()` does this by itself in a ps task; this is for programs that take it into their own hands.
    `visible_devices`: what clients may use of this task, such as `("cpu:0", "gpu:1")`; all that there is if
    None.
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
        lease: float = DEFAULT_LEASE,
        use_lane: bool = True,
        visible_devices: Sequence[str] | None = None,
        allow_growth: bool = True,
        remote: bool = True,
        trains: bool = True,
        listen_fd: int | None = None,
        losses: LossPolicy = _LOSSES,
    ) -> None:
        mark_joined()
        self._cluster = cluster if isinstance(cluster, ClusterSpec) else ClusterSpec(cluster)
        self._task = self._cluster.require(Task(job_name, task_index))
        self._trains = trains and job_name == "ps" and self._cluster.count("worker") > 0
        if not remote and not self._trains:
            raise ConfigError("worker_hosts", "at least one worker", "none")
        self._wait = wait
        self._lease = Lease(lease)
        self._losses = losses
        address = Address.parse(bind, "bind") if isinstance(bind, str) else bind
        address = address or self._cluster.address(self._task)
        check_exposure(address, insecure, self._task)
        handed = handed_socket() if listen_fd is None else listen_fd
        self._memory_fd = handed_memory()
        field = f"address of {self._task}"
        lasting = {"lease": self._lease} if self._trains else {}
        network = ZmqListener(address, field=field, listen_fd=handed, **lasting)
        self._inbox = _inbox(network) if use_lane and self._trains else None
        self._listener: Listener = self._inbox or network
        self._host: TaskServer | None = None
        if remote:
            from argosy.remote.task.devices import find_devices
            from argosy.remote.task.task_server import TaskServer

            keep_freed_memory()
            devices = find_devices(visible_devices, allow_growth)
            self._host = TaskServer(
                self._cluster,
                self._task,
                network,
                devices,
                wants_foreign=self._trains,
                alone=not trains,  # said by `argosy serve`
            )
        peers = ", ".join(
            self._cluster.describe(task) for task in self._cluster.tasks() if task != self._task
        )
        say(f"{self._task} serves at {address}; its peers: {peers or 'none'}")

    @property
    def target(self) -> str:
        """Where this server is reached, as `host:port`."""
        return str(self._cluster.address(self._task))

    def join(self) -> None:
        """Serve until the job is done; raises JobFailed, TaskLost or WaitTimeout if it ends badly."""
        listener = self._listener
        if self._host is not None:
            called = self._host.foreign.get()
            if called is None:  # closed
                return
            listener = self._hand_over([called])
        import torch

        from argosy.server.durable_memory import DurableMemory
        from argosy.server.parameter_server import ParameterServer

        obey_threads()
        share_cores(self._cluster, self._task)
        # Moments that fade towards zero become denormal numbers, with which a processor is many times slower.
        torch.set_flush_denormal(True)
        memory = None if self._memory_fd is None else DurableMemory(self._memory_fd)
        server = ParameterServer(
            self._cluster,
            self._task.index,
            listener,
            lambda task: connect(self._cluster, self._task, task, self._lease),
            self._wait,
            lane=self._inbox.lane if self._inbox is not None else "",
            lease=self._lease,
            memory=memory,
            losses=self._losses,
        )

        def stop() -> bool:
            server.stop_wanted = True
            return server.saves

        report_on_signal(server.status.lines)
        signals = StopSignals(stop)
        signals.enter()
        try:
            server.run()
        finally:
            signals.leave()
            if memory is not None:
                memory.close()
        if signals.received is not None:
            raise SystemExit(128 + signals.received)

    def _hand_over(self, arrivals: list[Arrival]) -> Listener:
        """A worker has come: from now on this is a parameter server, and no longer a client's device."""
        assert self._host is not None
        host, self._host = self._host, None
        host.stop()
        while (arrival := host.foreign.get()) is not None:
            arrivals.append(arrival)
        return _Resumed(self._listener, arrivals)

    def close(self) -> None:
        """Serve no more, and free the address."""
        if self._host is not None:
            self._host.stop()
            self._host = None
        self._listener.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Resumed:
    """A listener from which something was taken already."""

    def __init__(self, listener: Listener, arrivals: Sequence[Arrival]) -> None:
        self._listener = listener
        self._arrivals = list(arrivals)
        self.receive = self._first

    def _first(self, timeout: float) -> Arrival | None:
        if self._arrivals:
            return self._arrivals.pop(0)
        self.receive = self._listener.receive
        return self.receive(timeout)

    def copies(self, peer: Peer) -> bool:
        return self._listener.copies(peer)

    def stands_still(self, peer: Peer) -> bool:
        return self._listener.stands_still(peer)

    def send(self, peer: Peer, header: Header, tensors: Sequence[torch.Tensor] = ()) -> bool:
        return self._listener.send(peer, header, tensors)

    def close(self) -> None:
        self._listener.close()


def create_local_server() -> Server:
    """A cluster of one task, `/job:local/task:0`, in this process; `connect(server.target)` uses it."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        host, port = bound.getsockname()
    except OSError:
        bound.close()
        raise
    return Server({"local": [f"{host}:{port}"]}, "local", 0, listen_fd=bound.detach())


def serve(identity: Identity, **options: Any) -> Server:
    """The server of the task that was found; `options` are those of `Server`."""
    cluster, task = identity.cluster, identity.task
    return Server(cluster, task.job, task.index, bind=identity.bind, insecure=identity.insecure, **options)


def serve_devices(
    words: Mapping[str, str], visible: Sequence[str] | None = None, growth: bool = True
) -> None:
    """Be the task that `words` and the environment describe, and run what clients send until ended."""
    identity = discover_server(words, os.environ)
    # A message that arrives must not wait for milliseconds until the thread that computes lets go.
    sys.setswitchinterval(0.0005)
    with serve(identity, visible_devices=visible, allow_growth=growth, trains=False) as server:
        server.join()


def _inbox(network: ZmqListener) -> Inbox:
    from argosy.wire.inbox import Inbox
    from argosy.wire.unix_channel import UnixListener

    return Inbox(network, UnixListener())
