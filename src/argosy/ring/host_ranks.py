"""How ranks find each other: who is on which host, and the memory, bells and lives of those on this one.

Everything that is small goes through a torch.distributed store; descriptors go through a Unix socket of the
host's first rank, its leader. Afterwards the socket is closed: what was passed on is all that is needed.
"""

from __future__ import annotations

import os
import socket
import struct
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain

from torch import distributed as dist
from torch.distributed import Store

from argosy.cluster.launcher import raise_failure_elsewhere
from argosy.errors import ConfigError, TaskLost, WaitTimeout
from argosy.events import say_waiting
from argosy.ring.board import Board
from argosy.shared_memory.bells import new_bell
from argosy.shared_memory.counters import WIDTH
from argosy.shared_memory.passing import accept, close_all, connect, listen, receive, send
from argosy.shared_memory.region import Region

_NOTICE_EVERY = 5.0
# How often it is looked whether the rank that is waited for will never come, in seconds.
_LOOK_EVERY = 0.5
_HELLO = struct.Struct("q")
# The kernel passes on at most 253 descriptors at once: the memory, and two for each rank.
MOST_RANKS = 126
_PAGE = 4096


@dataclass(frozen=True)
class RanksByHost:
    """All ranks of a ring by host: `hosts` lists the ranks on each, in order; `mine` is this rank's."""

    rank: int
    hosts: tuple[tuple[int, ...], ...]

    @property
    def mine(self) -> tuple[int, ...]:
        """The ranks on this host."""
        return next(ranks for ranks in self.hosts if self.rank in ranks)

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for its host."""
        return self.mine[0] == self.rank


class Mailbox:
    """A store, with waiting that says for whom."""

    def __init__(self, store: Store, names: Sequence[str], timeout: float) -> None:
        self._store = store
        self.names = names
        self.timeout = timeout

    def put(self, key: str, value: bytes) -> None:
        """Publish."""
        try:
            self._store.set(key, value)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise self._lost(error) from None

    def get(self, key: str, of: int) -> bytes:
        """What the rank `of` publishes under this key, waiting for it."""
        began = time.monotonic()
        notice = _NOTICE_EVERY
        while True:
            passed = time.monotonic() - began
            patience = min(_LOOK_EVERY, max(0.01, self.timeout - passed))
            try:
                self._store.wait([key], timedelta(seconds=patience))
                return bytes(self._store.get(key))
            except RuntimeError as error:
                # Not every store has a class of its own for this.
                if not isinstance(error, dist.DistStoreError) and "timeout" not in str(error).lower():
                    raise self._lost(error) from None
                passed = time.monotonic() - began
                if passed >= self.timeout:
                    raise WaitTimeout("the ring is not complete", [self.names[of]], passed) from None
                raise_failure_elsewhere()
                if passed >= notice:
                    notice += _NOTICE_EVERY
                    say_waiting(self.names[of], passed)

    def _lost(self, error: RuntimeError) -> TaskLost:
        return TaskLost(self.names[0], f"the ring's store does not answer ({str(error).splitlines()[0]})")


def whereabouts() -> bytes:
    """This host, as far as shared memory reaches: the running kernel, and the network that names are in."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}".encode()


def assemble(mailbox: Mailbox, rank: int, size: int) -> RanksByHost:
    """Wait for all ranks; who is where."""
    mailbox.put(f"host/{rank}", whereabouts())
    hosts: dict[bytes, list[int]] = {}
    for other in range(size):
        hosts.setdefault(mailbox.get(f"host/{other}", other), []).append(other)
    return RanksByHost(rank, tuple(tuple(ranks) for ranks in hosts.values()))


@dataclass(frozen=True)
class HostMemory:
    """What the ranks of one host share: the memory, after the board's pages, and the board."""

    board: Board
    memory: Region
    begins: int  # where the board's pages end, in bytes

    def close(self) -> None:
        """Let go of it; what lies in the memory stays valid as long as a tensor does."""
        self.board.close()


def board_bytes(ranks: int) -> int:
    """The memory that comes before the tensors'."""
    return -(-ranks * WIDTH * 8 // _PAGE) * _PAGE


def share(mailbox: Mailbox, company: RanksByHost, nbytes: int, may_leave: bool = False) -> HostMemory:
    """`nbytes` of memory that all ranks of this host have, and their board."""
    ranks = company.mine
    if len(ranks) > MOST_RANKS:
        raise ConfigError("ring", f"at most {MOST_RANKS} ranks on one host", len(ranks))
    begins = board_bytes(len(ranks))
    with ExitStack() as closing:
        own = [new_bell(), os.pidfd_open(os.getpid())]
        closing.callback(close_all, own)
        if company.leads:
            region, memory = Region.create(begins + nbytes)
            closing.callback(os.close, memory)
            Board.prepare(region.words(WIDTH * len(ranks)), len(ranks))
            everything = _hand_out(mailbox, company, memory, own)
        else:
            memory, *everything = _fetch(mailbox, company, own)
            closing.callback(os.close, memory)
            region = Region.open(memory)
    count = len(ranks)
    bells, lives = everything[:count], everything[count:]
    words = region.words(WIDTH * count)
    there = [mailbox.names[rank] for rank in ranks]
    board = Board(words, ranks.index(company.rank), there, bells, lives, mailbox.timeout, may_leave)
    return HostMemory(board, region, begins)


def _hand_out(mailbox: Mailbox, company: RanksByHost, memory: int, own: Sequence[int]) -> list[int]:
    """The leader's part: collect bells and lives, and give all of them, and the memory, to everybody."""
    ranks = company.mine
    gathered = {ranks[0]: [os.dup(descriptor) for descriptor in own]}
    connections: list[socket.socket] = []
    deadline = time.monotonic() + mailbox.timeout
    with ExitStack() as stack:
        undo = stack.enter_context(ExitStack())
        undo.callback(lambda: close_all(chain.from_iterable(gathered.values())))
        name = f"argosy-ring-{uuid.uuid4().hex}"
        listener = stack.enter_context(listen(name, socket.SOCK_SEQPACKET))
        mailbox.put(f"lane/{ranks[0]}", name.encode())
        while missing := [rank for rank in ranks if rank not in gathered]:
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection = accept(listener)
            except TimeoutError:
                names = [mailbox.names[rank] for rank in missing]
                raise WaitTimeout("the ring is not complete", names, mailbox.timeout) from None
            if connection is None:
                continue
            stack.enter_context(connection)
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            packet, descriptors = receive(connection, _HELLO.size, 2)
            rank = _HELLO.unpack(packet)[0] if len(packet) == _HELLO.size else -1
            if rank not in missing or len(descriptors) != 2:
                close_all(descriptors)
                continue
            gathered[rank] = descriptors
            connections.append(connection)
        everything = [gathered[rank][which] for which in (0, 1) for rank in ranks]
        for connection in connections:
            send(connection, b".", [memory, *everything])
        undo.pop_all()
    return everything


def _fetch(mailbox: Mailbox, company: RanksByHost, own: Sequence[int]) -> list[int]:
    """Everybody else's part: the memory, all bells, all lives."""
    leader = company.mine[0]
    its_name = mailbox.names[leader]
    name = mailbox.get(f"lane/{leader}", leader).decode(errors="replace")
    count = 2 * len(company.mine) + 1
    try:
        connection = connect(name, socket.SOCK_SEQPACKET, mailbox.timeout)
    except ConnectionRefusedError:
        raise TaskLost(its_name, "it gave up waiting for the other ranks") from None
    except PermissionError:
        raise TaskLost(its_name, "a process of another user answers in its place") from None
    with connection:
        send(connection, _HELLO.pack(company.rank), own)
        _, descriptors = receive(connection, 1, count)
    if len(descriptors) != count:
        close_all(descriptors)
        raise TaskLost(its_name, "it closed the connection while the ring was being set up")
    return descriptors
