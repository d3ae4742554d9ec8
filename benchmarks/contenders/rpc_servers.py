"""A parameter server on torch.distributed.rpc, as its tutorial builds one, made fast.

One call a server a step pushes the flat gradient and brings the fresh parameters back; both servers are asked
at once. TensorPipe chooses its own transports (shared memory and CMA on one host). A thread a worker on a
server, so that one may arrive while the other is applied; the update itself is under a lock.
"""

from __future__ import annotations

import os
import threading

import torch
import torch.distributed.rpc as rpc
import torch.nn.functional as F
from torch import Tensor

from benchmarks.contenders.job import Job, Recorder, end_with_parent, read_job
from benchmarks.contenders.torch_model import Batches, build, flat_copy, flat_restore, split_evenly
from benchmarks.networks import LEARNING_RATE

SERVERS, WORKERS = 2, 2
_lock = threading.Lock()
_shard: list[Tensor] = []
_optimizer: list[torch.optim.Optimizer] = []


def push_pull(gradient: Tensor) -> Tensor:
    """On a server: apply this gradient, give the parameters."""
    with _lock:
        _shard[0].grad = gradient
        _optimizer[0].step()
        return _shard[0].detach().clone()


def serve(job: Job) -> None:
    """Own this server's share of the parameters."""
    share = split_evenly(list(build(job.network).parameters()), SERVERS)[job.index]
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in share]).requires_grad_()
    _shard.append(flat)
    _optimizer.append(torch.optim.Adam([flat], lr=LEARNING_RATE, fused=True))


def train(job: Job) -> None:
    """A worker's loop."""
    model = build(job.network)
    shares = split_evenly(list(model.parameters()), SERVERS)
    targets = [[parameter.detach() for parameter in share] for share in shares]
    recorder = Recorder(job, job.index, WORKERS, {"torch": torch.__version__})
    for inputs, labels in Batches(job.network, job.data, job.index).forever():
        model.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        calls = []
        for server, share in enumerate(shares):
            flat = torch.empty(sum(parameter.numel() for parameter in share))
            flat_copy([parameter.grad for parameter in share if parameter.grad is not None], flat)
            calls.append(rpc.rpc_async(f"server{server}", push_pull, args=(flat,)))
        for call, target in zip(calls, targets, strict=True):
            flat_restore(call.wait(), target)
        if not recorder.step():
            break


def main() -> None:
    end_with_parent()
    job = read_job()
    torch.set_num_threads(1)
    # The servers' memory is there before the first worker can call them.
    if job.role == "server":
        serve(job)
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=WORKERS, init_method=f"tcp://127.0.0.1:{job.ports[0]}"
    )
    rank = job.index if job.role == "server" else SERVERS + job.index
    rpc.init_rpc(
        f"{job.role}{job.index}", rank=rank, world_size=SERVERS + WORKERS, rpc_backend_options=options
    )
    if job.role == "worker":
        train(job)
    rpc.shutdown()


if __name__ == "__main__":
    main()
