"""The backend in unusual modes and with unusual tensors: one rank, started by test_backend_errors.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import argosy.ring  # noqa: F401  (makes the backend known)

LARGE = 1_200_000  # elements: several chunks


def must(work: Any) -> Any:
    assert work is not None
    return work


def numbers(rank: int, count: int = LARGE) -> Tensor:
    return torch.arange(count, dtype=torch.float32) % 1009 + rank


# --- modes --------------------------------------------------------------------------------------------------
def inference(rank: int, size: int) -> None:
    """Every call, waited for and not, inside and then outside, with tensors of both kinds."""
    with torch.inference_mode():
        made_inside = numbers(rank)
        once(rank, size, made_inside)
    once(rank, size, made_inside)
    once(rank, size, numbers(rank))
    with torch.inference_mode():
        once(rank, size, numbers(rank))
        mesh = init_device_mesh("cpu", (size,))
        whole = numbers(0, size * LARGE)
        assert torch.equal(distribute_tensor(whole, mesh, [Shard(0)]).full_tensor(), whole)


def once(rank: int, size: int, mine: Tensor) -> None:
    for waits in (True, False):
        with torch.inference_mode(mine.is_inference()):
            tensors = [mine.clone() for _ in range(3)]
            parts = [torch.empty(LARGE) for _ in range(size)]
        works = [
            dist.broadcast(tensors[0], 1, async_op=not waits),
            dist.all_reduce(tensors[1], async_op=not waits),
            dist.all_gather(parts, mine, async_op=not waits),
        ]
        if rank == 0:
            works.append(dist.isend(mine, 1))
        if rank == 1:
            works.append(dist.irecv(tensors[2], 0))
        for work in works:
            if work is not None:
                work.wait()
        assert torch.equal(tensors[0], numbers(1))
        assert torch.equal(tensors[1], sum((numbers(each) for each in range(size)), torch.zeros(LARGE)))
        assert all(torch.equal(part, numbers(each)) for each, part in enumerate(parts))
        assert torch.equal(tensors[2], numbers(0 if rank == 1 else rank))


def callbacks(rank: int, size: int) -> None:
    """What follows a future runs in the caller's modes, wherever it runs."""

    def modes(_: object = None) -> tuple[object, ...]:
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.empty(1).is_inference(),
        )

    def check() -> None:
        here = modes()
        if rank == 0:
            future = must(dist.all_reduce(torch.ones(3), async_op=True)).get_future()
            followed = future.then(modes)  # before the others come
            dist.barrier(pair)
            assert followed.wait() == here
        else:
            dist.barrier(pair)
            dist.all_reduce(torch.ones(3))

    pair = dist.new_group()
    check()
    with torch.no_grad():
        check()
    with torch.inference_mode():
        check()
    with torch.autocast("cpu", torch.bfloat16):
        check()
    check()


# --- tensors ------------------------------------------------------------------------------------------------
def uneven(rank: int, size: int) -> None:
    for base in (1, LARGE // 8):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
                sizes = [base * each + (each == 1) for each in range(size)]  # nothing at all for the first
                given = [torch.full((count,), rank + to + 1).to(dtype) for to, count in enumerate(sizes)]
                output = torch.full((sizes[rank],), -1).to(dtype)
                dist.reduce_scatter(output, given, op)
                each = [other + rank + 1 for other in range(size)]
                expected = sum(each) if op == dist.ReduceOp.SUM else max(each)
                assert torch.equal(output, torch.full((sizes[rank],), expected).to(dtype))


def sparse(rank: int, size: int) -> None:
    gloo = dist.new_group(backend="gloo")
    for shape, kept in (((7, 3), 1), ((7, 3), 2), ((50, 4, 2), 2)):
        generator = torch.Generator().manual_seed(rank)
        dense = torch.randint(0, 4, shape, generator=generator).float() * (rank + 1)
        dense[0] = 0
        ours, theirs = (dense.to_sparse(kept) for _ in range(2))
        dist.all_reduce(ours)
        dist.all_reduce(theirs, group=gloo)
        assert torch.equal(ours.to_dense(), theirs.to_dense())
        mean = dense.to_sparse(kept)
        must(dist.all_reduce(mean, op=dist.ReduceOp.AVG, async_op=True)).wait()
        assert torch.allclose(mean.to_dense(), theirs.to_dense() / size)
    # Nothing in any but one.
    single = torch.sparse_coo_tensor(torch.tensor([[4]] if rank == 1 else [[]]), [5.0] * (rank == 1), (9,))
    dist.all_reduce(single)
    assert torch.equal(single.to_dense(), F.one_hot(torch.tensor(4), 9) * 5.0)


def embedding(rank: int, size: int) -> None:
    """DistributedDataParallel with sparse gradients, against one process on the whole batch."""
    torch.manual_seed(0)
    alone, mine = (
        nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Linear(4, 2)).double() for _ in range(2)
    )
    mine.load_state_dict(alone.state_dict())
    wrapped = DistributedDataParallel(mine)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (wrapped, alone)]
    for step in range(5):
        rows = torch.randint(0, 20, (size * 4,), generator=torch.Generator().manual_seed(step))
        for optimizer, net, batch in (
            (optimizers[0], wrapped, rows[rank * 4 :][:4]),
            (optimizers[1], alone, rows),
        ):
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
        assert next(mine.parameters()).grad.is_sparse  # type: ignore[union-attr]
    for one, other in zip(mine.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def subgroups(rank: int, size: int) -> None:
    for _ in range(2):
        group = dist.new_group()
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        assert group.group_name
        dist.destroy_process_group(group)
    dist.all_reduce(tensor)
    assert tensor[0] == size * size


PROGRAMS: list[Callable[[int, int], None]] = [inference, callbacks, uneven, sparse, embedding, subgroups]


def main() -> None:
    rank, size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("argosy", init_method=f"file://{path}", rank=rank, world_size=size)
    for program in PROGRAMS:
        program(rank, size)
    print("ok", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
