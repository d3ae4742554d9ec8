"""What the next process of a server needs: kept after every message, and recalled when it starts.

Each part of a server puts its own state into the memory; here it becomes valid all at once.
"""

from __future__ import annotations

import msgspec

from argosy.cluster.spec import Task
from argosy.server.checkpointing import ShardSaving
from argosy.server.connected_tasks import ConnectedTasks
from argosy.server.coordinator import Coordinator
from argosy.server.durable_memory import Memory
from argosy.server.handshake import Handshake
from argosy.server.order_executor import OrderExecutor
from argosy.server.peer_links import PeerLinks
from argosy.server.worker_requests import WorkerRequests


class Lives(msgspec.Struct, array_like=True):
    """Which processes the workers are, as this server knows it and as the coordinator has said."""

    workers: dict[int, str]
    admitted: dict[int, str]
    ended: list[str]


class Recovery:
    """Of one server."""

    def __init__(
        self,
        memory: Memory,
        executor: OrderExecutor,
        saving: ShardSaving,
        coordinator: Coordinator | None,
        requests: WorkerRequests,
        links: PeerLinks,
        connected: ConnectedTasks,
        handshake: Handshake,
    ) -> None:
        self._memory = memory
        self._executor = executor
        self._saving = saving
        self._coordinator = coordinator
        self._requests = requests
        self._links = links
        self._connected = connected
        self._handshake = handshake
        self.lives_changed = False

    def keep(self) -> None:
        """Make everything valid that the next process would need."""
        if not self._memory.lasts:
            return
        self._executor.keep()
        self._links.keep()
        self._saving.keep()
        if self._coordinator is not None:
            self._coordinator.keep(self._memory)
            self._coordinator.changes.keep(self._memory)
        if self.lives_changed:
            self.lives_changed = False
            lives = self._connected.lives
            workers = {task.index: life for task, life in lives.items() if task.job == "worker"}
            self._memory.put(
                "lives",
                msgspec.msgpack.encode(
                    Lives(workers, self._handshake.admitted, sorted(self._connected.ended_lives))
                ),
            )
        self._memory.commit()

    def recall(self) -> None:
        """Go on where the last process of this server was."""
        if self._coordinator is not None:
            self._saving.recall_directory()
        registrations = self._executor.recall()
        if self._coordinator is not None:
            self._coordinator.recall(self._memory, registrations, self._saving.checkpoints)
            self._coordinator.changes.recall(self._memory)
            self._coordinator.changes.come_back(Task("ps", 0))
        self._requests.recall()
        self._links.recall()
        if (kept := self._memory.get("lives")) is not None:
            lives = msgspec.msgpack.decode(kept, type=Lives)
            self._connected.recall({Task("worker", worker): life for worker, life in lives.workers.items()})
            self._handshake.recall(lives.admitted)
            self._connected.ended_lives |= set(lives.ended)
        if (report := self._saving.unwritten()) is not None:
            self._links.tell(report)
