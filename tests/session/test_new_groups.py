"""Groups that are added in a training with servers: the chief's values at once, and no deadlock."""

from __future__ import annotations

import pytest
import torch
from one_number import Bench
from torch import nn

from argosy.entry import Replica
from argosy.modes import Async, Mode, Sync
from argosy.testing import Lane, LocalCluster


@pytest.mark.parametrize("lane", ["queue", "memory"])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("skips", [0, 1])
@pytest.mark.parametrize("mode", [Sync(), Async()], ids=str)
def test_a_skip_in_the_step_after_a_new_group(mode: Mode, skips: int, inside: bool, lane: Lane) -> None:
    def program(replica: Replica) -> tuple[float, float]:
        bench = Bench(replica)
        late = nn.Parameter(torch.full((1,), 10.0 + replica.index))
        with bench.session:
            bench.push(1.0)
            replica.barrier()
            target = bench.optimizer._inner if inside else bench.optimizer
            target.add_param_group({"params": [late]})
            if not inside:
                assert late.item() == 10.0  # the chief's, before the first forward
            replica.barrier()  # nobody's gradient is there before all have looked
            for turn in range(2):
                bench.weight.grad = late.grad = None
                if turn == 0 and replica.index == skips:
                    assert bench.optimizer.skip().status == "skipped"
                else:
                    late.grad = torch.ones(1)
                    bench.push(1.0)
                replica.barrier()
            bench.optimizer.pull()
            replica.barrier()
        return bench.value, late.item()

    steps = 2 if isinstance(mode, Sync) else 3
    first = 1 if isinstance(mode, Sync) else 2
    expected = (-float(first + steps), 10.0 - steps)
    assert LocalCluster(2, 2, mode, lane=lane).run(program) == [expected] * 2
