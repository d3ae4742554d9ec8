"""Every collective of torch.distributed on our backend and on Gloo: the same calls, the same results.

One rank, started by test_backend.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import argosy.ring  # noqa: F401  (makes the backend known)
from argosy.errors import ConfigError

Group = dist.ProcessGroup
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8]


def numbers(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Whole ones, so that every order of adding them gives the same in every dtype."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 9, shape, generator=generator).to(dtype)


def reductions(group: Group) -> list[Tensor]:
    rank, size = group.rank(), group.size()
    found = []
    for dtype in DTYPES:
        for count in (0, 1, 7, 1001):
            mine = numbers(rank, count, dtype=dtype)
            dist.all_reduce(mine, group=group)
            root = numbers(rank, count, dtype=dtype)
            dist.reduce(root, dst=size - 1, group=group)
            found += [mine, root if rank == size - 1 else torch.zeros(0)]
        if dtype not in (torch.bfloat16, torch.float16):
            for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
                mine = numbers(rank, 33, dtype=dtype)
                dist.all_reduce(mine, op=op, group=group)
                found.append(mine)
        part = torch.empty(5, dtype=dtype)
        dist.reduce_scatter(
            part, [numbers(10 * rank + to, 5, dtype=dtype) for to in range(size)], group=group
        )
        single = torch.empty(3, 2, dtype=dtype)
        dist.reduce_scatter_tensor(single, numbers(rank, 3 * size, 2, dtype=dtype), group=group)
        found += [part, single]
    return found


def movements(group: Group) -> list[Tensor]:
    rank, size = group.rank(), group.size()
    found = []
    for dtype in DTYPES:
        for shape in ((0,), (1,), (3, 5), (70_001,)):
            mine = numbers(rank, *shape, dtype=dtype)
            lists = [torch.empty(shape, dtype=dtype) for _ in range(size)]
            dist.all_gather(lists, mine, group=group)
            sent = mine.clone()
            dist.broadcast(sent, src=1, group=group)
            gathered = [torch.empty(shape, dtype=dtype) for _ in range(size)] if rank == 1 else None
            dist.gather(mine, gathered, dst=1, group=group)
            given = [numbers(7 + to, *shape, dtype=dtype) for to in range(size)] if rank == 0 else None
            got = torch.empty(shape, dtype=dtype)
            dist.scatter(got, given, src=0, group=group)
            found += [*lists, sent, *(gathered or []), got]
        whole = torch.empty(4 * size, 3, dtype=dtype)
        dist.all_gather_into_tensor(whole, numbers(rank, 4, 3, dtype=dtype), group=group)
        even = torch.empty(2 * size, 3, dtype=dtype)
        dist.all_to_all_single(even, numbers(rank, 2 * size, 3, dtype=dtype), group=group)
        # Rank r has r + to rows for each.
        rows = [rank + to for to in range(size)]
        uneven = torch.empty(sum(rows), 2, dtype=dtype)
        dist.all_to_all_single(uneven, numbers(rank, sum(rows), 2, dtype=dtype), rows, rows, group=group)
        found += [whole, even, uneven]
    return found


def pairs(group: Group) -> list[Tensor]:
    """Around the ring, both ways, large and small; and two tags in another order than they were sent."""
    rank, size = group.rank(), group.size()
    after, before = (rank + 1) % size, (rank - 1) % size
    found = []
    for count in (0, 1, 1_000_003):
        taken = [torch.empty(count), torch.empty(count)]
        operations = [
            dist.P2POp(dist.isend, numbers(rank, count), group=group, group_peer=after),
            dist.P2POp(dist.isend, numbers(rank + 50, count), group=group, group_peer=before, tag=1),
            dist.P2POp(dist.irecv, taken[0], group=group, group_peer=before),
            dist.P2POp(dist.irecv, taken[1], group=group, group_peer=after, tag=1),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        found += taken
    if rank == 0:
        works = [
            dist.isend(torch.full((2,), float(tag)), group=group, group_dst=1, tag=tag) for tag in (3, 4)
        ]
        for each in works:
            assert each is not None
            each.wait()
    if rank == 1:
        tagged = {tag: torch.empty(2) for tag in (3, 4)}
        waits = [dist.irecv(tagged[tag], group=group, group_src=0, tag=tag) for tag in (4, 3)]
        for each in waits:
            assert each is not None
            each.wait()
        found += [tagged[3], tagged[4]]
    return found


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 2))


def loss(model: nn.Module, group: Group, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + group.rank())
    result: Tensor = model(torch.randn(5, 6, generator=generator)).square().sum()
    return result


def zero_redundancy(group: Group) -> list[Tensor]:
    model = DistributedDataParallel(network(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, process_group=group, lr=0.01
    )
    for step in range(5):
        optimizer.zero_grad()
        loss(model, group, step).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def fully_sharded(group: Group) -> list[Tensor]:
    model = network()
    mesh = DeviceMesh.from_group(group, "cpu")
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(5):
        optimizer.zero_grad()
        loss(model, group, step).backward()
        optimizer.step()
    return [each.full_tensor() for each in model.parameters() if isinstance(each, DTensor)]


def coalesced(group: Group) -> list[Tensor]:
    rank, size = group.rank(), group.size()
    tensors = [numbers(rank, 5), numbers(rank + 9, 3)]
    with _coalescing_manager(group=group):
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    outputs = [torch.empty(2 * size), torch.empty(3 * size)]
    with _coalescing_manager(group=group):
        for output, count in zip(outputs, (2, 3), strict=True):
            dist.all_gather_into_tensor(output, numbers(rank, count), group=group)
    return tensors + outputs


PROGRAMS: list[Callable[[Group], list[Tensor]]] = [
    reductions,
    movements,
    pairs,
    coalesced,
    zero_redundancy,
    fully_sharded,
]


def main() -> None:
    rank, size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    groups = [dist.new_group(backend=name) for name in ("argosy", "gloo")]
    for program in PROGRAMS:
        ours, theirs = (program(group) for group in groups)
        assert len(ours) == len(theirs) > 0, program
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert mine.dtype == other.dtype
            exact = program not in (zero_redundancy, fully_sharded)  # Gloo adds three in another order
            same = torch.equal(mine, other) if exact else torch.allclose(mine, other, rtol=1e-5, atol=1e-6)
            assert same, (program.__name__, number, mine, other)
    with pytest.raises(ConfigError, match="the rank to receive from"):
        dist.irecv(torch.empty(1), group=groups[0])
    dist.destroy_process_group()
    print("ok", flush=True)


if __name__ == "__main__":
    main()
