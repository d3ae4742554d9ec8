"""A whole job in one process, for tests: servers and workers in threads, messages in queues, shared memory or
over sockets.

Nothing is mocked: servers, client, optimizer and session are the real ones, and every message is encoded and
decoded. What a network leaves to chance can be scripted here: in which order gradients arrive, and who dies.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, Literal, TypeAlias

import torch

from argosy.cluster.discover import Identity
from argosy.cluster.lease import DEFAULT_LEASE, Lease
from argosy.cluster.loss_policy import LossPolicy
from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.entry import Replica
from argosy.modes import Async, Mode
from argosy.protocol.frames import FrameSpec
from argosy.protocol.header import Header
from argosy.protocol.training import PushRequest
from argosy.server.parameter_server import ParameterServer
from argosy.store.client import StoreClient
from argosy.wire.channel import Channel
from argosy.wire.local_channel import LocalListener
from argosy.wire.message import Message
from argosy.wire.unix_channel import UnixChannel, UnixListener
from argosy.wire.zmq_channel import ZmqChannel, ZmqListener

# Which workers' pushes come first, at (server, turn): in this order, before everybody who is not named.
# A turn is a worker's first, second, ... gradient or skip, counted from 0.
Order: TypeAlias = Callable[[int, int], Sequence[int]]
# "queue": everything is copied, as on a network; "memory": tensors are shared, as on one host;
# "network": over sockets, as between hosts.
Lane: TypeAlias = Literal["queue", "memory", "network"]


class Killed(BaseException):
    """Raised in a worker that `LocalCluster.kill` has ended; it tells nobody."""


@dataclass
class Outcome:
    """How a job ended: what each worker returned, and what was raised where, the first first."""

    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)


class LocalCluster:
    """`servers` parameter servers and room for `workers` workers, all in threads of this process."""

    def __init__(
        self,
        servers: int,
        workers: int,
        mode: Mode | None = None,
        *,
        lane: Lane = "queue",
        order: Order | None = None,
        wait: float = 20.0,
        lease: float = DEFAULT_LEASE,
        losses: LossPolicy | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self._listeners = [_listen(lane, Lease(lease)) for _ in range(servers)]
        self.spec = ClusterSpec(
            {
                "ps": [
                    each.address if isinstance(each, _Port) else f"localhost:{1000 + index}"
                    for index, each in enumerate(self._listeners)
                ],
                "worker": [f"localhost:{2000 + index}" for index in range(workers)],
            }
        )
        self.outcome = Outcome()
        self._mode = Async() if mode is None else mode
        self._wait = wait
        self._lease = Lease(lease)
        self._losses = LossPolicy() if losses is None else losses
        self._turns = _Turns(order, wait)
        self._channels: dict[int, list[_ScriptedChannel]] = defaultdict(list)
        self._threads: list[threading.Thread] = []
        for task in self.spec.tasks("ps"):
            self._start(task, partial(self._serve, task.index))

    def run(self, program: Callable[[Replica], Any]) -> list[Any]:
        """Every worker runs `program`; what each returned. Raises what was raised first."""
        outcome = self.run_to_the_end(program)
        for task, error in outcome.errors.items():
            error.add_note(f"raised in {task}")
            raise error
        return [outcome.results.get(worker) for worker in range(self.spec.count("worker"))]

    def run_to_the_end(self, program: Callable[[Replica], Any]) -> Outcome:
        """Every worker runs `program`; whatever came of it."""
        for worker in range(self.spec.count("worker")):
            self.start(worker, program)
        return self.finish()

    def start(self, worker: int, program: Callable[[Replica], Any], mode: Mode | None = None) -> None:
        """One worker arrives and runs `program`; a mode of its own is for tests of disagreement."""
        task = Task("worker", worker)
        self._start(task, lambda: self._work(task, program, self._mode if mode is None else mode))

    def finish(self) -> Outcome:
        """Wait until every server and worker has ended."""
        deadline = time.monotonic() + self._wait
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if stuck := [thread.name for thread in self._threads if thread.is_alive()]:
            first = next(iter(self.outcome.errors.values()), None)
            raise TimeoutError(f"still running after {self._wait:.0f} s: {', '.join(stuck)}") from first
        return self.outcome

    def kill(self, worker: int) -> None:
        """End the calling worker as `kill -9` would: its connections end, and it says nothing more."""
        for channel in self._channels[worker]:
            channel.cut()
        raise Killed(f"/job:worker/task:{worker}")

    def _start(self, task: Task, body: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                body()
            except Killed:
                pass
            except BaseException as error:
                self.outcome.errors[str(task)] = error

        thread = threading.Thread(target=guarded, name=str(task), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, index: int) -> None:
        def connect(to: Task) -> Channel:
            return self._open(to, f"/job:ps/task:{index}")

        listener = self._listeners[index]
        ParameterServer(
            self.spec, index, listener, connect, self._wait, lease=self._lease, losses=self._losses
        ).run()

    def _open(self, to: Task, name: str) -> Channel:
        listener = self._listeners[to.index]
        if isinstance(listener, UnixListener):
            return UnixChannel(listener.name)
        if isinstance(listener, _Port):
            return ZmqChannel(self.spec.address(to), name.encode(), lease=self._lease)
        return listener.connect(name.encode())

    def _work(self, task: Task, program: Callable[[Replica], Any], mode: Mode) -> None:
        client = StoreClient(
            self.spec, task, lambda server: self._connect(task, server), self._wait, lease=self._lease
        )
        restarts = self._losses.max_restarts
        replica = Replica(Identity(self.spec, task, mode, wait=self._wait, max_restarts=restarts), client)
        try:
            client.hello()
            self.outcome.results[task.index] = program(replica)
        except BaseException as error:
            replica.fail(error)
            raise
        replica.leave()

    def _connect(self, task: Task, server: Task) -> Channel:
        inner = self._open(server, f"{task}#{len(self._channels[task.index])}")
        channel = _ScriptedChannel(inner, self._turns, server.index, task.index)
        self._channels[task.index].append(channel)
        return channel


class _Port(ZmqListener):
    """A listener on a port of this machine that the system has chosen."""

    def __init__(self, lease: Lease) -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{bound.getsockname()[1]}"
        super().__init__(Address.parse(self.address, "address"), listen_fd=bound.detach(), lease=lease)


def _listen(lane: Lane, lease: Lease) -> LocalListener | UnixListener | _Port:
    return UnixListener() if lane == "memory" else _Port(lease) if lane == "network" else LocalListener()


class _Turns:
    """Holds pushes back until those before them in the script have been sent."""

    def __init__(self, order: Order | None, patience: float) -> None:
        self._order = order
        self._patience = patience
        self._sent: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._changed = threading.Condition()

    def wait(self, server: int, turn: int, worker: int) -> None:
        """Until `worker` may send its push of that turn to `server`."""
        if self._order is None:
            return
        before = set(takewhile(lambda other: other != worker, self._order(server, turn)))
        with self._changed:
            came = self._changed.wait_for(lambda: before <= self._sent[server, turn], self._patience)
        if not came:
            raise TimeoutError(f"worker {worker} waited for {before} at turn {turn} of server {server}")

    def note(self, server: int, turn: int, worker: int) -> None:
        """`worker` has sent it."""
        with self._changed:
            self._sent[server, turn].add(worker)
            self._changed.notify_all()


class _ScriptedChannel:
    """A `Channel` that keeps to the script; and can be cut."""

    def __init__(self, inner: Channel, turns: _Turns, server: int, worker: int) -> None:
        self.in_place = inner.in_place
        self._inner = inner
        self._turns = turns
        self._server = server
        self._worker = worker
        self._seen: dict[int, int] = {}  # sequence number -> turn
        self._cut_at: float | None = None

    def reserve(self, frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
        return self._inner.reserve(frames)

    def send(self, header: Header, tensors: Sequence[torch.Tensor] = ()) -> None:
        if self._cut_at is not None:
            return
        if not isinstance(header, PushRequest) or header.kind == "pull":
            self._inner.send(header, tensors)
            return
        turn = self._seen.setdefault(header.seq, len(self._seen))
        self._turns.wait(self._server, turn, self._worker)
        self._inner.send(header, tensors)
        self._turns.note(self._server, turn, self._worker)

    def receive(self, timeout: float) -> Message[Header] | None:
        return self._inner.receive(timeout)

    @property
    def renewals(self) -> int:
        return self._inner.renewals

    @property
    def hung_up(self) -> bool:
        return self._cut_at is not None or self._inner.hung_up

    def lost_for(self) -> float:
        return self._inner.lost_for() if self._cut_at is None else time.monotonic() - self._cut_at

    def cut(self) -> None:
        """The connection ends, for good."""
        self._cut_at = time.monotonic()
        self._inner.close()

    def close(self) -> None:
        if self._cut_at is None:
            self._inner.close()
