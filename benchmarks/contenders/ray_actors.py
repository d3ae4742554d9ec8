"""A parameter server on Ray actors: the sharded, asynchronous pattern of Ray's documentation.

Worker actors call the server actors themselves, so that the driver is not in the way. Flat numpy arrays
travel through the object store, where a large one is read without a copy.
"""

from __future__ import annotations

import os
import tempfile
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from benchmarks.contenders.job import Job, Recorder, end_with_parent, read_job
from benchmarks.contenders.torch_model import Batches, build, flat_copy, flat_restore, split_evenly
from benchmarks.networks import LEARNING_RATE

SERVERS, WORKERS = 2, 2
Flat = npt.NDArray[np.float32]


class Server:
    """Owns a share of the parameters, and their optimizer."""

    def __init__(self, job: Job, index: int) -> None:
        torch.set_num_threads(1)
        share = split_evenly(list(build(job.network).parameters()), SERVERS)[index]
        self._flat = torch.cat([parameter.detach().reshape(-1) for parameter in share]).requires_grad_()
        self._optimizer = torch.optim.Adam([self._flat], lr=LEARNING_RATE, fused=True)

    def push_pull(self, gradient: Flat) -> Flat:
        """Apply this gradient, give the parameters. Ray copies the result into the object store."""
        self._flat.grad = torch.from_numpy(gradient)
        self._optimizer.step()
        return self._flat.detach().numpy()


class Worker:
    """A replica of the model."""

    def __init__(self, job: Job, index: int, servers: list[Any]) -> None:
        torch.set_num_threads(1)
        self._job = job
        self._index = index
        self._servers = servers

    def train(self) -> None:
        """Train until the time is up."""
        job, ray = self._job, import_module("ray")
        model = build(job.network)
        shares = split_evenly(list(model.parameters()), SERVERS)
        targets = [[parameter.detach() for parameter in share] for share in shares]
        flats = [torch.empty(sum(parameter.numel() for parameter in share)) for share in shares]
        versions = {"ray": str(ray.__version__), "torch": torch.__version__}
        recorder = Recorder(job, self._index, WORKERS, versions)
        for inputs, labels in Batches(job.network, job.data, self._index).forever():
            model.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            for share, flat in zip(shares, flats, strict=True):
                flat_copy([parameter.grad for parameter in share if parameter.grad is not None], flat)
            calls = [
                server.push_pull.remote(flat.numpy())
                for server, flat in zip(self._servers, flats, strict=True)
            ]
            for values, target in zip(ray.get(calls), targets, strict=True):
                # Read-only memory of the object store, which torch warns about and which is only read.
                flat_restore(torch.frombuffer(values, dtype=torch.float32), target)
            if not recorder.step():
                break


def main() -> None:
    end_with_parent()
    job = read_job()
    ray: Any = import_module("ray")
    # A short path of its own: the sockets' names in it must fit into 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray") as directory:
        ray.init(
            num_cpus=SERVERS + WORKERS,  # one for each actor: Ray would not start more than there are cores
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=directory,
            object_store_memory=1 << 30,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ["PYTHONPATH"]}},
        )
        servers = [ray.remote(Server).remote(job, index) for index in range(SERVERS)]
        workers = [ray.remote(Worker).remote(job, index, servers) for index in range(WORKERS)]
        ray.get([worker.train.remote() for worker in workers])
        ray.shutdown()


if __name__ == "__main__":
    main()
