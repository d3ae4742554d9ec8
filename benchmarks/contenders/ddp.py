"""PyTorch DistributedDataParallel with fused Adam, on Gloo; with `--way argosy`, on our backend.

Tuned as its documentation says: `gradient_as_bucket_view` saves a copy of the gradients, `static_graph` the
search for unused parameters; no buffers to broadcast. Trains on until the harness ends it: workers that stop
after different numbers of steps would wait for each other for ever.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.contenders.job import Recorder, end_with_parent, read_job
from benchmarks.contenders.torch_model import Batches, build
from benchmarks.networks import LEARNING_RATE

WORKERS = 2


def main() -> None:
    end_with_parent()
    job = read_job()
    torch.set_num_threads(1)
    backend = "argosy" if job.mode == "argosy" else "gloo"
    if backend == "argosy":
        import argosy.ring  # noqa: F401  (makes the backend known)
    dist.init_process_group(
        backend, init_method=f"tcp://127.0.0.1:{job.ports[0]}", rank=job.index, world_size=WORKERS
    )
    model = DistributedDataParallel(
        build(job.network), gradient_as_bucket_view=True, static_graph=True, broadcast_buffers=False
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    recorder = Recorder(job, job.index, WORKERS, {"torch": torch.__version__})
    for inputs, labels in Batches(job.network, job.data, job.index).forever():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        recorder.step()


if __name__ == "__main__":
    main()
