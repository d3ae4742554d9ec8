"""One worker of a ring over two hosts, from test_among_hosts.py: trains a little, times an all-reduce."""

from __future__ import annotations

import os
import sys
import time
from statistics import median

import torch
from torch import nn

import argosy
from argosy.entry import Replica


def train(replica: Replica, wire: torch.dtype | None) -> str:
    """Each worker's gradient is its index + 1 for so many steps as its data last."""
    weight = nn.Parameter(torch.full((1001,), float(replica.index)))
    unused = nn.Parameter(torch.zeros(3))
    optimizer = replica.distribute(torch.optim.SGD([weight, unused], lr=1.0), wire_dtype=wire)
    with replica.session(nn.ParameterList([weight, unused]), optimizer) as session:
        for step in session.batches(iter(range(4 + 2 * replica.index))):
            if os.environ.get("DIE_AT") == f"{replica.index}.{step}":
                os.kill(os.getpid(), 9)
            optimizer.zero_grad()
            (weight * (replica.index + 1)).sum().backward()
            optimizer.step()
    assert unused.grad is None
    assert bool((weight == weight[0]).all())
    return f"done {session.global_step} {weight[0].item()}"


class Seen(nn.Module):
    """A number that is trained, and buffers of several kinds."""

    real: torch.Tensor
    count: torch.Tensor
    flag: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("real", torch.zeros(1))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("flag", torch.zeros(3, dtype=torch.bool))


def see(replica: Replica) -> str:
    """The mean of buffers while the workers run out of data, one after the other."""
    model = Seen()
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
    seen = []
    with replica.session(model, optimizer, buffers="mean") as session:
        for _ in session.batches(iter(range(1 + replica.index))):
            optimizer.zero_grad()
            model.real.fill_(replica.index)
            model.count.fill_(-5 - replica.index)
            model.flag.zero_()
            model.flag[replica.index] = True
            model.weight.sum().backward()
            optimizer.step()
            seen.append((model.real.item(), model.count.item(), *model.flag.int().tolist()))
    return f"seen {seen}"


def clock(replica: Replica, megabytes: int) -> str:
    """Seconds of a step whose gradient has so many megabytes."""
    weight = nn.Parameter(torch.zeros(megabytes * 250_000))
    optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
    taken = []
    with replica.session(nn.ParameterList([weight]), optimizer):
        for _ in range(5):
            weight.grad = torch.ones_like(weight)
            begin = time.perf_counter()
            optimizer.step()
            taken.append(time.perf_counter() - begin)
    return f"seconds {median(taken[1:])}"


def main() -> None:
    replica = argosy.join()
    torch.set_num_threads(1)
    what = sys.argv[1]
    if what == "clock":
        print(clock(replica, int(sys.argv[2])), flush=True)
    elif what == "see":
        print(see(replica), flush=True)
    else:
        print(train(replica, torch.bfloat16 if what == "bf16" else None), flush=True)


if __name__ == "__main__":
    main()
