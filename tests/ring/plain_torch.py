"""A plain PyTorch program on the backend: one rank, started by test_backend.py. Prints what it found."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import argosy.ring  # noqa: F401  (makes the backend known)


def collectives(rank: int, size: int) -> None:
    numbers = torch.arange(5.0) + rank
    dist.all_reduce(numbers)
    assert torch.equal(numbers, size * torch.arange(5.0) + sum(range(size)))
    mean = torch.full((3, 2), float(rank)).t()  # not contiguous
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert torch.equal(mean, torch.full((2, 3), (size - 1) / 2))
    work = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]
    for each in work:
        assert each is not None
        each.wait()
    twisted = torch.complex(torch.ones(2), torch.full((2,), float(rank)))
    dist.all_reduce(twisted)
    assert torch.equal(twisted.real, torch.full((2,), float(size)))
    sent = torch.full((2, 2), float(rank))
    dist.broadcast(sent, src=1)
    assert torch.equal(sent, torch.ones(2, 2))
    outputs = [torch.empty(3, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(outputs, torch.full((3,), rank))
    assert [int(out[0]) for out in outputs] == list(range(size))
    part = torch.empty(2)
    dist.reduce_scatter(part, [torch.full((2,), float(to)) for to in range(size)])
    assert torch.equal(part, torch.full((2,), float(size * rank)))
    things: list[object] = [None] * size
    dist.all_gather_object(things, {"rank": rank})
    assert things == [{"rank": number} for number in range(size)]
    total = torch.ones(4)
    dist.reduce(total, dst=0)
    assert torch.equal(total, torch.full((4,), float(size if rank == 0 else 1)))
    pair = dist.new_group([0, 1], backend="argosy")
    if rank < 2:
        both = torch.ones(1)
        dist.all_reduce(both, group=pair)
        assert both.item() == 2
    dist.barrier()


def parallel(rank: int, size: int) -> None:
    """DistributedDataParallel against one process on the whole batch."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    wrapped = DistributedDataParallel(model)
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (wrapped, alone)]
    for step in range(20):
        images = torch.randn(size * 4, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        for optimizer, net, batch in (
            (optimizers[0], wrapped, images[rank * 4 :][:4]),
            (optimizers[1], alone, images),
        ):
            optimizer.zero_grad()
            F.mse_loss(net(batch), torch.ones(len(batch), 2, dtype=torch.float64)).backward()
            optimizer.step()
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def main() -> None:
    rank, size, path, what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("argosy", init_method=f"file://{path}", rank=rank, world_size=size)
    assert dist.get_rank() == rank
    if what == "die":
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))
    collectives(rank, size)
    parallel(rank, size)
    dist.destroy_process_group()
    print("ok", flush=True)


if __name__ == "__main__":
    main()
