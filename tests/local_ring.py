"""A ring whose workers are threads of one process; all the rest is as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch.distributed import HashStore

from argosy.cluster.discover import Identity
from argosy.cluster.spec import ClusterSpec, Task
from argosy.entry import Replica
from argosy.modes import Ring
from argosy.ring.group import Membership
from argosy.ring.member import RingMember
from threads import in_threads

T = TypeVar("T")


def in_ring(workers: int, program: Callable[[Replica], T], wait: float = 20.0) -> list[T]:
    """What each worker returns; raises what was raised first."""
    store = HashStore()
    cluster = ClusterSpec({"worker": [f"localhost:{1 + index}" for index in range(workers)]})
    names = tuple(str(task) for task in cluster.tasks("worker"))
    errors: list[BaseException] = []

    def run(index: int) -> T:
        member = RingMember(store, Membership(index, names, wait))
        replica = Replica(Identity(cluster, Task("worker", index), Ring()), None, member)
        try:
            return program(replica)
        except BaseException as error:
            errors.append(error)
            replica.fail(error)  # from here on the others fail too
            raise
        finally:
            member.leave()

    return in_threads(workers, run, errors)
