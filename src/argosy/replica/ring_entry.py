"""How a worker enters the ring: which store it meets the others at, and what it is allowed to."""

from __future__ import annotations

import os

from argosy.cluster.discover import Identity
from argosy.cluster.launcher import handed_socket
from argosy.cluster.spec import Task
from argosy.ring.group import Membership
from argosy.ring.member import RingMember
from argosy.ring.rendezvous import host_store, join_store, torchrun_store
from argosy.wire.zmq_channel import check_exposure


def enter_ring(identity: Identity) -> RingMember:
    """Wait for all workers of the cluster; raises WaitTimeout if one does not come."""
    cluster, me = identity.cluster, identity.task
    chief = Task("worker", 0)
    names = tuple(str(task) for task in cluster.tasks("worker"))
    handed = handed_socket()
    if identity.by_torchrun:
        store = torchrun_store(identity.wait)
        towards = os.environ["MASTER_ADDR"]
    else:
        address = cluster.address(chief)
        towards = address.host
        if me == chief:
            bind = identity.bind or address
            check_exposure(bind, identity.insecure, me)
            store = host_store(bind, handed, identity.wait)
        else:
            store = join_store(address, str(chief), identity.wait)
    return RingMember(store, Membership(me.index, names, identity.wait, identity.insecure, towards))
