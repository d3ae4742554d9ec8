"""What goes wrong on the backend, and how it is said: one rank, started by test_backend_errors.py."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import argosy.ring  # noqa: F401  (makes the backend known)
from argosy.errors import ArgosyError, ConfigError, TaskLost, WaitTimeout

LARGE = 1_200_000  # elements: several chunks


def must(work: Any) -> Any:
    assert work is not None
    return work


# --- a rank dies, with the others in the middle of something ------------------------------------------------
def death(rank: int, size: int) -> None:
    """The last rank, once all are here: known to every group that it was in."""
    waits, futures, functions, parallel = (dist.new_group() for _ in range(4))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), process_group=parallel)
    model(torch.ones(2, 4)).sum().backward()
    dist.barrier()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    lost = f"lost rank {size - 1}: its process has ended"

    tensor = torch.ones(4)
    work = must(dist.all_reduce(tensor, group=waits, async_op=True))
    with pytest.raises(TaskLost, match=lost):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), TaskLost)
    # The group has ended with it: nothing is ever silently left out.
    with pytest.raises(TaskLost, match=lost):
        dist.all_reduce(tensor, group=waits)

    future = must(dist.all_reduce(tensor, group=futures, async_op=True)).get_future()
    chained = future.then(lambda done: done.value()[0] * 2)
    for get in (future.wait, future.value, chained.wait):
        with pytest.raises(RuntimeError, match=lost):
            get()

    total = functional.all_reduce(torch.ones(4), "sum", functions)
    with pytest.raises((TaskLost, RuntimeError), match=lost):
        print(total.sum())

    with pytest.raises((TaskLost, RuntimeError), match=lost):
        model(torch.ones(2, 4)).sum().backward()


# --- a rank does not come -----------------------------------------------------------------------------------
def late(rank: int, size: int) -> None:
    """The last one makes no call until the others have given up."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == size - 1:
        dist.barrier()
        with pytest.raises(ArgosyError, match="rank"):
            dist.all_reduce(torch.ones(1), group=group)
        return
    tensor = torch.ones(4)
    with pytest.raises(ArgosyError, match=f"rank {size - 1}|the job was ended by rank"):
        must(dist.all_reduce(tensor, group=group, async_op=True)).wait()
    assert torch.equal(tensor, torch.ones(4))
    dist.barrier()


def nothing_received(rank: int, size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        with pytest.raises(WaitTimeout, match="missing rank 1"):
            dist.recv(torch.zeros(4), src=1, group=group)
    dist.barrier()


def impatient(rank: int, size: int) -> None:
    """`wait(timeout)` gives up, and the call itself goes on."""
    if rank == 0:
        tensor = torch.ones(4)
        work = must(dist.all_reduce(tensor, async_op=True))
        with pytest.raises(WaitTimeout, match="all_reduce is not done: timeout"):
            work.wait(timedelta(milliseconds=50))
        dist.distributed_c10d._get_default_store().set("gave up", "yes")
        work.wait()
        assert torch.equal(tensor, torch.full((4,), float(size)))
    else:
        dist.distributed_c10d._get_default_store().wait(["gave up"])
        dist.all_reduce(torch.ones(4))


# --- calls that do not fit together -------------------------------------------------------------------------
def refused(call: Callable[[], object], pattern: str) -> None:
    """On this rank as on all others, and what follows is in step again."""
    with pytest.raises(ConfigError, match=pattern):
        call()
    tensor = torch.full((5,), 2.0)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((5,), 2.0 * dist.get_world_size()))


def sizes_and_dtypes(rank: int, size: int) -> None:
    differ = r"expected the same call on every rank, got .* on rank 0.*; .* on rank 1"
    for count in (3, LARGE):
        for odd in (
            torch.ones(count + rank),
            torch.ones(count, dtype=[torch.float32, torch.int32][rank % 2]),
        ):
            refused(lambda odd=odd: dist.all_reduce(odd), rf"all_reduce: {differ}")  # type: ignore[misc]
            refused(lambda odd=odd: dist.broadcast(odd, 1), rf"broadcast: {differ}")  # type: ignore[misc]
            refused(
                lambda odd=odd: dist.all_gather([torch.empty_like(odd)] * size, odd),  # type: ignore[misc]
                rf"all_gather: {differ}",
            )
            refused(lambda odd=odd: dist.reduce(odd, 0), rf"reduce: {differ}")  # type: ignore[misc]
            refused(
                lambda odd=odd: dist.reduce_scatter(torch.empty_like(odd), [odd] * size),  # type: ignore[misc]
                rf"reduce_scatter: {differ}",
            )
            into = [torch.empty_like(odd)] * size if rank == 0 else None
            refused(lambda odd=odd, into=into: dist.gather(odd, into), rf"gather: {differ}")  # type: ignore[misc]
    # An asynchronous one is refused in its turn.
    before, after = torch.ones(2), torch.ones(2)
    first = must(dist.all_reduce(before, async_op=True))
    second = must(dist.all_reduce(torch.ones(1 + rank), async_op=True))
    third = must(dist.all_reduce(after, async_op=True))
    first.wait()
    with pytest.raises(ConfigError, match=differ):
        second.wait()
    third.wait()
    assert torch.equal(before, after)
    # One that is empty somewhere, another operation, another root, another collective.
    refused(lambda: dist.all_reduce(torch.ones(rank)), differ)
    refused(
        lambda: dist.all_reduce(torch.ones(2), op=[dist.ReduceOp.MIN, dist.ReduceOp.MAX][rank % 2]), differ
    )
    refused(lambda: dist.broadcast(torch.ones(2), rank % 2), differ)
    refused(lambda: dist.barrier() if rank == 0 else dist.all_reduce(torch.ones(1)), differ)
    refused(lambda: dist.all_reduce(torch.ones(LARGE)) if rank == 0 else dist.barrier(), differ)
    # Rank 0 has one row more for each than they expect.
    rows = [2 + (rank == 0)] * size
    output = torch.empty(2 * size)
    given = torch.empty(sum(rows))
    refused(
        lambda: dist.all_to_all_single(output, given, [2] * size, rows),
        "3 elements for rank 0 on rank 0; room for 2 from rank 0 on rank 0",
    )


def arguments(rank: int, size: int) -> None:
    """What one rank alone gets wrong fails on all; so does what all get wrong, without any waiting."""
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        refused(lambda op=op: dist.all_reduce(torch.ones(3), op=op), "AND|OR|XOR")  # type: ignore[misc]
    mine = torch.ones(3) if rank == 0 else torch.ones(3, dtype=torch.int64)
    refused(lambda: dist.all_reduce(mine, op=dist.ReduceOp.BAND), "AND takes integers.*float32")
    pieces = torch.ones(2 * size + (rank == 1))
    refused(
        lambda: dist.reduce_scatter_tensor(torch.empty(2), pieces), f"input: expected {size} times 2 elements"
    )
    refused(lambda: dist.all_reduce(torch.ones(1).expand(3) if rank == 0 else torch.ones(3)), "clone")
    into = [torch.empty(2), torch.empty(3), *[torch.empty(2)] * (size - 2)] if rank == 0 else None
    refused(lambda: dist.gather(torch.ones(2), into), "gather_list: expected tensors of 2 elements, got 3")
    # Three in a row, of which the others make one after the other; the first rank waits for nobody.
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        with pytest.raises(ConfigError, match=str(op).removeprefix("RedOpType.B")):
            dist.all_reduce(torch.ones(3), op=op if rank == 0 else dist.ReduceOp.SUM)
    dist.barrier()


def larger_than_sent(rank: int, size: int) -> None:
    if rank > 1:
        return
    for sent, taken in ((2, 4), (4, 2), (LARGE, LARGE + 1), (0, 1)):
        tensor = torch.full((sent if rank == 0 else taken,), float(rank))
        with pytest.raises(
            ConfigError, match=rf"of {sent} x float32, root 0 on rank 0; .* {taken} x .* rank 1"
        ):
            dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        assert torch.equal(tensor, torch.full_like(tensor, float(rank)))
    tensor = torch.full((3,), float(rank))
    dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    assert torch.equal(tensor, torch.zeros(3))


PROGRAMS: dict[str, list[Callable[[int, int], None]]] = {
    "death": [death],
    "late": [late, nothing_received, impatient],
    "calls": [sizes_and_dtypes, arguments, larger_than_sent],
}


def main() -> None:
    rank, size, path, what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("argosy", init_method=f"file://{path}", rank=rank, world_size=size)
    for program in PROGRAMS[what]:
        program(rank, size)
    print("ok", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
