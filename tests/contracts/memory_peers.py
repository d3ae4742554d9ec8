"""The three ways of shared memory, each as a writer and a reader in processes of their own.

Run as a script, it is the writer: `memory_peers.py WAY NAME ROUNDS`, and connects to the reader's socket.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable, Iterator

import torch

from argosy.protocol.asking import WaitingRequest
from argosy.protocol.frames import FrameSpec
from argosy.remote.transport.same_host import SameHostReceiver, SameHostSender
from argosy.shared_memory import counters, passing
from argosy.shared_memory.bells import hear, new_bell
from argosy.shared_memory.counters import WIDTH, Counters
from argosy.shared_memory.region import Region
from argosy.wire.channel import Delivery
from argosy.wire.unix_channel import UnixChannel, UnixListener

COUNT = 50_000
PATIENCE = 60.0
TABLE = 4096
WRITTEN, READ = 0, 1


# --- the servers' channel ---------------------------------------------------------------------------------
def write_to_channel(name: str, rounds: int) -> None:
    channel = UnixChannel(name)
    (tensor,) = channel.reserve([FrameSpec("int64", (COUNT,))])
    for number in range(1, rounds + 1):
        tensor.fill_(number)
        channel.send(WaitingRequest(0), [tensor])
        assert channel.receive(PATIENCE) is not None
    channel.close()


def read_from_channel(start: Callable[[str], None], rounds: int) -> Iterator[torch.Tensor]:
    listener = UnixListener()
    start(listener.name)
    for _ in range(rounds):
        got = listener.receive(PATIENCE)
        assert isinstance(got, Delivery), got
        yield got.message.tensors[0]
        listener.send(got.peer, WaitingRequest(0))
    listener.close()


# --- remote devices ---------------------------------------------------------------------------------------
def write_to_lane(name: str, rounds: int) -> None:
    def wait(sock: socket.socket, to_send: bool) -> None:
        select.select([] if to_send else [sock], [sock] if to_send else [], [], 1.0)

    sock = passing.connect(name, socket.SOCK_STREAM)
    sock.setblocking(False)
    lane = SameHostSender(sock, wait, most=8 * COUNT)
    for number in range(1, rounds + 1):
        lane.send(WaitingRequest(0), [torch.full((COUNT,), number).view(torch.uint8)])
    select.select([sock], [], [], PATIENCE)
    lane.close()


def read_from_lane(start: Callable[[str], None], rounds: int) -> Iterator[torch.Tensor]:
    name = f"argosy-test-{os.getpid()}"
    server = passing.listen(name, socket.SOCK_STREAM)
    start(name)
    sock = passing.accept(server)
    server.close()
    assert sock is not None
    sock.setblocking(False)
    inlet, left = SameHostReceiver(sock), rounds
    while left:
        assert select.select([inlet], [], [], PATIENCE)[0]
        for message in inlet.take():
            left -= 1
            yield message.tensors[0].view(torch.int64)
            del message
    inlet.close()


# --- the ring ---------------------------------------------------------------------------------------------
def wait_for(table: Counters, bell: int, kind: int, number: int, row: int) -> None:
    table.fall_asleep(kind, number)
    while table.behind(kind, number, row) is not None:
        assert select.select([bell], [], [], PATIENCE)[0], "nobody rings"
        hear(bell)
    table.wake_up()


def write_to_board(name: str, rounds: int) -> None:
    with passing.connect(name, socket.SOCK_SEQPACKET) as sock:
        _, (memory, *bells) = passing.receive(sock, 1, 3)
    region = Region.open(memory)
    os.close(memory)
    table = Counters(region.words(2 * WIDTH), 0, bells)
    tensor = region.tensor(TABLE, torch.int64, (COUNT,))
    for number in range(1, rounds + 1):
        tensor.fill_(number)
        table.post(WRITTEN)
        wait_for(table, bells[0], READ, number, 0)
    table.close()


def read_from_board(start: Callable[[str], None], rounds: int) -> Iterator[torch.Tensor]:
    name = f"argosy-test-{os.getpid()}"
    region, memory = Region.create(TABLE + 8 * COUNT)
    bells = [new_bell(), new_bell()]
    Counters.prepare(region.words(2 * WIDTH), 2)
    with passing.listen(name, socket.SOCK_SEQPACKET) as server:
        start(name)
        sock = passing.accept(server)
        assert sock is not None
        with sock:
            passing.send(sock, b".", [memory, *bells])
    os.close(memory)
    table = Counters(region.words(2 * WIDTH), 1, bells)
    tensor = region.tensor(TABLE, torch.int64, (COUNT,))
    for number in range(1, rounds + 1):
        wait_for(table, bells[1], WRITTEN, number, 1)
        yield tensor
        table.post(READ)
    table.close()


# The board once more with all the fences that other processors need.
FENCED = "board with fences"
WRITERS = {
    "channel": write_to_channel,
    "lane": write_to_lane,
    "board": write_to_board,
    FENCED: write_to_board,
}
READERS = {
    "channel": read_from_channel,
    "lane": read_from_lane,
    "board": read_from_board,
    FENCED: read_from_board,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    counters.ORDERED = counters.ORDERED and sys.argv[1] != FENCED
    WRITERS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
